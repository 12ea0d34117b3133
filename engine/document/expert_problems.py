"""Problems of the experts of a design: groups, load, placement and schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshwave.engine.document.expert_layers import (
    COMMON,
    expert_group_sizes,
    expert_layer,
    expert_schedule,
    resolve_expert_layer,
    uses_tensor_parallel_groups,
)
from meshwave.engine.document.experts import load_problems
from meshwave.engine.document.fixes import mesh_axes_fix
from meshwave.engine.experts import Layer, device_load, device_rows, expert_schedules, indivisible_experts
from meshwave.engine.findings import Fix, Problem, set_key_fix

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design
    from meshwave.engine.document.meshes import Mesh

PATHS = {
    "ep": "experts.ep",
    "esp": "experts.esp",
    "placement": "experts.placement",
    "tokens": "training.micro_batch_size",
    "top_k": "model.moe.top_k",
    "capacity_factor": "model.moe.capacity_factor",
}
"""Path of the design key for each field of a layer; ``mp`` is the tp of the mesh."""
CAPACITY = "model.moe.capacity_factor"
PLACEMENT = "experts.placement"
EQUAL_BLOCKS = Fix("equal_blocks", {}, ((PLACEMENT, None),))


def expert_problems(design: Design) -> Iterator[Problem]:
    """Yield all errors and warnings about the experts of a design whose parts are individually valid."""
    if design.model.moe is None:
        yield from _unused_settings(design)
        return
    found = [*_group_problems(design), *_load_problems(design), *_placement_problems(design)]
    if not found:
        found += [*_own_layer_problems(design), *_rebalance_problems(design)]
    yield from found
    yield from _auxiliary_loss_problems(design)
    if not any(problem.severity == "error" for problem in found):
        yield from _schedule_problems(design)


def _unused_settings(design: Design) -> Iterator[Problem]:
    """Yield expert settings of a design whose model has no experts."""
    experts, fields = design.experts, type(design.experts).model_fields
    for key in ("ep", "esp", "placement", "load", "layers", "rebalance_steps"):
        default = fields[key].default
        if getattr(experts, key) != default:
            where = f"experts.{key}"
            yield Problem(where, "unused_expert_setting", {"key": key}, "warning", [set_key_fix(where, default)])


# ---- groups ----


def _group_problems(design: Design) -> Iterator[Problem]:
    if uses_tensor_parallel_groups(design):
        yield from _unused_group_sizes(design)
        return
    moe, experts = design.model.moe, design.experts
    assert moe is not None
    ep, esp, devices = experts.ep, experts.esp, sum(len(mesh.devices) for mesh in design.meshes)
    if moe.experts % ep and experts.placement is None:
        yield indivisible_experts(moe.experts, ep).with_path_prefix("experts")
    elif ep * esp > devices:
        params = {"given": ep * esp, "ep": ep, "esp": esp, "devices": devices}
        sizes = expert_group_sizes(design, max(design.meshes, key=lambda mesh: len(mesh.devices)))
        yield Problem("experts.ep", "expert_devices", params, fixes=[group_sizes_fix(*sizes)])
    else:
        yield from _mesh_group_problems(design)


def group_sizes_fix(ep: int, esp: int) -> Fix:
    """Return the fix that sets the sizes of the expert groups."""
    return Fix("use_expert_groups", {"ep": ep, "esp": esp}, (("experts.ep", ep), ("experts.esp", esp)))


def _unused_group_sizes(design: Design) -> Iterator[Problem]:
    title = expert_schedule(design).title
    for key, unused in (("ep", {1, *(mesh.tp for mesh in design.meshes)}), ("esp", {1})):
        value, where = getattr(design.experts, key), f"experts.{key}"
        if value not in unused:
            params = {"title": title, "key": key, "value": value}
            yield Problem(where, "unused_group_size", params, "warning", [set_key_fix(where, 1)])


def expert_group_problem(design: Design, mesh: Mesh) -> Problem:
    """Return the problem of expert groups that do not fit into a mesh."""
    ep, esp = expert_group_sizes(design, mesh)
    given = {"ep": design.experts.ep, "esp": design.experts.esp, "devices": len(mesh.devices), "mesh": mesh.name}
    params = {**given, "fitting_ep": ep, "fitting_esp": esp}
    return Problem("experts.ep", "split_expert_groups", params, fixes=[group_sizes_fix(ep, esp)])


def _mesh_group_problems(design: Design) -> Iterator[Problem]:
    """Yield problems of groups of ep x esp devices that do not fit into meshes or split tensor-parallel groups."""
    ep, esp = design.experts.ep, design.experts.esp
    split = next((mesh for mesh in design.meshes if len(mesh.devices) % (ep * esp)), None)
    if split is not None:
        yield expert_group_problem(design, split).replace(severity="warning")
    for number, mesh in _valid_meshes(design):
        mesh_ep, mesh_esp = expert_group_sizes(design, mesh)
        if mesh_ep * mesh_esp % mesh.tp:
            where = "experts.ep" if split is None else f"meshes[{number}].axes.tp"
            advice, fixes = _fitting_groups(design, number, mesh)
            params = {"mesh": mesh.name, "tp": mesh.tp, "ep": mesh_ep, "esp": mesh_esp, "advice": advice}
            yield Problem(where, "split_tensor_parallel_groups", params, fixes=fixes)
            return


def _valid_meshes(design: Design) -> Iterator[tuple[int, Mesh]]:
    """Yield the meshes whose tp divides the heads of the model, with their numbers."""
    return (
        (number, mesh) for number, mesh in enumerate(design.meshes) if design.model.supports_tensor_parallelism(mesh.tp)
    )


def _fitting_groups(design: Design, number: int, mesh: Mesh) -> tuple[str, list[Fix]]:
    """Return advice on expert groups that contain whole tensor-parallel groups of a mesh, and its fixes."""
    moe, esp, devices = design.model.moe, design.experts.esp, len(mesh.devices)
    assert moe is not None
    sizes = (ep for ep in range(1, moe.experts + 1) if moe.experts % ep == 0)
    ep = next((ep for ep in sizes if ep * esp % mesh.tp == 0 and devices % (ep * esp) == 0), None)
    if ep is not None:
        return f"set ep to {ep}", [set_key_fix("experts.ep", ep)]
    if design.model.ffn_hidden % mesh.tp == 0 and design.experts.ep == 1:
        return f"set esp to {mesh.tp}", [set_key_fix("experts.esp", mesh.tp)]
    return "use another tp, or another number of experts", [mesh_axes_fix(number, mesh, 1)]


def _auxiliary_loss_problems(design: Design) -> Iterator[Problem]:
    """Yield a warning about an auxiliary loss over unequal meshes.

    A gate balances the tokens of its own replica of a mesh. The loss is not a sum over tokens: its mean over many small
    groups differs from its mean over few large groups.
    """
    moe, copies = design.model.moe, {mesh.dp: mesh.name for mesh in reversed(design.meshes)}
    if moe is None or not moe.aux_loss or len(copies) == 1:
        return
    where = "model.moe.aux_loss"
    params = {"sizes": [f"dp={dp} on {name}" for dp, name in sorted(copies.items())]}
    yield Problem(where, "unequal_token_groups", params, "warning", [set_key_fix(where, 0.0)])


# ---- load and placement ----


def _load_problems(design: Design) -> Iterator[Problem]:
    assert design.model.moe is not None
    for problem in load_problems(design.experts.load, design.model.moe.experts):
        yield problem.with_path_prefix("experts")


def _placement_problems(design: Design) -> Iterator[Problem]:
    moe, placement = design.model.moe, design.experts.placement
    assert moe is not None
    if placement is None:
        return
    if len(placement) > design.cluster.devices:
        params = {"given": len(placement), "devices": design.cluster.devices}
        yield _placement_problem("placement_devices", params)
        return
    wrong = list(_expert_number_problems(placement, moe.experts))
    missing = sorted(set(range(moe.experts)) - {expert for experts in placement for expert in experts})
    if wrong:
        yield from wrong
    elif placement and missing:
        yield _placement_problem("unplaced_expert", {"expert": missing[0]})
    else:
        yield from _place_problems(design, placement)


def _placement_problem(code: str, params: Mapping[str, Any], device: int | None = None) -> Problem:
    where = PLACEMENT if device is None else f"{PLACEMENT}[{device}]"
    return Problem(where, code, params, fixes=[EQUAL_BLOCKS])


def _expert_number_problems(placement: tuple[tuple[int, ...], ...], count: int) -> Iterator[Problem]:
    """Yield problems of experts that do not exist, or that a device lists twice."""
    for device, experts in enumerate(placement):
        unknown = [expert for expert in experts if expert >= count]
        repeated = [expert for number, expert in enumerate(experts) if expert in experts[:number]]
        if unknown:
            yield _placement_problem("unknown_expert", {"expert": unknown[0], "last": count - 1}, device)
        elif repeated:
            once = set_key_fix(f"{PLACEMENT}[{device}]", list(dict.fromkeys(experts)))
            yield _placement_problem("repeated_expert", {"expert": repeated[0]}, device).replace(fixes=(once,))


def _place_problems(design: Design, placement: tuple[tuple[int, ...], ...]) -> Iterator[Problem]:
    """Yield problems of placements with a wrong size, or with different experts on devices that share experts."""
    mesh = next((mesh for mesh in design.meshes if len(placement) != _expert_group_size(design, mesh)), None)
    if mesh is not None:
        sizes = f"ep={design.experts.ep} x esp={design.experts.esp}"
        group = f"tp={mesh.tp} of mesh {mesh.name}" if uses_tensor_parallel_groups(design) else sizes
        params = {"given": len(placement), "group": f"a group of {group}", "expected": _expert_group_size(design, mesh)}
        yield _placement_problem("placement_size", params)
        return
    esp = 1 if uses_tensor_parallel_groups(design) else design.experts.esp
    for device, experts in enumerate(placement):
        first = device // esp * esp
        if set(experts) != set(placement[first]):
            params = {"device": device, "first": first, "esp": esp, "experts": list(placement[first])}
            same = set_key_fix(f"{PLACEMENT}[{device}]", list(placement[first]))
            yield _placement_problem("unequal_shards", params, device).replace(fixes=(same,))


def _expert_group_size(design: Design, mesh: Mesh) -> int:
    """Return the number of devices of one expert group on a mesh."""
    return mesh.tp if uses_tensor_parallel_groups(design) else design.experts.ep * design.experts.esp


# ---- layers with a placement or a load of their own ----


def _own_layer_problems(design: Design) -> Iterator[Problem]:
    numbers = design.experts.own_layers
    for index, own in enumerate(design.experts.layers):
        where, changed = f"experts.layers[{index}]", {"experts": design.experts.section_of_layer(own.layer)}
        removed = [
            set_key_fix("experts.layers", [each.model_dump() for each in design.experts.layers if each is not own])
        ]
        if own.layer not in design.model.expert_blocks:
            params = {"layer": own.layer, "layers": list(design.model.expert_blocks)}
            yield Problem(f"{where}.layer", "layer_without_experts", params, fixes=removed)
        elif own.layer in numbers[:index]:
            yield Problem(f"{where}.layer", "repeated_expert_layer", {"layer": own.layer}, fixes=removed)
        else:
            section_of_layer = design.model_copy(update=changed)
            found = [*_load_problems(section_of_layer), *_placement_problems(section_of_layer)]
            yield from (
                problem.replace(where=problem.where.replace("experts", where, 1), fixes=tuple(removed))
                for problem in found
            )


def _rebalance_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem if places that exchange experts hold different numbers of them, or the same expert."""
    experts = design.experts
    placements = (experts.placement, *(each.placement for each in experts.layers))
    is_uneven = any(len({len(held) for held in placement}) > 1 for placement in placements if placement is not None)
    has_replicas = any(experts.section_of_layer(number).has_replicas for number in (COMMON, *experts.own_layers))
    if experts.rebalance_steps is not None and (is_uneven or has_replicas):
        where = "experts.rebalance_steps"
        yield Problem(where, "uneven_rebalanced_placement", fixes=[set_key_fix(where, None)])


# ---- the schedule ----


def _schedule_problems(design: Design) -> Iterator[Problem]:
    """Yield problems and warnings of the schedule on each mesh, without repetition for equal meshes."""
    known: list[Problem] = []
    for number, mesh in _valid_meshes(design):
        layer, schedule = expert_layer(design, mesh), expert_schedule(design)
        found = list(schedule.problems(layer))
        for problem in found:
            if not any(problem == each for each in known):
                yield _problem_of_design(design, number, problem)
        known += found
        if found:
            continue
        warnings = (*_rounding_problems(layer), *_slot_problems(layer, schedule.places), *_gate_problems(design, mesh))
        for warning in warnings:
            if not any(warning.code == each.code for each in known):
                yield warning
            known.append(warning)


def _problem_of_design(design: Design, number: int, problem: Problem) -> Problem:
    """Convert a problem of a layer on a mesh to a problem of the design."""
    where = PATHS.get(problem.where, f"meshes[{number}].axes.tp")
    fixes = (_fix_of_design(design, number, *edit) for fix in problem.fixes for edit in fix.edits)
    return problem.replace(where=where, fixes=tuple(fix for fix in fixes if fix is not None))


def _fix_of_design(design: Design, number: int, field: str, value: Any) -> Fix | None:
    """Return the fix of a design that sets a field of a layer; None if no key corresponds to the field."""
    mesh = design.meshes[number]
    if field == "placement":
        return EQUAL_BLOCKS
    if field == "mp":
        fits = len(mesh.devices) % value == 0 and design.model.supports_tensor_parallelism(value)
        return mesh_axes_fix(number, mesh, value) if fits else None
    if field == "tokens":
        size = design.training.micro_batch_size
        sizes = range(size + 1, size + mesh.tp * mesh.dp + 1)
        share = design.model.sequence * design.meshes[0].dp
        fitting = next((size for size in sizes if size * share % (mesh.dp * mesh.tp) == 0), None)
        return None if fitting is None else set_key_fix(PATHS[field], fitting)
    return set_key_fix(PATHS[field], value)


def _rounding_problems(layer: Layer) -> Iterator[Problem]:
    rounded = rounded_capacity_warning(layer)
    if rounded is not None and layer.capacity_factor is not None:
        yield rounded


def rounded_capacity_warning(layer: Layer) -> Problem | None:
    """Return the warning that slots are rounded up for the devices and chunks that share them; None if they are not."""
    if layer.slots_needed == layer.capacity:
        return None
    params = {"slots": layer.slots_needed, "capacity": layer.capacity, "mp": layer.mp, "degree": layer.degree}
    return Problem(CAPACITY, "rounded_capacity", params, "warning")


UNEVEN = 1.02
"""Rows on the fullest device, relative to an even share, above which a placement is reported as slower."""


def _slot_problems(layer: Layer, places: str) -> Iterator[Problem]:
    """Yield a warning if a placement follows the load but takes longer than equal blocks, because slots are padded."""
    if layer.placement is None or layer.load is None or layer.capacity_factor is None:
        return
    slots, tokens = (float(share(layer, places).max()) for share in (device_rows, device_load))
    if slots > UNEVEN:
        params = {"slots": slots, "tokens": tokens, "divisible": layer.experts % layer.ep == 0}
        yield Problem(PLACEMENT, "unbalanced_slots", params, "warning", [set_key_fix(CAPACITY, None)])


def _gate_problems(design: Design, mesh: Mesh) -> Iterator[Problem]:
    name, layer, choice = resolve_expert_layer(design, mesh)
    if mesh.tp == 1 or not expert_schedules[name].gate_sees_part or not layer.may_drop:
        return
    params = {**partial_gate_params(name, layer), "chosen_by": design.experts.member if choice else None}
    yield Problem("experts.schedule", "partial_gate", params, "warning", [set_key_fix(CAPACITY, None)])


def partial_gate_params(schedule: str, layer: Layer) -> dict[str, Any]:
    """Return the message parameters for a gate that processes only a part of the tokens."""
    return {"schedule": schedule, "mp": layer.mp, "slots": layer.capacity // layer.mp}
