"""Comparison of expert schedules for one expert layer, either of a stand-alone document or of a design."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from meshwave.engine.costs.cost_model import layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layer_document import FORMAT, ExpertLayerSpec
from meshwave.engine.document.expert_layers import expert_layer, price_expert_layer, resolve_expert_layer
from meshwave.engine.document.expert_problems import partial_gate_params, rounded_capacity_warning
from meshwave.engine.document.meshes import find_mesh
from meshwave.engine.experts import (
    Collective,
    CostedStep,
    Layer,
    Links,
    Price,
    dropped_token_share,
    expert_schedule_names,
    expert_schedules,
    price_expert_schedule,
    simulate_layer,
)
from meshwave.engine.experts.auto import exclusions
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.messages import render
from meshwave.engine.predict.block_timeline import representative_places
from meshwave.engine.traffic import Traffic

WHOLE_EXPERTS_CODE = "sharded_experts"
"""Problem code of plain expert parallelism for a layout with expert shards (``esp`` above 1).

A stand-alone layer is priced despite this problem: each of the ``esp`` devices then holds whole experts, and exchanges
tokens for its own share.
"""


class ScheduleComparison(NamedTuple):
    """Prices of the schedules that can run a layer, and the reasons why others cannot."""

    prices: Mapping[str, Price]
    refused: Mapping[str, str]


def compare_schedules(layer: Layer, priced: Callable[[str], Price], ignored: str = "") -> ScheduleComparison:
    """Price every schedule that can run the layer; a problem with the code ``ignored`` does not exclude a schedule."""
    prices, refused = {}, {}
    for name in expert_schedule_names(option=False):
        found = next((each for each in expert_schedules[name]().problems(layer) if each.code != ignored), None)
        if found is None:
            prices[name] = priced(name)
        else:
            refused[name] = found.message
    return ScheduleComparison(prices, refused)


def expert_layer_json(spec: ExpertLayerSpec) -> dict[str, Any]:
    """Return the JSON data that ``meshwave moe --json`` prints for an expert-layer document.

    Bytes are those of the busiest rank; seconds are communication only.
    """
    layer, links = spec.layer, spec.lines
    found = compare_schedules(layer, lambda name: price_expert_schedule(name, layer, links), WHOLE_EXPERTS_CODE)
    answer = _comparison_data(layer, found, [*_common_notes(layer), *_layer_notes(layer, links)])
    for name, each in answer["schedules"].items():
        each["all_to_all"] = _all_to_all_data(found.prices[name], range(layer.devices))
    return answer


def design_expert_layer_json(design: Design, rank: int) -> dict[str, Any]:
    """Return the JSON data that ``meshwave moe --json`` prints for the expert layer of a design on mesh ``rank``.

    Each schedule is priced for one microbatch with the design's groups, links and devices. Seconds of the whole layer
    are added to those of communication, so that an automatic schedule makes the same choice as in the design.
    """
    mesh = design.meshes[rank]
    prices, refused = {}, {}
    for name in expert_schedule_names(option=False):
        changed = _replace_schedule(design, name)
        found = next(expert_schedules[name]().problems(expert_layer(changed, mesh)), None)
        if found is None:
            prices[name] = price_expert_layer(changed, mesh)
        else:
            refused[name] = found.message
    layer = resolve_expert_layer(design, mesh).layer
    notes = [*_common_notes(layer), *_design_notes(design)]
    answer = _comparison_data(layer, ScheduleComparison(prices, refused), notes)
    for name, each in answer["schedules"].items():
        ways = {"forward": prices[name].forward, "backward": prices[name].backward}
        each["seconds"] = {way: simulate_layer(prices[name], steps).makespan for way, steps in ways.items()}
        devices = [
            mesh.ordered_devices[place] for place in representative_places(_replace_schedule(design, name), rank)
        ]
        each["all_to_all"] = _all_to_all_data(prices[name], devices)
    return {
        **answer,
        "design": design.name,
        "mesh": mesh.name,
        "layer": _layer_data(layer),
        "schedule": design.experts.member,
    }


def exchange_traffic(priced: Price, direction: Sequence[CostedStep], devices: Sequence[int]) -> Traffic:
    """Return the traffic of the all-to-alls of a direction of a layer on ``devices``."""
    nodes = priced.layer.node_of.tolist()
    return Traffic.between_devices(devices, nodes, priced.exchanged_bytes(direction)).limit_rows()


def _all_to_all_data(priced: Price, devices: Sequence[int]) -> dict[str, Any]:
    ways = {"forward": priced.forward, "backward": priced.backward}
    return {way: exchange_traffic(priced, steps, devices).to_json() for way, steps in ways.items()}


def _replace_schedule(design: Design, name: str) -> Design:
    """Return the design with another expert schedule, given by its name."""
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
    """Return the rank of the mesh with the name or number ``wanted``, by default of the first mesh with experts.

    Raises:
        InputError: the mesh does not exist, or none of its stages has experts.
    """
    moe = design.model.moe
    if moe is None:
        raise Refusal("design_without_experts", {"design": design.name})
    program, ends = lower(design), [*accumulate(layers_per_stage(design))]
    stages = {bisect_right(ends, block) for block in design.model.expert_blocks}
    having = sorted({rank for stage in stages for rank in program.ranks_of(stage)})
    if not having:
        raise Refusal("no_expert_block", {"every": moe.every, "layers": design.model.layers})
    rank = having[0] if wanted is None else find_mesh(design.meshes, wanted)
    if rank not in having:
        names = ", ".join(design.meshes[each].name for each in having)
        raise Refusal("mesh_without_experts", {"mesh": design.meshes[rank].name, "others": names})
    return rank


def _comparison_data(layer: Layer, found: ScheduleComparison, notes: list[str]) -> dict[str, Any]:
    rule, auto = found.prices["parm-auto"].choice, found.prices["auto"].choice
    assert rule is not None and auto is not None
    excluded = {name: problem.message for name, problem in exclusions(layer)}
    return {
        "format": FORMAT,
        "capacity": layer.capacity,
        "input_bytes": layer.input_bytes,
        "slots_bytes": layer.slots_bytes,
        "schedules": {name: schedule_figures(priced) for name, priced in found.prices.items()},
        "refused": dict(found.refused),
        "choice": rule.name,
        "reason": rule.reason,
        "auto": {"choice": auto.name, "reason": auto.reason, "left_out": excluded},
        "notes": notes,
    }


def schedule_figures(priced: Price) -> dict[str, Any]:
    """Return the collectives of a schedule in both directions, and FLOPs and parameters of one device's experts."""
    return {
        "title": expert_schedules[priced.name].title,
        "runs": priced.name,
        "forward": [_collective_data(each) for each in priced.collectives(priced.forward)],
        "backward": [_collective_data(each) for each in priced.collectives(priced.backward)],
        "communication_s": {
            "forward": priced.communication_s(priced.forward),
            "backward": priced.communication_s(priced.backward),
        },
        "flops": priced.flops,
        "parameters": priced.expert_weights,
        "dropped": dropped_token_share(priced.name, priced.layer),
    }


def _collective_data(each: Collective) -> dict[str, Any]:
    return each._asdict()


def _layer_notes(layer: Layer, links: Links) -> Iterator[str]:
    """Yield the assumptions made for a stand-alone layer."""
    if layer.esp > 1:
        yield (
            f"expert-parallel does not shard experts: esp={layer.esp} is not used; each group of ep={layer.ep} "
            "exchanges its own tokens"
        )
    if links.fit:
        yield f"measured alpha and beta are used for {', '.join(links.fit)}; other collectives are priced from the link rates"
    if links.fit and "overlap" not in links.fit and "all_gather" in links.fit:
        yield "the measurements include no overlap: parm-s2 is assumed to run its all-gather after its all-to-all"
    yield "times include communication only; auto compares these times because the document gives no compute speed"


def _design_notes(design: Design) -> Iterator[str]:
    """Yield the assumptions made for a layer of a design."""
    yield (
        "the listed times include communication only; auto compares the time of the whole layer, which adds the gate, the sorting of tokens and the experts"
    )
    if design.cost.profile_name:
        yield "link and device speeds come from the cluster; the design's calibration profile applies to pipeline blocks only"


def _common_notes(layer: Layer) -> Iterator[str]:
    """Yield the assumptions made for any layer."""
    if rounded := rounded_capacity_warning(layer):
        yield rounded.message
    crossing = [kind for kind in ("mp", "esp") if _crosses_nodes(layer, kind)]
    if crossing:
        yield f"groups of {' and '.join(crossing)} span nodes; their ring collectives use the links between nodes"
    if layer.may_drop and layer.mp > 1:
        yield render("partial_gate", partial_gate_params("parm-s1", layer))
    if layer.load and not layer.placement and layer.capacity_factor is not None:
        yield "experts compute all slots of their capacity: the load changes dropped tokens, not the time"
    if layer.load and layer.capacity_factor is None:
        yield "exchanges are padded to the busiest expert; experts compute their actual tokens only"


def _crosses_nodes(layer: Layer, kind: str) -> bool:
    return any(len({layer.node(device) for device in group}) > 1 for group in layer.groups(kind))
