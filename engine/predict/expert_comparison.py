"""Expert schedules side by side: for one layer, and for a layer of a design."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from meshwave.engine.costs.cost_model import layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layer_document import FORMAT, ExpertLayerSpec
from meshwave.engine.document.expert_layers import expert_layer, mesh_links, priced_layer, resolved
from meshwave.engine.document.expert_problems import drops, rounding
from meshwave.engine.document.meshes import mesh_called
from meshwave.engine.errors import InputError
from meshwave.engine.experts import Collective, Layer, Links, Price, by_age, dropped, expert_schedules, play, price
from meshwave.engine.experts.auto import left_out
from meshwave.engine.lowering.lower import lower

WHOLE_EXPERTS_CODE = "whole_experts"
"""What plain expert parallelism says of a layout with shards. Where a layer alone is asked about, it
is priced all the same: each of those devices has whole experts, and its lane exchanges for itself."""


class ScheduleComparison(NamedTuple):
    """All schedules of a layer: their prices, and why the others cannot run it."""

    prices: Mapping[str, Price]
    refused: Mapping[str, str]


def compare_schedules(layer: Layer, priced: Callable[[str], Price], ignored: str = "") -> ScheduleComparison:
    """Every schedule, and every variant of one that can run the layer; problems with the code
    ``ignored`` keep nobody from it."""
    prices, refused = {}, {}
    for name in by_age(option=False):
        found = next((each for each in expert_schedules[name]().problems(layer) if each.code != ignored), None)
        if found is None:
            prices[name] = priced(name)
        else:
            refused[name] = found.message
    return ScheduleComparison(prices, refused)


# ---- one layer: meshwave moe ----


def expert_layer_answer(spec: ExpertLayerSpec) -> dict[str, Any]:
    """What ``meshwave moe --json`` prints; bytes are of one rank, the busiest, and seconds those of communication."""
    layer, links = spec.layer, spec.lines
    found = compare_schedules(layer, lambda name: price(name, layer, links), WHOLE_EXPERTS_CODE)
    return _answer(layer, found, [*_common_notes(layer, links), *_layer_notes(layer, links)])


def design_expert_answer(design: Design, rank: int) -> dict[str, Any]:
    """The same of the expert layer that a design has on mesh ``rank``, for one microbatch: each schedule in the groups
    that the design gives it there, on the links and devices that are drawn, with the seconds of the whole layer beside
    those of communication, so that an automatic schedule chooses as it does in the design."""
    mesh = design.meshes[rank]
    prices, refused = {}, {}
    for name in by_age(option=False):
        changed = _with_schedule(design, name)
        found = next(expert_schedules[name]().problems(expert_layer(changed, mesh)), None)
        if found is None:
            prices[name] = priced_layer(changed, mesh)
        else:
            refused[name] = found.message
    layer, links = resolved(design, mesh).layer, mesh_links(design, mesh)
    told = _answer(layer, ScheduleComparison(prices, refused), [*_common_notes(layer, links), *_design_notes(design)])
    for name, each in told["schedules"].items():
        ways = {"forward": prices[name].forward, "backward": prices[name].backward}
        each["seconds"] = {way: play(prices[name], steps).makespan for way, steps in ways.items()}
    return {
        **told,
        "design": design.name,
        "mesh": mesh.name,
        "layer": _layer_data(layer),
        "schedule": design.experts.member,
    }


def _with_schedule(design: Design, name: str) -> Design:
    """The same with another expert schedule, called by its name among all."""
    variant = name.removeprefix("deepspeed-") if name.startswith("deepspeed-") else "paper"
    update = {"schedule": name if variant == "paper" else "deepspeed", "variant": variant}
    return design.model_copy(update={"experts": design.experts.model_copy(update=update)})


def _layer_data(layer: Layer) -> dict[str, Any]:
    names = (
        "devices",
        "mp",
        "esp",
        "ep",
        "experts",
        "tokens",
        "hidden",
        "ffn_hidden",
        "top_k",
        "capacity_factor",
        "degree",
    )
    return {name: getattr(layer, name) for name in names}


def find_expert_mesh(design: Design, wanted: str | None = None) -> int:
    """The mesh of that name or number, or the first one of all, whose stages have experts.

    Raises:
        InputError: it has none, or there is no such mesh.
    """
    moe = design.model.moe
    if moe is None:
        raise InputError(
            f"the model of {design.name!r} has no experts; the examples 15-bert-base-moe and 16-gpt2-moe have"
        )
    program, ends = lower(design), [*accumulate(layers_per_stage(design))]
    stages = {bisect_right(ends, block) for block in design.model.expert_blocks}
    having = sorted({rank for stage in stages for rank in program.ranks_of(stage)})
    if not having:
        raise InputError(f"of {design.model.layers} blocks none is number {moe.every}; set model.moe.every to fewer")
    rank = having[0] if wanted is None else mesh_called(design.meshes, wanted)
    if rank not in having:
        names = ", ".join(design.meshes[each].name for each in having)
        raise InputError(f"no stage on mesh {design.meshes[rank].name} has experts; those on {names} have")
    return rank


def _answer(layer: Layer, found: ScheduleComparison, notes: list[str]) -> dict[str, Any]:
    rule, auto = found.prices["parm-auto"].choice, found.prices["auto"].choice
    assert rule is not None and auto is not None
    return {
        "format": FORMAT,
        "capacity": layer.capacity,
        "input_bytes": layer.input_bytes,
        "slots_bytes": layer.slots_bytes,
        "schedules": {name: schedule_figures(priced) for name, priced in found.prices.items()},
        "refused": dict(found.refused),
        "choice": rule.name,
        "reason": rule.reason,
        "auto": {"choice": auto.name, "reason": auto.reason, "left_out": dict(left_out(layer))},
        "notes": notes,
    }


def schedule_figures(priced: Price) -> dict[str, Any]:
    """A schedule's collectives in both directions, and what the experts of one device compute and hold."""
    return {
        "title": expert_schedules[priced.name].title,
        "runs": priced.name,
        "forward": [_collective(each) for each in priced.collectives(priced.forward)],
        "backward": [_collective(each) for each in priced.collectives(priced.backward)],
        "communication_s": {
            "forward": priced.communication_s(priced.forward),
            "backward": priced.communication_s(priced.backward),
        },
        "flops": priced.flops,
        "parameters": priced.parameters,
        "dropped": dropped(priced.name, priced.layer),
    }


def _collective(each: Collective) -> dict[str, Any]:
    return each._asdict()


def _layer_notes(layer: Layer, links: Links) -> Iterator[str]:
    """What was assumed of a layer that no design has."""
    if layer.esp > 1:
        yield (
            f"expert-parallel keeps experts whole: esp={layer.esp} plays no part in it, each lane of ep={layer.ep} "
            "exchanges for itself"
        )
    if links.fit:
        yield f"measured lines are used for {', '.join(links.fit)}; all else is by the links"
    if links.fit and "overlap" not in links.fit and "all_gather" in links.fit:
        yield "no overlap was measured, so that parm-s2 hides nothing here: its gather follows its exchange"
    yield "seconds are those of messages, by which auto chooses here too: how fast a device computes is not asked for"


def _design_notes(design: Design) -> Iterator[str]:
    """What was assumed of the layer of a design."""
    yield "seconds of a schedule are those of its messages; whole: with gate, order and experts, by which auto chooses"
    if design.cost.profile_name:
        yield "links and devices are as they are drawn: the profile of the design prices its blocks, not a layer alone"


def _common_notes(layer: Layer, links: Links) -> Iterator[str]:
    """What was assumed on the way to the answer."""
    if rounding(layer):
        yield rounding(layer)
    crossing = [kind for kind in ("mp", "esp") if _crosses_nodes(layer, kind)]
    if crossing:
        yield f"groups of {' and '.join(crossing)} go from node to node; their rings take the links between nodes"
    if layer.may_drop and layer.mp > 1:
        yield f"parm-s1 {drops(layer)}"
    if layer.load and not layer.homes and layer.capacity_factor is not None:
        yield "experts compute all of their slots, so that the load changes what is dropped and no time"
    if layer.load and layer.capacity_factor is None:
        yield "what is exchanged is padded to the most wanted expert; experts compute the tokens alone"


def _crosses_nodes(layer: Layer, kind: str) -> bool:
    return any(len({layer.node(device) for device in group}) > 1 for group in layer.groups(kind))
