"""Problems of the meshes of a design: names, devices on the cluster, and axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from meshwave.engine.document.fixes import (
    add_nodes_fixes,
    free_rectangle,
    keep_devices_fix,
    mesh_axes_fix,
    move_mesh_fix,
    rename_mesh_fix,
)
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.validation_problems import nearest_head_counts
from meshwave.engine.findings import Fix, Problem, nearest_divisors, set_key_fix

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design

MAX_MOVES = 20
"""Maximum number of meshes for which unused devices are searched; further problems of a kind are only counted."""


def device_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem for devices that do not exist, that occur twice, or that belong to two meshes."""
    cluster, last = design.cluster, design.cluster.devices - 1
    moves = _move_fixes(design)
    owner: dict[int, str] = {}
    for number, mesh in enumerate(design.meshes):
        where = f"meshes[{number}].devices"
        outside = [device for device in mesh.devices if device > last]
        if outside:
            sizes = {"last": last, "nodes": cluster.nodes, "devices_per_node": cluster.devices_per_node}
            params = {"mesh": mesh.name, "devices": outside, **sizes}
            yield Problem(
                where, "unknown_device", params, fixes=[*add_nodes_fixes(cluster, max(outside)), *moves(number)]
            )
        repeated = [device for device, count in Counter(mesh.devices).items() if count > 1]
        if repeated:
            distinct = list(dict.fromkeys(mesh.devices))
            fixes = [keep_devices_fix(number, mesh, distinct)]
            yield Problem(where, "repeated_device", {"mesh": mesh.name, "devices": repeated}, fixes=fixes)
        for other in dict.fromkeys(owner[device] for device in mesh.devices if device in owner):
            shared = [device for device in dict.fromkeys(mesh.devices) if owner.get(device) == other]
            params = {"mesh": mesh.name, "devices": shared, "other": other}
            own = [device for device in mesh.devices if device not in owner]
            fixes = [*moves(number), *([keep_devices_fix(number, mesh, own)] if own else [])]
            yield Problem(where, "shared_device", params, fixes=fixes)
        owner.update((device, mesh.name) for device in mesh.devices if device not in owner)


def _move_fixes(design: Design) -> Callable[[int], list[Fix]]:
    """Return a function that returns the fix to move a mesh to unused devices, if there are enough."""
    used = {device for mesh in design.meshes for device in mesh.devices}
    find = cache(lambda count: free_rectangle(design.cluster, count, used))
    moved: set[int] = set()

    def moves(number: int) -> list[Fix]:
        moved.add(number)
        mesh = design.meshes[number]
        devices = find(len(mesh.devices)) if len(moved) <= MAX_MOVES else None
        return [move_mesh_fix(number, mesh.name, devices)] if devices else []

    return moves


def mesh_name_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem for each mesh that has the same name as an earlier mesh."""
    first: dict[str, int] = {}
    names = {mesh.name for mesh in design.meshes}
    for number, mesh in enumerate(design.meshes):
        if mesh.name in first:
            params = {"first": first[mesh.name], "second": number, "name": mesh.name}
            fixes = [rename_mesh_fix(number, names)]
            yield Problem(f"meshes[{number}].name", "duplicate_mesh_name", params, fixes=fixes)
        first.setdefault(mesh.name, number)


def mesh_shape_problems(design: Design) -> Iterator[Problem]:
    """Yield a warning for each mesh that is not a rectangle of the cluster's grid; such meshes can run."""
    moves = _move_fixes(design)
    for number, mesh in enumerate(design.meshes):
        places = [divmod(device, design.cluster.devices_per_node) for device in set(mesh.devices)]
        sides = [max(side) - min(side) + 1 for side in zip(*places, strict=True)]
        if prod(sides) != len(places):
            params = {"mesh": mesh.name, "count": len(places)}
            yield Problem(f"meshes[{number}].devices", "scattered_devices", params, "warning", moves(number))


def context_parallel_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem for each mesh whose cp does not divide the sequence length."""
    sequence = design.model.sequence
    for number, mesh in enumerate(design.meshes):
        if sequence % mesh.cp:
            params = {"mesh": mesh.name, "cp": mesh.cp, "sequence": sequence}
            yield Problem(f"meshes[{number}].axes.cp", "indivisible_context", params)


def tensor_parallel_problems(design: Design) -> Iterator[Problem]:
    """Yield a problem for each tp size that the model does not support."""
    model = design.model
    for number, mesh in enumerate(design.meshes):
        where = f"meshes[{number}].axes.tp"
        if isinstance(model, LanguageModel):
            if not model.supports_tensor_parallelism(mesh.tp):
                yield _indivisible_heads(design, model, number)
        elif mesh.tp > 1:
            dp = len(mesh.devices)
            params = {"model": model.kind, "tp": mesh.tp, "mesh": mesh.name, "dp": dp}
            yield Problem(where, "unsupported_tensor_parallelism", params, fixes=[mesh_axes_fix(number, mesh, 1)])


def _indivisible_heads(design: Design, model: LanguageModel, number: int) -> Problem:
    mesh, heads = design.meshes[number], model.shared_heads
    devices = len(mesh.devices)
    sizes = nearest_divisors(heads, mesh.tp)
    shares_keys = heads != model.heads
    counts = () if shares_keys else nearest_head_counts(heads, model.hidden, {each.tp for each in design.meshes})
    suitable = list(counts)
    fixes = [mesh_axes_fix(number, mesh, size) for size in sizes if devices % size == 0]
    fixes += [set_key_fix("model.heads", count) for count in suitable]
    params = {"tp": mesh.tp, "mesh": mesh.name, "heads": heads, "sizes": sizes, "suitable": suitable}
    return Problem(f"meshes[{number}].axes.tp", "indivisible_heads", params, fixes=fixes)
