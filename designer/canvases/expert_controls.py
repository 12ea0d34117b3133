"""The settings of the experts as controls of the expert canvas."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.measured_load import MeasuredLoad
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON, DEGREES
from meshwave.engine.experts import expert_schedule_names, expert_schedules


def expert_settings(design: Design, routed: Sequence[MeasuredLoad] = (), number: int = COMMON) -> list[dict[str, Any]]:
    """Return the settings of the experts, each with its value, text and options; ``number`` is the layer shown."""
    experts = design.experts
    unused = edits.unused_groups_problem(design)
    reason = unused.message if unused else ""
    return [
        *_layer_controls(design, number),
        _control("schedule", "schedule", experts.schedule, _schedule_options()),
        _control("ep", "ep", experts.ep, [] if reason else _size_options(design, "ep"), reason),
        _control("esp", "esp", experts.esp, [] if reason else _size_options(design, "esp"), reason),
        _control(
            "degree", "chunks", experts.degree, [_option(None, "automatic"), *(_option(n, str(n)) for n in DEGREES)]
        ),
        _control("load", "load", *_load_options(edits.design_of_layer(design, number), routed)),
    ]


def _layer_controls(design: Design, number: int) -> list[dict[str, Any]]:
    """Return the choice of the layer to show, unless there is only one."""
    numbers, own = design.model.expert_blocks, design.experts.own_layers
    if len(numbers) < 2:
        return []
    options = [_option(str(COMMON), ALL_LAYERS)]
    options += [_option(str(each), f"{each} (own)" if each in own else str(each)) for each in numbers]
    return [_control("layer", "layer", str(number), options)]


LOADS_BY_NAME = ("uniform", "zipf")
ALL_LAYERS = "all"
CUSTOM, NOT_MEASURED = "custom", "not measured"


def _load_options(design: Design, routed: Sequence[MeasuredLoad]) -> tuple[str, list[dict[str, Any]]]:
    """Return the current load and the options: named, manual, and measured by runs of this model."""
    given = design.experts.load
    options = [_option("uniform", "uniform"), _option("zipf", "Zipf")]
    options += [_option(each.run, each.label) for each in routed]
    if not routed:
        options.append(_option(NOT_MEASURED, "measured (no run yet)"))
    if not isinstance(given, tuple):
        return given or "uniform", options
    same = next((each.run for each in routed if each.load == given), None)
    return same or CUSTOM, options if same else [*options, _option(CUSTOM, CUSTOM)]


HELP = {
    "layer": "The layer to show; a layer can have a placement and a load of its own, marked as own",
    "schedule": "The order of communication and compute inside an expert layer",
    "ep": "Expert-parallel size: number of device groups that hold different experts",
    "esp": "Expert sharding: number of devices that share one expert, each with a part of its width",
    "degree": "Number of chunks into which tokens are split; the exchange of one chunk overlaps the computation of another",
    "load": "Distribution of tokens over the experts: a named distribution, one measured by a run, or your own (press + and - on an expert)",
}


def _control(key: str, label: str, value: Any, options: list[dict[str, Any]], reason: str = "") -> dict[str, Any]:
    words = {option["value"]: option["text"] for option in options} if isinstance(value, str) else {}
    text = words.get(value, "automatic" if value is None else str(value))
    return {
        "key": key, "label": label, "value": value, "text": text, "options": options, "help": HELP[key], "reason": reason,
    }  # fmt: skip


def _option(value: Any, text: str) -> dict[str, Any]:
    return {"value": value, "text": text}


def _schedule_options() -> list[dict[str, Any]]:
    """Return an option per expert schedule; one that cannot run the layer can be selected, and then shows the reason."""
    return [_option(name, expert_schedules[name].title) for name in expert_schedule_names()]


def _size_options(design: Design, key: str) -> list[dict[str, Any]]:
    """Return an option per group size that divides every mesh, with the size to which the other group is adjusted."""
    other = "esp" if key == "ep" else "ep"
    options = []
    for size in edits.divisors(gcd(*edits.mesh_sizes(design))):
        adjusted = edits.change_setting(design, key, size)[other]
        text = f"{size} ({other} {adjusted})" if adjusted != getattr(design.experts, other) else str(size)
        options.append(_option(size, text))
    return options
