"""Edits of the expert placement and load, by gestures on the expert canvas.

``placement`` lists the experts of each place; a place is a device, or the group of devices that share an expert. ``places``
are the devices of each place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON, expert_layer, uses_tensor_parallel_groups
from meshwave.engine.document.expert_problems import EQUAL_BLOCKS, PLACEMENT, expert_group_problem, expert_problems
from meshwave.engine.document.experts import Experts, load_problems
from meshwave.engine.experts import Layer, Placement, equal_blocks, expert_schedules
from meshwave.engine.findings import DesignError, Problem, Refusal

Places = Sequence[Sequence[int]]
Chip = tuple[int, int]
"""An expert, and the place of one of its replicas."""
FIRST_EXPERTS = 8
"""Number of experts that the button for a model without experts adds."""
GROUPS = ("ep", "esp")
"""Settings that are sizes of expert groups."""
UNPLACED: Mapping[str, Any] = {"placement": None, "load": None, "layers": []}
"""Settings of experts in equal blocks with a uniform load."""
LARGEST_LOAD = 1e6
"""Largest load of one expert, relative to an even load."""


# ---- placement ----


def move_experts(placement: Placement, chips: Iterable[Chip], to: int, places: Places) -> Placement:
    """Move replicas of experts to another place.

    Raises:
        Refusal: the place already holds one of the experts.
    """
    chips = [chip for chip in chips if chip[1] != to]
    placed = _to_lists(placement)
    for expert, place in chips:
        _check_has_expert(placement, expert, place, places)
        if expert in placed[to]:
            raise Refusal("expert_held_already", {"devices": places[to], "expert": expert})
        placed[place].remove(expert)
        placed[to].append(expert)
    return _sorted_placement(placed)


def replicate_experts(placement: Placement, experts: Iterable[int], to: int, places: Places) -> Placement:
    """Add a replica of each expert to a place.

    Raises:
        Refusal: the place already holds one of the experts.
    """
    placed = _to_lists(placement)
    for expert in dict.fromkeys(experts):
        if expert in placed[to]:
            raise Refusal("replica_without_effect", {"devices": places[to], "expert": expert})
        placed[to].append(expert)
    return _sorted_placement(placed)


def place_replicas(
    placement: Placement, experts: Iterable[int], load: Sequence[float], nodes: Sequence[int]
) -> Placement:
    """Add a replica of each expert on the least loaded place, on a node without the expert if there is one.

    ``load`` and ``nodes`` have one entry per place.

    Raises:
        Refusal: an expert is on every place already.
    """
    placed, filled = _to_lists(placement), list(load)
    for expert in dict.fromkeys(experts):
        holders = [place for place, held in enumerate(placed) if expert in held]
        free = [place for place in range(len(placed)) if place not in holders]
        if not free:
            raise Refusal("expert_everywhere", {"expert": expert})
        seen = {nodes[place] for place in holders}
        to = min(free, key=lambda place: (nodes[place] in seen, filled[place], place))
        placed[to].append(expert)
        filled[to] += 1 / len(placed)  # so that the next expert is placed elsewhere
    return _sorted_placement(placed)


def remove_replicas(placement: Placement, chips: Iterable[Chip], places: Places) -> Placement:
    """Remove replicas of experts.

    Raises:
        Refusal: one of the replicas is the last replica of its expert.
    """
    placed = _to_lists(placement)
    for expert, place in chips:
        _check_has_expert(placement, expert, place, places)
        if sum(expert in held for held in placed) == 1:
            raise Refusal("last_replica", {"devices": places[place], "expert": expert})
        placed[place].remove(expert)
    return _sorted_placement(placed)


def placement_setting(layer: Layer, placement: Placement) -> list[list[int]] | None:
    """Return a placement as it is stored in the document: the experts of each device, or None for equal blocks."""
    if layer.experts % layer.ep == 0 and placement == equal_blocks(layer.experts, layer.ep):
        return None
    return [list(held) for held in placement for _ in range(layer.esp)]


# ---- layers with a placement or a load of their own ----


def design_of_layer(design: Design, number: int) -> Design:
    """Return the design with the placement and the load of a layer for all layers."""
    if number not in design.experts.own_layers:
        return design
    return design.model_copy(update={"experts": design.experts.section_of_layer(number)})


def layer_setting_edit(design: Design, number: int, key: str, value: Any) -> tuple[str, Any]:
    """Return the path and the value of the edit that sets the placement or load of one layer, or of the layers without their own."""
    if number == COMMON:
        return f"experts.{key}", value
    found = {each.layer: each.model_dump(mode="json") for each in design.experts.layers}
    found[number] = {"layer": number, "placement": None, "load": None, **found.get(number, {}), key: value}
    kept = [own for _, own in sorted(found.items()) if (own["placement"], own["load"]) != (None, None)]
    return "experts.layers", kept


# ---- load ----


def scale_loads(shares: Sequence[float], experts: Iterable[int], factor: float) -> list[float]:
    """Return the loads relative to an even load, with the loads of some experts multiplied by a factor."""
    loads = [share * len(shares) for share in shares]
    for expert in dict.fromkeys(experts):
        if not 0 <= expert < len(loads):
            raise Refusal("unknown_expert", {"expert": expert, "last": len(loads) - 1})
        loads[expert] = max(1e-3, min(LARGEST_LOAD, loads[expert] * factor))
    return [float(f"{load:.4g}") for load in loads]


# ---- the layer as a whole ----


def add_experts(design: Design) -> dict[str, Any]:
    """Return the sections of the design with eight experts in every second block, spread over each mesh."""
    every = 2 if design.model.layers > 1 else 1
    model = {**design.model.model_dump(mode="json"), "moe": {"experts": FIRST_EXPERTS, "every": every}}
    ep = gcd(FIRST_EXPERTS, *mesh_sizes(design))
    schedule = "parm-auto" if any(mesh.tp > 1 for mesh in design.meshes) else "expert-parallel"
    kept = design.experts.model_dump(mode="json")
    return {
        "model": model,
        "experts": {**kept, "schedule": schedule, "ep": ep, "esp": 1, **UNPLACED},
    }


def remove_experts(design: Design) -> dict[str, Any]:
    """Return the sections of the design without experts and without the settings that depend on them."""
    kept, fresh = design.experts.model_dump(mode="json"), Experts().model_dump(mode="json")
    return {
        "model": {**design.model.model_dump(mode="json"), "moe": None},
        "experts": {**kept, **{key: fresh[key] for key in ("ep", "esp", *UNPLACED)}},
    }


def mesh_sizes(design: Design) -> list[int]:
    """Return the number of devices of each mesh."""
    return [len(mesh.devices) for mesh in design.meshes]


def change_setting(design: Design, key: str, value: Any) -> dict[str, Any]:
    """Return the experts section with one setting changed and dependent settings adjusted.

    ``ep`` and ``esp`` are adjusted so that their groups divide the meshes. A schedule that does not shard experts uses
    the devices of ``esp`` for ``ep``. A placement that no longer fits is reset to equal blocks.
    """
    section = {**design.experts.model_dump(mode="json"), key: value}
    common = gcd(*mesh_sizes(design))
    if key in GROUPS and common % value == 0 and common % (section["ep"] * section["esp"]):
        other = "esp" if key == "ep" else "ep"
        section[other] = max(size for size in divisors(common // value) if size <= section[other])
    if key == "schedule" and value != "deepspeed":
        section["variant"] = Experts.model_fields["variant"].default
    if key == "schedule" and expert_schedules[value].places == "ep" and not expert_schedules[value].shards_experts:
        whole, moe = section["ep"] * section["esp"], design.model.moe
        section["ep"] = whole if moe is not None and moe.experts % whole == 0 else section["ep"]
        section["esp"] = 1
    changed = design.model_copy(update={"experts": Experts.model_validate_json(json.dumps(section))})
    return section if placement_fits(changed) else {**section, "placement": None, "layers": []}


def unused_groups_problem(design: Design) -> Problem | None:
    """Return the reason why the schedule ignores ``ep`` and ``esp``; None if it uses them."""
    if not uses_tensor_parallel_groups(design):
        return None
    params = {
        "title": expert_schedules[design.experts.schedule].title,
        "sizes": sorted({mesh.tp for mesh in design.meshes}),
    }
    return Problem("experts", "unused_groups", params)


def placement_fits(design: Design) -> bool:
    """Return whether the placement matches the number of experts and places."""
    experts, moe = design.experts, design.model.moe
    if moe is None:
        return True
    placements = (experts.placement, *(each.placement for each in experts.layers))
    groups = {mesh.tp for mesh in design.meshes} if uses_tensor_parallel_groups(design) else {experts.ep * experts.esp}
    return all(
        groups == {len(drawn)} and {expert for held in drawn for expert in held} == set(range(moe.experts))
        for drawn in placements
        if drawn is not None
    )


def drop_misfit_placement(design: Design) -> Design:
    """Reset a placement that no longer matches the experts or places, instead of refusing the edit."""
    if placement_fits(design):
        return design
    return design.model_copy(update={"experts": design.experts.model_copy(update={"placement": None, "layers": ()})})


def divisors(size: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    return [part for part in range(1, size + 1) if size % part == 0]


def check_placement(design: Design, rank: int, placement: Placement) -> Layer:
    """Return the layer with this placement on a mesh.

    Raises:
        DesignError: the schedule cannot run it.
    """
    layer = drawn_layer(design, rank)
    given = placement_setting(layer, placement)
    drawn = None if given is None else tuple(map(tuple, given))
    changed = design.model_copy(update={"experts": design.experts.model_copy(update={"placement": drawn})})
    known = list(expert_problems(design))
    for problem in expert_problems(changed):
        if problem.severity == "error" and problem not in known:
            raise DesignError([problem])
    return replace(layer, placement=placement)


def drawn_layer(design: Design, rank: int) -> Layer:
    """Return the expert layer on a mesh, with an explicit placement.

    Raises:
        DesignError: the model has no experts, or their groups, load or placement do not fit the mesh.
    """
    if problem := layer_problem(design, rank):
        raise DesignError([problem])
    layer = expert_layer(design, design.meshes[rank])
    return layer if layer.placement is not None else replace(layer, placement=equal_blocks(layer.experts, layer.ep))


def layer_problem(design: Design, rank: int) -> Problem | None:
    """Return the reason why the expert layer on a mesh cannot be drawn; None if it can."""
    mesh, experts = design.meshes[rank], design.experts
    if design.model.moe is None:
        return Problem("model.moe", "missing_experts")
    if not uses_tensor_parallel_groups(design) and len(mesh.devices) % (experts.ep * experts.esp):
        return expert_group_problem(design, mesh)
    for problem in load_problems(experts.load, design.model.moe.experts):
        return problem.with_path_prefix("experts")
    return None if placement_fits(design) else Problem(PLACEMENT, "mismatched_placement", fixes=[EQUAL_BLOCKS])


def restore_implicit_placement(design: Design, layer: Layer) -> Layer:
    """Return the layer without an explicit placement if the design has none: some schedules require equal blocks."""
    return layer if design.experts.placement is not None else replace(layer, placement=None)


def find_block(design: Design, rank: int, layer: Layer) -> tuple[tuple[int, ...], int]:
    """Return the devices that ``layer`` represents, and the number of identical groups of devices in the mesh."""
    devices = design.meshes[rank].ordered_devices
    found = [devices[first : first + layer.devices] for first in range(0, len(devices), layer.devices)]
    nodes = [tuple(map(design.cluster.node_of, block)) for block in found]
    return found[nodes.index(layer.nodes or nodes[0])], len(found)


# ---- helpers ----


def _to_lists(placement: Placement) -> list[list[int]]:
    return [list(held) for held in placement]


def _sorted_placement(placed: Iterable[Iterable[int]]) -> Placement:
    return tuple(tuple(sorted(held)) for held in placed)


def _check_has_expert(placement: Placement, expert: int, place: int, places: Places) -> None:
    if not 0 <= place < len(placement):
        raise Refusal("unknown_expert_place", {"place": place, "last": len(placement) - 1})
    if expert not in placement[place]:
        raise Refusal("expert_not_held", {"devices": places[place], "expert": expert})
