"""Edits of meshes and cluster by gestures on the cluster canvas.

Functions take and return sections of the document as JSON has them (``{"name", "devices", "axes"}`` for a mesh,
``{"nodes", "devices_per_node", ...}`` for the cluster) and never change their arguments. An edit that is not possible
raises an :class:`~meshwave.engine.errors.InputError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import gcd
from string import ascii_uppercase
from typing import Any

from meshwave.designer.state.field_limits import NAME_LENGTH
from meshwave.engine.errors import InputError
from meshwave.engine.units import format_count

Mesh = Mapping[str, Any]
Meshes = tuple[Mesh, ...]
Cluster = Mapping[str, Any]

# ---- meshes ----


def draw_mesh(meshes: Sequence[Mesh], cluster: Cluster, devices: Iterable[int], name: str | None = None) -> Meshes:
    """Add a data-parallel mesh over a free rectangle of ``devices`` at the end of the pipeline."""
    devices = _rectangle(cluster, devices)
    _refuse_taken(meshes, devices)
    name = next_name(meshes) if name is None else _free_name(meshes, name)
    return (*meshes, {"name": name, "devices": devices, "axes": {"dp": len(devices), "tp": 1}})


def move_mesh(meshes: Sequence[Mesh], cluster: Cluster, mesh: int, devices: Iterable[int]) -> Meshes:
    """Move a mesh to the same number of other ``devices``; its axes stay."""
    devices = _inside(cluster, devices)
    old = _mesh(meshes, mesh)
    if len(devices) != len(old["devices"]):
        has = format_count(len(old["devices"]), "device")
        raise InputError(f"mesh {old['name']} has {has} and cannot move to {len(devices)}; resize it instead")
    _refuse_taken(meshes, devices, but=mesh)
    return _replace(meshes, mesh, devices=devices)


def resize_mesh(meshes: Sequence[Mesh], cluster: Cluster, mesh: int, devices: Iterable[int]) -> Meshes:
    """Resize a mesh to another rectangle; its tp becomes the greatest common divisor with the new size."""
    devices = _rectangle(cluster, devices)
    old = _mesh(meshes, mesh)
    _refuse_taken(meshes, devices, but=mesh)
    tp = gcd(old["axes"].get("tp", 1), len(devices))
    return _replace(meshes, mesh, devices=devices, axes={"dp": len(devices) // tp, "tp": tp})


def delete_mesh(meshes: Sequence[Mesh], mesh: int) -> Meshes:
    """Remove a mesh; the last one cannot be removed."""
    old = _mesh(meshes, mesh)
    if len(meshes) == 1:
        raise InputError(f"{old['name']} is the only mesh and a pipeline needs one; draw another first")
    return (*meshes[:mesh], *meshes[mesh + 1 :])


def rename_mesh(meshes: Sequence[Mesh], mesh: int, name: str) -> Meshes:
    """Give a mesh a name that no other mesh has."""
    _mesh(meshes, mesh)
    return _replace(meshes, mesh, name=_free_name(meshes, name, but=mesh))


def set_axes(meshes: Sequence[Mesh], mesh: int, dp: int, tp: int) -> Meshes:
    """Set the axes of a mesh to ``dp`` x ``tp``, which has to be its number of devices."""
    old = _mesh(meshes, mesh)
    if dp < 1 or tp < 1 or dp * tp != len(old["devices"]):
        ways = ", ".join(f"{d} x {t}" for d, t in axis_factors(len(old["devices"])))
        raise InputError(
            f"dp {dp} x tp {tp} does not use the {len(old['devices'])} devices of mesh {old['name']}; use {ways}"
        )
    return _replace(meshes, mesh, axes={"dp": dp, "tp": tp})


def reorder_meshes(meshes: Sequence[Mesh], mesh: int, rank: int) -> Meshes:
    """Move a mesh to ``rank`` in the pipeline; the others keep their order."""
    moved = _mesh(meshes, mesh)
    if not 0 <= rank < len(meshes):
        ranks = f"the pipeline has ranks 0 to {len(meshes) - 1}"
        raise InputError(f"{ranks}; mesh {moved['name']} cannot become rank {rank}")
    others = [*meshes[:mesh], *meshes[mesh + 1 :]]
    return (*others[:rank], moved, *others[rank:])


def tile_cluster(cluster: Cluster, pp: int, dp: int, tp: int) -> Meshes:
    """Cover the cluster with ``pp`` equal meshes of ``dp`` x ``tp`` devices, in the order of devices.

    Every mesh is a rectangle. Of the shapes that fit, one with tp inside a node is preferred, then the one on the
    fewest nodes.
    """
    problem = _tile_problem(cluster, pp, dp, tp)
    if problem:
        raise InputError(problem)
    nodes, per_node = _size(cluster)
    height, width = next(_shapes(cluster, pp, dp * tp, tp))
    corners = ((row, column) for row in range(0, nodes, height) for column in range(0, per_node - width + 1, width))
    return tuple(
        {
            "name": name,
            "devices": tuple(device_range(cluster, row, column, row + height - 1, column + width - 1)),
            "axes": {"dp": dp, "tp": tp},
        }
        for name, (row, column) in zip(_first_names(pp), corners, strict=False)
    )


def describe_tile(cluster: Cluster, pp: int, dp: int, tp: int) -> tuple[bool, str]:
    """Return whether :func:`tile_cluster` is possible, and a sentence with its result or the reason why not."""
    problem = _tile_problem(cluster, pp, dp, tp)
    if problem:
        return False, problem
    total = cluster["nodes"] * cluster["devices_per_node"]
    used = pp * dp * tp
    meshes = format_count(pp, "mesh", "meshes")
    rest = "all used" if used == total else f"{total - used} unused"
    return True, f"{meshes} of {format_count(dp * tp, 'device')}, {rest}"


def next_name(meshes: Sequence[Mesh]) -> str:
    """Return the first of A, B, ... Z, AA, AB, ... that no mesh has."""
    taken = {mesh["name"] for mesh in meshes}
    return next(name for name in _all_names() if name not in taken)


def axis_factors(size: int) -> list[tuple[int, int]]:
    """Return every (dp, tp) with dp * tp = ``size``, largest dp first."""
    return [(size // tp, tp) for tp in range(1, size + 1) if size % tp == 0]


# ---- the cluster ----


def set_nodes(meshes: Sequence[Mesh], cluster: Cluster, nodes: int) -> tuple[Cluster, Meshes]:
    """Add nodes at the end, or remove the last ones if no mesh is on them."""
    if nodes < 1:
        raise InputError("a cluster needs at least one node")
    _refuse_lost(meshes, cluster, lost=lambda node, column: node >= nodes, what="node", part=0)
    return {**cluster, "nodes": nodes}, tuple(meshes)


def set_devices_per_node(meshes: Sequence[Mesh], cluster: Cluster, count: int) -> tuple[Cluster, Meshes]:
    """Add devices to every node, or remove the last ones; meshes keep their places.

    Devices are numbered over all nodes, so the device numbers of meshes change.
    """
    if count < 1:
        raise InputError("a node needs at least one device")
    _refuse_lost(meshes, cluster, lost=lambda node, column: column >= count, what="device", part=1)
    per_node: int = cluster["devices_per_node"]

    def renumber(device: int) -> int:
        node, column = divmod(device, per_node)
        return node * count + column

    moved = tuple({**mesh, "devices": tuple(map(renumber, mesh["devices"]))} for mesh in meshes)
    return {**cluster, "devices_per_node": count}, moved


def device_range(cluster: Cluster, node0: int, column0: int, node1: int, column1: int) -> Iterator[int]:
    """Yield the devices of a rectangle of nodes x device columns, both ends included, row-major."""
    per_node = cluster["devices_per_node"]
    return (
        node * per_node + column
        for node in range(min(node0, node1), max(node0, node1) + 1)
        for column in range(min(column0, column1), max(column0, column1) + 1)
    )


def _replace(meshes: Sequence[Mesh], mesh: int, **changes: Any) -> Meshes:
    return tuple({**old, **changes} if place == mesh else old for place, old in enumerate(meshes))


def _size(cluster: Cluster) -> tuple[int, int]:
    return cluster["nodes"], cluster["devices_per_node"]


def _mesh(meshes: Sequence[Mesh], mesh: int) -> Mesh:
    if not 0 <= mesh < len(meshes):
        raise InputError(f"there is no rank {mesh}; the pipeline has ranks 0 to {len(meshes) - 1}")
    return meshes[mesh]


def _inside(cluster: Cluster, devices: Iterable[int]) -> tuple[int, ...]:
    devices = tuple(devices)
    total = cluster["nodes"] * cluster["devices_per_node"]
    if not devices:
        raise InputError("a mesh needs at least one device")
    for device in devices:
        if not 0 <= device < total:
            raise InputError(f"there is no device {device}; the cluster has devices 0 to {total - 1}")
    if len(set(devices)) < len(devices):
        raise InputError("a mesh cannot hold a device twice")
    return devices


def _rectangle(cluster: Cluster, devices: Iterable[int]) -> tuple[int, ...]:
    """Return the devices row-major; they have to fill a rectangle of nodes x device columns."""
    devices = tuple(sorted(_inside(cluster, devices)))
    places = [divmod(device, cluster["devices_per_node"]) for device in devices]
    columns = [column for _, column in places]
    full = tuple(device_range(cluster, places[0][0], min(columns), places[-1][0], max(columns)))
    if full != devices:
        missing = next(device for device in full if device not in devices)
        raise InputError(f"a mesh is a rectangle of nodes x devices; device {missing} is missing from this one")
    return devices


def _refuse_taken(meshes: Sequence[Mesh], devices: Iterable[int], but: int = -1) -> None:
    owner = {device: mesh["name"] for rank, mesh in enumerate(meshes) if rank != but for device in mesh["devices"]}
    for device in devices:
        if device in owner:
            raise InputError(f"device {device} belongs to mesh {owner[device]}; a device can be in one mesh only")


def _refuse_lost(meshes: Sequence[Mesh], cluster: Cluster, *, lost: Any, what: str, part: int) -> None:
    for mesh in meshes:
        for device in mesh["devices"]:
            place = divmod(device, cluster["devices_per_node"])
            if lost(*place):
                where = f"node {place[0]}" if part == 0 else f"device {place[1]} of node {place[0]}"
                raise InputError(
                    f"{where} is used by mesh {mesh['name']}; move or delete the mesh before removing the {what}"
                )


def _free_name(meshes: Sequence[Mesh], name: str, but: int = -1) -> str:
    name = " ".join(name.split())
    if not name:
        raise InputError("a mesh needs a name")
    if len(name) > NAME_LENGTH:
        raise InputError(f"a mesh name has at most {NAME_LENGTH} characters; this one has {len(name)}")
    for rank, mesh in enumerate(meshes):
        if rank != but and mesh["name"] == name:
            raise InputError(f"rank {rank} is already called {name}; mesh names must be unique")
    return name


def _all_names() -> Iterator[str]:
    length = 1
    while True:
        yield from _names_of_length(length)
        length += 1


def _names_of_length(length: int) -> Iterator[str]:
    if length == 0:
        yield ""
        return
    for head in _names_of_length(length - 1):
        for letter in ascii_uppercase:
            yield head + letter


def _first_names(count: int) -> list[str]:
    return list(islice(_all_names(), count))


def _shapes(cluster: Cluster, pp: int, size: int, tp: int) -> Iterator[tuple[int, int]]:
    """Yield (nodes, columns) of the rectangles of ``size`` devices of which ``pp`` fit, best first."""
    nodes, per_node = _size(cluster)
    widths = [width for width in range(1, min(size, per_node) + 1) if size % width == 0]
    for width in sorted(widths, key=lambda width: (width % tp == 0, width), reverse=True):
        height = size // width
        if height <= nodes and (nodes // height) * (per_node // width) >= pp:
            yield height, width


def _tile_problem(cluster: Cluster, pp: int, dp: int, tp: int) -> str | None:
    nodes, per_node = _size(cluster)
    total, needed = nodes * per_node, pp * dp * tp
    if min(pp, dp, tp) < 1:
        return "pp, dp and tp must be at least 1"
    if needed > total:
        return f"{pp} x {dp} x {tp} needs {needed} devices; the cluster has {total}"
    if next(_shapes(cluster, pp, dp * tp, tp), None) is None:
        rectangles = format_count(pp, "rectangle")
        return f"{rectangles} of {dp * tp} devices do not fit on {nodes} x {per_node}; use another dp x tp"
    return None
