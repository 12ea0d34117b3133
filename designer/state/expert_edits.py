"""What a gesture on the experts makes of their homes: plain functions, as :mod:`meshwave.designer.state.design_edits` has for meshes.

``homes`` are the experts of each place: a device, or the devices that share an expert. ``names`` are
those places as a person calls them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import expert_layer, uses_tensor_parallel_groups
from meshwave.engine.document.expert_problems import EQUAL_BLOCKS, PLACEMENT, expert_problems, split_expert_groups
from meshwave.engine.document.experts import Experts, load_problems
from meshwave.engine.errors import InputError
from meshwave.engine.experts import Homes, Layer, equal_blocks, expert_schedules
from meshwave.engine.findings import DesignError, Problem

Chip = tuple[int, int]
"""An expert, and the place that holds it."""
FIRST_EXPERTS = 8
"""Of a model that gets experts by one click."""
GROUPS = ("ep", "esp")
"""The settings that are sizes of the experts' groups."""
LARGEST_LOAD = 1e6
"""Of one expert, in even shares; beyond it nothing changes to the eye."""


# where experts lie


def move(homes: Homes, chips: Iterable[Chip], to: int, names: Sequence[str]) -> Homes:
    """Give experts to another place; those that it has already are in the way."""
    chips = [chip for chip in chips if chip[1] != to]
    placed = _listed(homes)
    for expert, place in chips:
        _refuse_unknown(homes, expert, place, names)
        if expert in placed[to]:
            raise InputError(f"{_hold(names[to])} expert {expert} already; Delete takes a replica away")
        placed[place].remove(expert)
        placed[to].append(expert)
    return _homes(placed)


def replicate(homes: Homes, experts: Iterable[int], to: int, names: Sequence[str]) -> Homes:
    """Give a place replicas of experts that others keep."""
    placed = _listed(homes)
    for expert in dict.fromkeys(experts):
        if expert in placed[to]:
            raise InputError(f"{_hold(names[to])} expert {expert} already; a second replica there would do nothing")
        placed[to].append(expert)
    return _homes(placed)


def replicate_hot(homes: Homes, experts: Iterable[int], load: Sequence[float], nodes: Sequence[int]) -> Homes:
    """One more replica of each expert: on a node that has none where there is one, there on the emptiest place.

    ``load`` and ``nodes`` are of each place.
    """
    placed, filled = _listed(homes), list(load)
    for expert in dict.fromkeys(experts):
        holders = [place for place, held in enumerate(placed) if expert in held]
        free = [place for place in range(len(placed)) if place not in holders]
        if not free:
            raise InputError(f"expert {expert} is on every device already")
        seen = {nodes[place] for place in holders}
        to = min(free, key=lambda place: (nodes[place] in seen, filled[place], place))
        placed[to].append(expert)
        filled[to] += 1 / len(placed)  # so that the next one goes elsewhere
    return _homes(placed)


def remove(homes: Homes, chips: Iterable[Chip], names: Sequence[str]) -> Homes:
    """Take replicas away; an expert keeps its last one."""
    placed = _listed(homes)
    for expert, place in chips:
        _refuse_unknown(homes, expert, place, names)
        if sum(expert in held for held in placed) == 1:
            raise InputError(f"{_hold(names[place])} the only replica of expert {expert}; move it instead")
        placed[place].remove(expert)
    return _homes(placed)


def placement(layer: Layer, homes: Homes) -> list[list[int]] | None:
    """Homes as a document has them, for every device; None where they are equal blocks."""
    if layer.experts % layer.ep == 0 and homes == equal_blocks(layer.experts, layer.ep):
        return None
    return [list(held) for held in homes for _ in range(layer.esp)]


# how often they are chosen


def heat(shares: Sequence[float], experts: Iterable[int], factor: float) -> list[float]:
    """Loads, in even shares, of which those of some ``experts`` are so many times what they were."""
    loads = [share * len(shares) for share in shares]
    for expert in dict.fromkeys(experts):
        if not 0 <= expert < len(loads):
            raise InputError(f"there is no expert {expert}; the model has experts 0 to {len(loads) - 1}")
        loads[expert] = max(1e-3, min(LARGEST_LOAD, loads[expert] * factor))
    return [float(f"{load:.4g}") for load in loads]


# the layer as a whole


def add_experts(design: Design) -> dict[str, Any]:
    """The sections of a design whose model has experts: eight in every second block, over the devices of a mesh."""
    every = 2 if design.model.layers > 1 else 1
    model = {**design.model.model_dump(mode="json"), "moe": {"experts": FIRST_EXPERTS, "every": every}}
    ep = gcd(FIRST_EXPERTS, *sizes(design))
    schedule = "parm-auto" if any(mesh.tp > 1 for mesh in design.meshes) else "expert-parallel"
    kept = design.experts.model_dump(mode="json")
    return {
        "model": model,
        "experts": {**kept, "schedule": schedule, "ep": ep, "esp": 1, "placement": None, "load": None},
    }


def without_experts(design: Design) -> dict[str, Any]:
    """The sections of a design whose model has none: what would lie on devices goes with them."""
    kept, fresh = design.experts.model_dump(mode="json"), Experts().model_dump(mode="json")
    return {
        "model": {**design.model.model_dump(mode="json"), "moe": None},
        "experts": {**kept, **{key: fresh[key] for key in ("ep", "esp", "placement", "load")}},
    }


def sizes(design: Design) -> list[int]:
    """Devices of each mesh."""
    return [len(mesh.devices) for mesh in design.meshes]


def with_setting(design: Design, key: str, value: Any) -> dict[str, Any]:
    """The experts' section with one setting changed, and what has to follow it.

    ``ep`` and ``esp`` give way to each other, so that their groups divide the meshes; a schedule that
    keeps experts whole gets those devices as places. Homes that no longer fit go back to equal blocks.
    """
    section = {**design.experts.model_dump(mode="json"), key: value}
    common = gcd(*sizes(design))
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
    return {**section, "placement": section["placement"] if fits(changed) else None}


def idle(design: Design) -> str:
    """Why ``ep`` and ``esp`` play no part under the schedule; empty where they do. Both are kept for the next one."""
    if not uses_tensor_parallel_groups(design):
        return ""
    sizes = sorted({mesh.tp for mesh in design.meshes})
    over = f"{' or '.join(map(str, sizes))} device{'s' * (sizes != [1])}"
    title = expert_schedules[design.experts.schedule].title
    return f"{title} spreads whole experts over the {over} of a tensor-parallel group, so that ep and esp play no part"


def fits(design: Design) -> bool:
    """Whether the homes that are drawn are of the experts and places that there are."""
    drawn, moe = design.experts.placement, design.model.moe
    if drawn is None or moe is None:
        return True
    whole = design.experts.ep * design.experts.esp
    groups = {mesh.tp for mesh in design.meshes} if uses_tensor_parallel_groups(design) else {whole}
    return groups == {len(drawn)} and {expert for held in drawn for expert in held} == set(range(moe.experts))


def release(design: Design) -> Design:
    """Give up homes that no longer fit, as where ``ep`` or the number of experts changed, rather than refuse the edit."""
    if fits(design):
        return design
    return design.model_copy(update={"experts": design.experts.model_copy(update={"placement": None})})


def divisors(size: int) -> list[int]:
    return [part for part in range(1, size + 1) if size % part == 0]


def refuse_unfit(design: Design, rank: int, homes: Homes) -> Layer:
    """Return the layer with this placement on a mesh, if its schedule can run it.

    Raises:
        DesignError: the schedule cannot.
    """
    layer = drawn_layer(design, rank)
    given = placement(layer, homes)
    drawn = None if given is None else tuple(map(tuple, given))
    changed = design.model_copy(update={"experts": design.experts.model_copy(update={"placement": drawn})})
    known = list(expert_problems(design))
    for problem in expert_problems(changed):
        if problem.severity == "error" and problem not in known:
            raise DesignError([problem])
    return replace(layer, homes=homes)


def drawn_layer(design: Design, rank: int) -> Layer:
    """Return the expert layer on a mesh, with an explicit placement.

    Raises:
        DesignError: the model has no experts, or their groups, load or placement do not fit the mesh.
    """
    if problem := layer_problem(design, rank):
        raise DesignError([problem])
    layer = expert_layer(design, design.meshes[rank])
    return layer if layer.homes is not None else replace(layer, homes=equal_blocks(layer.experts, layer.ep))


def layer_problem(design: Design, rank: int) -> Problem | None:
    """Return why the expert layer on a mesh cannot be drawn; None if it can."""
    mesh, experts = design.meshes[rank], design.experts
    if design.model.moe is None:
        return Problem("model.moe", "missing_experts")
    if not uses_tensor_parallel_groups(design) and len(mesh.devices) % (experts.ep * experts.esp):
        return split_expert_groups(design, mesh)
    for problem in load_problems(experts.load, design.model.moe.experts):
        return problem.within("experts")
    return None if fits(design) else Problem(PLACEMENT, "mismatched_placement", fixes=[EQUAL_BLOCKS])


def as_given(design: Design, layer: Layer) -> Layer:
    """With no homes where the design gives none, so that a schedule can ask for equal blocks."""
    return layer if design.experts.placement is not None else replace(layer, homes=None)


def block_of(design: Design, rank: int, layer: Layer) -> tuple[tuple[int, ...], int]:
    """The devices that ``layer`` stands for, and how many blocks of the mesh are like it."""
    devices = design.meshes[rank].devices
    found = [devices[first : first + layer.devices] for first in range(0, len(devices), layer.devices)]
    nodes = [tuple(map(design.cluster.node_of, block)) for block in found]
    return found[nodes.index(layer.nodes or nodes[0])], len(found)


# in common


def _listed(homes: Homes) -> list[list[int]]:
    return [list(held) for held in homes]


def _homes(placed: Iterable[Iterable[int]]) -> Homes:
    return tuple(tuple(sorted(held)) for held in placed)


def _is_several(name: str) -> bool:
    return name.startswith("devices ")


def _hold(name: str) -> str:
    return f"{name} hold{'' if _is_several(name) else 's'}"


def _refuse_unknown(homes: Homes, expert: int, place: int, names: Sequence[str]) -> None:
    if not 0 <= place < len(homes) or expert not in homes[place]:
        where = names[place] if 0 <= place < len(names) else f"place {place}"
        raise InputError(f"{where} {'do' if _is_several(where) else 'does'} not hold expert {expert}")
