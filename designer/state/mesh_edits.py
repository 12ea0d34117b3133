"""Edits of meshes and the cluster by gestures on the cluster canvas.

Functions take and return sections of the document as JSON has them (``{"name", "devices", "axes"}`` for a mesh,
``{"nodes", "devices_per_node", ...}`` for the cluster) and never change their arguments. An edit that is not possible
raises a :class:`~meshwave.engine.findings.Refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import gcd
from string import ascii_uppercase
from typing import Any, NamedTuple

from pydantic import ValidationError

from meshwave.designer.state.expert_edits import divisors
from meshwave.designer.state.field_limits import NAME_LENGTH, read_name
from meshwave.engine import document
from meshwave.engine.document.meshes import AXES
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.units import format_count

Mesh = Mapping[str, Any]
Meshes = tuple[Mesh, ...]
Cluster = Mapping[str, Any]
Axes = Mapping[str, int]
"""Sizes of the axes of a mesh, outermost first."""


class Tiling(NamedTuple):
    """Number of equal meshes that cover a cluster, and the sizes of their axes."""

    pp: int
    dp: int
    cp: int
    tp: int

    def __str__(self) -> str:
        return " x ".join(map(str, self))

    @property
    def mesh_size(self) -> int:
        """Number of devices of each mesh."""
        return self.dp * self.cp * self.tp


# ---- meshes ----


def draw_mesh(meshes: Sequence[Mesh], cluster: Cluster, devices: Iterable[int], name: str | None = None) -> Meshes:
    """Add a data-parallel mesh over a free rectangle of ``devices`` at the end of the pipeline."""
    devices = _rectangle(cluster, devices)
    _check_devices_free(meshes, devices)
    name = next_name(meshes) if name is None else _free_name(meshes, name)
    return (*meshes, {"name": name, "devices": devices, "axes": {"dp": len(devices), "tp": 1}})


def move_mesh(meshes: Sequence[Mesh], cluster: Cluster, mesh: int, devices: Iterable[int]) -> Meshes:
    """Move a mesh to other ``devices``, as many as it has now; its axis sizes do not change."""
    devices = _check_devices(cluster, devices)
    old = _get_mesh(meshes, mesh)
    if len(devices) != len(old["devices"]):
        sizes = {"mesh": old["name"], "devices": len(old["devices"]), "given": len(devices)}
        raise Refusal("moved_mesh_size", sizes)
    _check_devices_free(meshes, devices, except_mesh=mesh)
    return _replace_mesh(meshes, mesh, devices=devices)


def resize_mesh(meshes: Sequence[Mesh], cluster: Cluster, mesh: int, devices: Iterable[int]) -> Meshes:
    """Resize a mesh to another rectangle.

    Its tp, and then its cp, become the greatest common divisors with the new size. The axes keep their order.
    """
    devices = _rectangle(cluster, devices)
    old = _get_mesh(meshes, mesh)
    _check_devices_free(meshes, devices, except_mesh=mesh)
    before = full_axes(old["axes"])
    tp = gcd(before["tp"], len(devices))
    cp = gcd(before.get("cp", 1), len(devices) // tp)
    sizes = {"dp": len(devices) // tp // cp, "cp": cp, "tp": tp}
    return _replace_mesh(meshes, mesh, devices=devices, axes={axis: sizes[axis] for axis in before})


def delete_mesh(meshes: Sequence[Mesh], mesh: int) -> Meshes:
    """Remove a mesh; the last one cannot be removed."""
    old = _get_mesh(meshes, mesh)
    if len(meshes) == 1:
        raise Refusal("only_mesh", {"mesh": old["name"]})
    return (*meshes[:mesh], *meshes[mesh + 1 :])


def rename_mesh(meshes: Sequence[Mesh], mesh: int, name: str) -> Meshes:
    """Give a mesh a name that no other mesh has."""
    _get_mesh(meshes, mesh)
    return _replace_mesh(meshes, mesh, name=_free_name(meshes, name, except_mesh=mesh))


def set_axes(meshes: Sequence[Mesh], mesh: int, axes: Axes) -> Meshes:
    """Set the axes of a mesh, outermost first; the product of their sizes must be the number of devices of the mesh."""
    old = _get_mesh(meshes, mesh)
    _make_mesh(old, axes)
    return _replace_mesh(meshes, mesh, axes=dict(axes))


def reorder_meshes(meshes: Sequence[Mesh], mesh: int, rank: int) -> Meshes:
    """Move a mesh to ``rank`` in the pipeline; the others keep their order."""
    moved = _get_mesh(meshes, mesh)
    if not 0 <= rank < len(meshes):
        raise Refusal("unknown_rank", {"rank": rank, "last": len(meshes) - 1})
    others = [*meshes[:mesh], *meshes[mesh + 1 :]]
    return (*others[:rank], moved, *others[rank:])


def tile_cluster(cluster: Cluster, tiling: Tiling) -> Meshes:
    """Cover the cluster with equal meshes, in the order of devices.

    Every mesh is a rectangle. Shapes with tp inside a node are preferred, then the one on the
    fewest nodes.
    """
    problem = _tile_problem(cluster, tiling)
    if problem:
        raise Refusal(problem.code, problem.params)
    pp, dp, cp, tp = tiling
    nodes, per_node = _cluster_size(cluster)
    height, width = next(_tile_shapes(cluster, tiling))
    axes = full_axes({"dp": dp, "cp": cp, "tp": tp})
    corners = ((row, column) for row in range(0, nodes, height) for column in range(0, per_node - width + 1, width))
    return tuple(
        {
            "name": name,
            "devices": tuple(device_range(cluster, row, column, row + height - 1, column + width - 1)),
            "axes": axes,
        }
        for name, (row, column) in zip(_first_names(pp), corners, strict=False)
    )


def describe_tile(cluster: Cluster, tiling: Tiling) -> tuple[bool, str]:
    """Return whether :func:`tile_cluster` is possible, and a sentence with its result or the reason why not."""
    problem = _tile_problem(cluster, tiling)
    if problem:
        return False, problem.message
    total = cluster["nodes"] * cluster["devices_per_node"]
    used = tiling.pp * tiling.mesh_size
    meshes, devices = format_count(tiling.pp, "mesh", "meshes"), format_count(tiling.mesh_size, "device")
    if used == total:
        return True, f"{meshes} of {devices}, all used"
    return True, f"{meshes} of {devices}, {total - used} unused"


def next_name(meshes: Sequence[Mesh]) -> str:
    """Return the first name of A, B, ... Z, AA, AB, ... that no mesh has."""
    taken = {mesh["name"] for mesh in meshes}
    return next(name for name in _all_names() if name not in taken)


def full_axes(axes: Axes) -> dict[str, int]:
    """Return axes with dp and tp in an equivalent order, in which axes of size 1 are at their default positions."""
    sizes = {"dp": axes.get("dp", 1), **({"cp": axes["cp"]} if axes.get("cp", 1) > 1 else {}), "tp": axes.get("tp", 1)}
    return _order_axes(sizes, [axis for axis in axes if axes[axis] > 1])


def axes_choices(mesh: Mesh) -> list[dict[str, int]]:
    """Return the possible axes of a mesh: first those with its current cp, then the others; largest dp first.

    With the current cp, the axes can have any order; with another cp, they are in the order dp, cp, tp.
    """
    devices, own, found = len(mesh["devices"]), mesh["axes"].get("cp", 1), []
    for tp in divisors(devices // own):
        sizes = full_axes({"dp": devices // own // tp, "cp": own, "tp": tp})
        found += [_order_axes(sizes, order) for order in permutations(axis for axis in sizes if sizes[axis] > 1)]
    for cp in divisors(devices):
        if cp != own:
            rest = devices // cp
            found += [full_axes({"dp": rest // tp, "cp": cp, "tp": tp}) for tp in divisors(rest)]
    return found


def _order_axes(sizes: Axes, order: Iterable[str]) -> dict[str, int]:
    """Return axes with the axes larger than 1 in another order; axes of size 1 keep their positions."""
    larger = iter(order)
    return {name: sizes[name] for name in (axis if sizes[axis] == 1 else next(larger) for axis in sizes)}


class DevicePlace(NamedTuple):
    """The place of a device in its mesh."""

    device: int
    group: int  # tensor-parallel group; data-parallel group of a mesh without tensor parallelism
    indices: str  # along the axes, such as "dp0 tp1"


def device_places(meshes: Sequence[Mesh], mesh: int, axes: Axes | None = None) -> list[DevicePlace]:
    """Return the place of each device of a mesh, or the one that it would have with other ``axes``."""
    drawn = _get_mesh(meshes, mesh)
    axes = axes or drawn["axes"]
    made = _make_mesh(drawn, axes)
    indices: dict[int, list[str]] = {device: [] for device in made.devices}
    for axis in (axis for axis in AXES if axes.get(axis, 1) > 1):
        for group in made.groups(axis):
            for index, device in enumerate(group):
                indices[device].append(f"{axis}{index}")
    groups = made.groups("tp" if made.tp > 1 else "dp")
    return [DevicePlace(device, n, " ".join(indices[device])) for n, group in enumerate(groups) for device in group]


def _make_mesh(mesh: Mesh, axes: Axes) -> document.Mesh:
    """Return the mesh of the document with other axes.

    Raises:
        Refusal: its devices do not fill these axes.
    """
    try:
        return document.Mesh.model_validate({**mesh, "devices": tuple(mesh["devices"]), "axes": dict(axes)})
    except ValidationError:
        params = {
            "mesh": mesh["name"],
            "devices": len(mesh["devices"]),
            "axes": dict(axes),
            "choices": axes_choices(mesh),
        }
        raise Refusal("invalid_mesh_axes", params) from None


# ---- the cluster ----


def set_nodes(meshes: Sequence[Mesh], cluster: Cluster, nodes: int) -> tuple[Cluster, Meshes]:
    """Add nodes at the end, or remove the last ones if no mesh is on them."""
    if nodes < 1:
        raise Refusal("out_of_range", {"value": str(nodes), "minimum": 1}, "cluster.nodes")
    for mesh, node, _ in _used_devices(meshes, cluster):
        if node >= nodes:
            raise Refusal("device_in_use", {"mesh": mesh, "node": node})
    return {**cluster, "nodes": nodes}, tuple(meshes)


def set_devices_per_node(meshes: Sequence[Mesh], cluster: Cluster, count: int) -> tuple[Cluster, Meshes]:
    """Add devices to every node, or remove the last ones; meshes keep their places.

    Devices are numbered over all nodes, so the device numbers of meshes change.
    """
    if count < 1:
        raise Refusal("out_of_range", {"value": str(count), "minimum": 1}, "cluster.devices_per_node")
    for mesh, node, column in _used_devices(meshes, cluster):
        if column >= count:
            raise Refusal("device_in_use", {"mesh": mesh, "node": node, "column": column})
    per_node: int = cluster["devices_per_node"]

    def renumber(device: int) -> int:
        node, column = divmod(device, per_node)
        return node * count + column

    moved = tuple({**each, "devices": tuple(map(renumber, each["devices"]))} for each in meshes)
    return {**cluster, "devices_per_node": count}, moved


def device_range(cluster: Cluster, node0: int, column0: int, node1: int, column1: int) -> Iterator[int]:
    """Yield the devices of a rectangle of nodes x device columns, both ends included, row-major."""
    per_node = cluster["devices_per_node"]
    return (
        node * per_node + column
        for node in range(min(node0, node1), max(node0, node1) + 1)
        for column in range(min(column0, column1), max(column0, column1) + 1)
    )


def _replace_mesh(meshes: Sequence[Mesh], mesh: int, **changes: Any) -> Meshes:
    return tuple({**old, **changes} if place == mesh else old for place, old in enumerate(meshes))


def _cluster_size(cluster: Cluster) -> tuple[int, int]:
    return cluster["nodes"], cluster["devices_per_node"]


def _get_mesh(meshes: Sequence[Mesh], mesh: int) -> Mesh:
    if not 0 <= mesh < len(meshes):
        raise Refusal("unknown_rank", {"rank": mesh, "last": len(meshes) - 1})
    return meshes[mesh]


def _check_devices(cluster: Cluster, devices: Iterable[int]) -> tuple[int, ...]:
    devices = tuple(devices)
    total = cluster["nodes"] * cluster["devices_per_node"]
    if not devices:
        raise Refusal("mesh_without_devices")
    for device in devices:
        if not 0 <= device < total:
            raise Refusal("unknown_cluster_device", {"device": device, "last": total - 1})
    if len(set(devices)) < len(devices):
        raise Refusal("repeated_mesh_device")
    return devices


def _rectangle(cluster: Cluster, devices: Iterable[int]) -> tuple[int, ...]:
    """Return the devices in row-major order; they have to fill a rectangle of nodes x device columns."""
    devices = tuple(sorted(_check_devices(cluster, devices)))
    places = [divmod(device, cluster["devices_per_node"]) for device in devices]
    columns = [column for _, column in places]
    full = tuple(device_range(cluster, places[0][0], min(columns), places[-1][0], max(columns)))
    if full != devices:
        missing = next(device for device in full if device not in devices)
        raise Refusal("incomplete_rectangle", {"device": missing})
    return devices


def _check_devices_free(meshes: Sequence[Mesh], devices: Iterable[int], except_mesh: int = -1) -> None:
    owner = {
        device: mesh["name"] for rank, mesh in enumerate(meshes) if rank != except_mesh for device in mesh["devices"]
    }
    for device in devices:
        if device in owner:
            raise Refusal("taken_device", {"device": device, "mesh": owner[device]})


def _used_devices(meshes: Sequence[Mesh], cluster: Cluster) -> Iterator[tuple[str, int, int]]:
    """Yield the devices of meshes: the name of the mesh, the node, and the number of the device on its node."""
    for mesh in meshes:
        for device in mesh["devices"]:
            yield mesh["name"], *divmod(device, cluster["devices_per_node"])


def _free_name(meshes: Sequence[Mesh], name: str, except_mesh: int = -1) -> str:
    name = read_name("mesh", name, NAME_LENGTH)
    for rank, mesh in enumerate(meshes):
        if rank != except_mesh and mesh["name"] == name:
            raise Refusal("taken_mesh_name", {"rank": rank, "name": name})
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


def _tile_shapes(cluster: Cluster, tiling: Tiling) -> Iterator[tuple[int, int]]:
    """Yield (nodes, columns) of the rectangles that a mesh can cover, best first."""
    nodes, per_node = _cluster_size(cluster)
    size = tiling.mesh_size
    widths = [width for width in range(1, min(size, per_node) + 1) if size % width == 0]
    for width in sorted(widths, key=lambda width: (width % tiling.tp == 0, width), reverse=True):
        height = size // width
        if height <= nodes and (nodes // height) * (per_node // width) >= tiling.pp:
            yield height, width


def _tile_problem(cluster: Cluster, tiling: Tiling) -> Problem | None:
    nodes, per_node = _cluster_size(cluster)
    total, needed = nodes * per_node, tiling.pp * tiling.mesh_size
    if min(tiling) < 1:
        return Problem("", "tiling_size")
    if needed > total:
        return Problem("", "tiling_devices", {"tiling": str(tiling), "needed": needed, "devices": total})
    if next(_tile_shapes(cluster, tiling), None) is None:
        sizes = {"meshes": tiling.pp, "devices": tiling.mesh_size, "nodes": nodes, "devices_per_node": per_node}
        return Problem("", "tiling_shape", sizes)
    return None
