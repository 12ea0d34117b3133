"""What is wrong with the experts of a design, in words: their groups, their homes, their schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwave.engine.document.expert_layers import expert_layer, expert_schedule, folded, group_sizes, resolved
from meshwave.engine.document.experts import load_problems
from meshwave.engine.experts import Layer, device_load, device_rows, expert_schedules
from meshwave.engine.findings import Problem

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design
    from meshwave.engine.document.meshes import Mesh

FIELDS = {
    "ep": "experts.ep",
    "esp": "experts.esp",
    "homes": "experts.placement",
    "tokens": "training.micro_batch_size",
    "top_k": "model.moe.top_k",
    "capacity_factor": "model.moe.capacity_factor",
}
"""Where a field of a layer comes from; ``mp`` from the mesh."""


def expert_problems(design: Design) -> Iterator[Problem]:
    """Everything that is wrong or unwise about the experts of a design whose parts are sound by themselves."""
    if design.model.moe is None:
        yield from _no_experts(design)
        return
    found = [*_groups(design), *_load(design), *_homes(design)]
    yield from found
    yield from _other_groups_of_tokens(design)
    if not any(problem.severity == "error" for problem in found):
        yield from _of_the_schedule(design)


def _no_experts(design: Design) -> Iterator[Problem]:
    """What is said of experts that the model does not have."""
    experts, fields = design.experts, type(design.experts).model_fields
    for key in ("ep", "esp", "placement", "load"):
        if getattr(experts, key) != fields[key].default:
            message = f"{key} changes nothing: the model has no experts; give it some in model.moe, or take {key} out"
            yield Problem(f"experts.{key}", "experts_unused", message, "warning")


# ---- groups ----


def _groups(design: Design) -> Iterator[Problem]:
    if folded(design):
        yield from _in_tensor_parallel_groups(design)
        return
    moe, experts = design.model.moe, design.experts
    assert moe is not None
    ep, esp = experts.ep, experts.esp
    drawn = sum(len(mesh.devices) for mesh in design.meshes)
    if moe.experts % ep and experts.placement is None:
        message = f"ep={ep} does not divide {moe.experts} experts; use a divisor"
        yield Problem("experts.ep", "ep_experts", message)
    elif ep * esp > drawn:
        message = f"ep={ep} x esp={esp} needs {ep * esp} devices, and all meshes have {drawn}; use a smaller one"
        yield Problem("experts.ep", "experts_devices", message)
    else:
        yield from _on_meshes(design)


def _in_tensor_parallel_groups(design: Design) -> Iterator[Problem]:
    title = expert_schedule(design).title
    for key, unset in (("ep", {1, *(mesh.tp for mesh in design.meshes)}), ("esp", {1})):
        given = getattr(design.experts, key)
        if given not in unset:
            message = f"{title} keeps whole experts on the devices of each tensor-parallel group, so that {key}={given} plays no part; set it to 1"
            yield Problem(f"experts.{key}", "experts_folded", message, "warning")


def _on_meshes(design: Design) -> Iterator[Problem]:
    """One group of ep x esp devices holds each expert once, and whole tensor-parallel groups."""
    ep, esp = design.experts.ep, design.experts.esp
    torn = next((mesh for mesh in design.meshes if len(mesh.devices) % (ep * esp)), None)
    if torn is not None:
        has = f"{len(torn.devices)} device{'s' * (len(torn.devices) > 1)}"
        fits = "ep={} x esp={}".format(*group_sizes(design, torn))
        message = (
            f"groups of ep={ep} x esp={esp} devices do not divide the {has} of mesh {torn.name}; groups would cross "
            f"meshes, so that it is planned with {fits} there and cannot run: set these"
        )
        yield Problem("experts.ep", "experts_mesh", message, "warning")
    for number, mesh in _cut(design):
        here_ep, here_esp = group_sizes(design, mesh)
        if here_ep * here_esp % mesh.tp:
            message = (
                f"the tp={mesh.tp} devices of mesh {mesh.name} hold the same tokens, so that groups of experts take "
                f"them whole, and ep={here_ep} x esp={here_esp} does not; {_fitting(design, mesh)}"
            )
            yield Problem("experts.ep" if torn is None else f"meshes[{number}].axes.tp", "experts_tp", message)
            return


def _cut(design: Design) -> Iterator[tuple[int, Mesh]]:
    """The meshes, by their numbers, but for those whose tp cannot be anyway."""
    return ((number, mesh) for number, mesh in enumerate(design.meshes) if design.model.can_be_cut(mesh.tp))


def _fitting(design: Design, mesh: Mesh) -> str:
    """What to set so that groups of experts take the tensor-parallel groups of a mesh whole."""
    moe, esp, devices = design.model.moe, design.experts.esp, len(mesh.devices)
    assert moe is not None
    sizes = (ep for ep in range(1, moe.experts + 1) if moe.experts % ep == 0)
    fits = next((ep for ep in sizes if ep * esp % mesh.tp == 0 and devices % (ep * esp) == 0), None)
    if fits is not None:
        return f"set ep to {fits}"
    if design.model.ffn_hidden % mesh.tp == 0 and design.experts.ep == 1:
        return f"set esp to {mesh.tp}"
    return "use another tp, or other numbers of experts"


def _other_groups_of_tokens(design: Design) -> Iterator[Problem]:
    """A gate balances the tokens of its own copy of a mesh. The loss is no sum over tokens, so that its mean over
    many small groups is another one than over few large ones."""
    moe, copies = design.model.moe, {mesh.dp: mesh.name for mesh in reversed(design.meshes)}
    if moe is None or not moe.aux_loss or len(copies) == 1:
        return
    drawn = " and ".join(f"dp={dp} on {name}" for dp, name in sorted(copies.items()))
    message = (
        f"the auxiliary loss is a mean over the copies of each mesh, so that it is of other groups of tokens where dp "
        f"differs ({drawn}): a run balances its experts a little otherwise than one of equal meshes; set aux_loss to 0 "
        "to compare the two, or give all meshes the same dp"
    )
    yield Problem("model.moe.aux_loss", "aux_loss_groups", message, "warning")


# ---- load and homes ----


def _load(design: Design) -> Iterator[Problem]:
    assert design.model.moe is not None
    for problem in load_problems(design.experts.load, design.model.moe.experts):
        yield problem.replace(where=f"experts.{problem.where}")


def _homes(design: Design) -> Iterator[Problem]:
    moe, placement = design.model.moe, design.experts.placement
    assert moe is not None
    if placement is None:
        return
    if len(placement) > design.cluster.devices:
        message = (
            f"there are experts for {len(placement)} devices, and the cluster has {design.cluster.devices}; "
            "give one entry a device or null"
        )
        yield Problem("experts.placement", "placement_devices", message)
        return
    wrong = list(_held(placement, moe.experts))
    missing = sorted(set(range(moe.experts)) - {expert for held in placement for expert in held})
    if wrong:
        yield from wrong
    elif placement and missing:
        yield Problem("experts.placement", "expert_missing", f"expert {missing[0]} is on no device; place it")
    else:
        yield from _places(design, placement)


def _held(placement: tuple[tuple[int, ...], ...], experts: int) -> Iterator[Problem]:
    """Experts that there are not, and those that a device names twice."""
    for device, held in enumerate(placement):
        where = f"experts.placement[{device}]"
        unknown = [expert for expert in held if expert >= experts]
        twice = [expert for number, expert in enumerate(held) if expert in held[:number]]
        if unknown:
            message = f"there is no expert {unknown[0]}; the model has experts 0 to {experts - 1}"
            yield Problem(where, "placement_experts", message)
        elif twice:
            yield Problem(where, "placement_repeated", f"expert {twice[0]} is named twice; name it once")


def _places(design: Design, placement: tuple[tuple[int, ...], ...]) -> Iterator[Problem]:
    """As many homes as a group has devices, and the same ones for the devices that share their experts."""
    mesh = next((mesh for mesh in design.meshes if len(placement) != _devices(design, mesh)), None)
    if mesh is not None:
        needed = _devices(design, mesh)
        group = f"tp={mesh.tp} of mesh {mesh.name}" if folded(design) else _named(design)
        message = (
            f"there are experts for {len(placement)} devices, and a group of {group} has {needed}; give it "
            f"{needed} {'entry' if needed == 1 else 'entries'} or null"
        )
        yield Problem("experts.placement", "placement_places", message)
        return
    esp = 1 if folded(design) else design.experts.esp
    for device, held in enumerate(placement):
        first = device // esp * esp
        if set(held) != set(placement[first]):
            message = (
                f"device {device} shares its experts with device {first} (esp={esp}), so that both have the same; "
                f"give it {list(placement[first])}"
            )
            yield Problem(f"experts.placement[{device}]", "placement_shards", message)


def _devices(design: Design, mesh: Mesh) -> int:
    """Devices of one group of experts on a mesh, as the design has it."""
    return mesh.tp if folded(design) else design.experts.ep * design.experts.esp


def _named(design: Design) -> str:
    return f"ep={design.experts.ep} x esp={design.experts.esp}"


# ---- the schedule ----


def _of_the_schedule(design: Design) -> Iterator[Problem]:
    """Why the schedule cannot run the layer, and what is worth knowing where it can; once for meshes alike."""
    told: set[str] = set()
    for number, mesh in _cut(design):
        layer, schedule = expert_layer(design, mesh), expert_schedule(design)
        found = list(schedule.problems(layer))
        for problem in found:
            where = FIELDS.get(problem.where, f"meshes[{number}].axes.tp")
            if problem.message not in told:
                yield problem.replace(where=where)
        told |= {problem.message for problem in found}
        if found:
            continue
        for problem in (*_rounded(layer), *_padded(layer, schedule.places), *_dropped(design, mesh)):
            if problem.code not in told:
                yield problem
            told.add(problem.code)


def _rounded(layer: Layer) -> Iterator[Problem]:
    message = rounding(layer)
    if message and layer.capacity_factor is not None:
        yield Problem("model.moe.capacity_factor", "capacity_rounded", message, "warning")


def rounding(layer: Layer) -> str:
    """That slots were rounded up for the devices and chunks that share them; empty where they were not."""
    if layer.slots_needed == layer.capacity:
        return ""
    by = f"mp={layer.mp}" + (f" x degree={layer.degree}" if layer.degree > 1 else "")
    return f"an expert needs {layer.slots_needed:,} slots and gets {layer.capacity:,}, the next multiple of {by}"


UNEVEN = 1.02
"""Even shares of rows from which on a placement is said to make a layer slower."""


def _padded(layer: Layer, places: str) -> Iterator[Problem]:
    """Where slots are padded to a capacity a placement that follows the load can take longer than equal blocks."""
    if layer.homes is None or layer.load is None or layer.capacity_factor is None:
        return
    fullest, load = (float(of(layer, places).max()) for of in (device_rows, device_load))
    if fullest > UNEVEN:
        message = (
            f"with a capacity experts compute all of their slots, whatever is in them: on this placement the fullest "
            f"device computes {fullest:.3g} even shares of them, of the tokens {load:.3g}; set model.moe.capacity_factor "
            "to null, so that tokens alone are computed"
        )
        if layer.experts % layer.ep == 0:
            message += ", or balance the experts, which evens out slots first"
        yield Problem("experts.placement", "placement_slots", message, "warning")


def _dropped(design: Design, mesh: Mesh) -> Iterator[Problem]:
    name, layer, choice = resolved(design, mesh)
    if mesh.tp == 1 or not expert_schedules[name].gate_sees_part or not layer.may_drop:
        return
    who = f"{design.experts.member} comes to {name} here, which" if choice else name
    message = f"{who} {drops(layer)}; set model.moe.capacity_factor to null to drop none"
    yield Problem("experts.schedule", "gate_drops", message, "warning")


def drops(layer: Layer) -> str:
    """What S1 does where tokens are dropped."""
    return (
        f"chooses for each of {layer.mp} parts of the tokens apart, with {layer.capacity // layer.mp:,} slots each: where "
        "tokens are dropped, they may be others than those of a gate that sees all"
    )
