"""Experts on the devices of a mesh: the Python face of ``static/experts/experts.js``."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.measured_load import MeasuredLoad
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import DEGREES
from meshwave.engine.experts import expert_schedule_names, expert_schedules

# ---- what can be set ----


def controls(design: Design, routed: Sequence[MeasuredLoad] = ()) -> list[dict[str, Any]]:
    """The settings of the experts: each with its words, its value and what it can be set to."""
    experts = design.experts
    idle = edits.idle(design)
    return [
        _control("schedule", "schedule", experts.schedule, _schedules()),
        _control("ep", "ep", experts.ep, [] if idle else _sizes(design, "ep"), idle),
        _control("esp", "esp", experts.esp, [] if idle else _sizes(design, "esp"), idle),
        _control(
            "degree", "chunks", experts.degree, [_option(None, "automatic"), *(_option(n, str(n)) for n in DEGREES)]
        ),
        _control("load", "load", *_loads(design, routed)),
    ]


LOADS_BY_NAME = ("uniform", "zipf")
BY_HAND, NOT_MEASURED = "by hand", "not measured"


def _loads(design: Design, routed: Sequence[MeasuredLoad]) -> tuple[str, list[dict[str, Any]]]:
    """The load that is set, and those that can be: by name, by hand, and as runs of this model measured it."""
    given = design.experts.load
    options = [_option("uniform", "uniform"), _option("zipf", "Zipf")]
    options += [_option(each.run, each.words) for each in routed]
    if not routed:
        options.append(_option(NOT_MEASURED, "measured: no run yet"))
    if not isinstance(given, tuple):
        return given or "uniform", options
    same = next((each.run for each in routed if each.load == given), None)
    return same or BY_HAND, options if same else [*options, _option(BY_HAND, "by hand")]


HELP = {
    "schedule": "The order of communication and compute inside an expert layer",
    "ep": "Expert parallel: places that hold different experts",
    "esp": "Expert sharding: devices that share one expert, each a part of its width",
    "degree": "Chunks in which tokens are exchanged and computed, so that one hides behind another",
    "load": "How tokens spread over the experts: by name, as a run measured it, or by hand with + and - on a chip",
}


def _control(key: str, label: str, value: Any, options: list[dict[str, Any]], reason: str = "") -> dict[str, Any]:
    words = {option["value"]: option["text"] for option in options} if isinstance(value, str) else {}
    text = words.get(value, "automatic" if value is None else str(value))
    return {
        "key": key, "label": label, "value": value, "text": text, "options": options, "help": HELP[key], "reason": reason,
    }  # fmt: skip


def _option(value: Any, text: str) -> dict[str, Any]:
    return {"value": value, "text": text}


def _schedules() -> list[dict[str, Any]]:
    """Every schedule that is offered; one that cannot run the layer can be chosen, and then says why."""
    return [_option(name, expert_schedules[name].title) for name in expert_schedule_names()]


def _sizes(design: Design, key: str) -> list[dict[str, Any]]:
    """Sizes whose groups divide every mesh, with what the other size becomes."""
    other = "esp" if key == "ep" else "ep"
    options = []
    for size in edits.divisors(gcd(*edits.sizes(design))):
        became = edits.with_setting(design, key, size)[other]
        follows = f"{size} ({other} {became})" if became != getattr(design.experts, other) else str(size)
        options.append(_option(size, follows))
    return options
