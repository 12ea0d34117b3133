"""Agreement of the processes of a transfer on the tensor, both layouts and the plan, before any data is sent.

Each process makes a *statement*, plain data that describes its part of the transfer. Statements are merged; two
contradicting statements are an error on every process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from meshwave.engine.findings import Refusal
from meshwave.engine.resharding import Link, Links, Load, Mesh, SpecError, Transfer, check_load, plan_joint_transfer
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.resharding.tensor_checks import dtype_name

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor, Placement

TensorLayout = tuple[DeviceMesh, Sequence["Placement"]] | tuple[Mesh, Sequence[str]]
"""Layout of a tensor: a DeviceMesh with placements, or a mesh of processes with a sharding spec."""
GPU_LINKS = Link(5e-6, 3e11), Link(1e-5, 2.5e10)
CPU_LINKS = Link(1e-4, 4e9), Link(1.5e-4, 1.25e9)
"""Default links within a host and between hosts: NVLink and a 200 Gbit/s NIC for accelerators, gloo and a 10 Gbit/s NIC
for CPUs."""


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return True for a DTensor, without importing torch's DTensor module, which takes most of a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def describe_transfer(
    tensor: Tensor | None,
    source: TensorLayout | None,
    destination: TensorLayout | None,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
) -> dict[str, Any]:
    """Return the statement of this process about the transfer.

    Raises:
        InputError: a placement cannot be resharded, or ``source`` is given for a DTensor.
    """
    order = None
    if is_dtensor(tensor):
        if source is not None:
            raise Refusal("layout_of_dtensor")
        source, shape = (tensor.device_mesh, tensor.placements), tensor.shape if shape is None else shape
        order = getattr(tensor._spec, "shard_order", None)
    if dtype is None and tensor is not None:
        dtype = tensor.dtype
    statement: dict[str, Any] = {
        "shape": None if shape is None else list(shape),
        "dtype": None if dtype is None else dtype_name(dtype),
        "device": None if tensor is None else tensor.device.type,
    }
    for end, layout in (("source", source), ("destination", destination)):
        statement[end] = None if layout is None else describe_layout(end, layout, order if end == "source" else None)
        if statement["device"] is None and layout is not None and isinstance(layout[0], DeviceMesh):
            statement["device"] = layout[0].device_type
    return statement


def describe_layout(end: str, layout: TensorLayout, order: Any = None) -> dict[str, Any]:
    """Return a layout as plain data.

    Args:
        end: ``source`` or ``destination``.
        layout: the layout.
        order: the shard order of a DTensor; None for the default order.

    Raises:
        InputError: a placement cannot be resharded.
    """
    mesh, entries = layout
    if isinstance(mesh, Mesh):
        spec = [str(entry) for entry in entries]
        return {"mesh": list(mesh.shape), "ranks": list(mesh.ranks), "hosts": list(mesh.hosts), "spec": spec}
    from torch.distributed.tensor import Partial, Replicate, Shard

    axes: list[tuple[int, int]] = []  # (tensor dim, mesh axis), outer axis first
    partial: list[int] = []
    for axis, placement in enumerate(entries):
        if isinstance(placement, Shard) and type(placement) is Shard:
            axes.append((placement.dim, axis))
        elif end == "source" and isinstance(placement, Partial) and placement.reduce_op == "sum":
            partial.append(axis)
        elif not isinstance(placement, Replicate):
            params = {"end": end, "placement": repr(placement), "axis": axis}
            raise Refusal("tensor_placement", {**params, "is_partial": isinstance(placement, Partial)})
    if order is not None:
        axes = [(entry.tensor_dim, axis) for entry in order for axis in entry.mesh_dims]
    ranks = mesh.mesh
    return {"mesh": list(ranks.shape), "ranks": ranks.flatten().tolist(), "axes": axes, "partial": partial}


def gather_statements(statement: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statements of all processes of the default group, in process order."""
    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, json.dumps(statement))
    return [json.loads(text) for text in texts]


def merge_statements(statements: Sequence[Mapping[str, Any]], processes: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the merged statement of all processes.

    Args:
        statements: one per process.
        processes: the processes that made the statements; None for all processes of the default group.

    Raises:
        InputError: one process reports an error, or two statements contradict each other; raised on all processes.
    """
    agreed: dict[str, tuple[int, Any]] = {}
    for process, statement in zip(range(len(statements)) if processes is None else processes, statements, strict=True):
        if "error" in statement:
            raise Refusal("transfer_rejected", {"process": process, "reason": statement["error"]})
        for name, value in statement.items():
            if value is None or name == "host name":
                continue
            first, other = agreed.setdefault(name, (process, value))
            if other != value:
                said = {"first": first, "value": _shorten(other), "process": process, "other": _shorten(value)}
                raise Refusal("transfer_disagreement", {"name": name, **said})
    return {name: value for name, (_, value) in agreed.items()}


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def plan_agreed_transfer(
    tensors: Sequence[Mapping[str, Any]], agreed: Mapping[str, Any], host_names: Mapping[int, str]
) -> Transfer:
    """Plan the transfer on which the processes have agreed.

    Args:
        tensors: shape, dtype, layouts and perhaps name of each tensor, as plain data.
        agreed: the merged statement.
        host_names: name of the host of each process.

    Raises:
        InputError: the spec of a tensor does not fit its shape, or the strategy or ordering does not exist.
    """
    ends = ("source", "destination")
    host = assign_hosts(agreed.get("hosts"), [each[end] for each in tensors for end in ends], host_names)
    loads = []
    for each in tensors:
        shape = Shape(tuple(each["shape"]), getattr(torch, each["dtype"]).itemsize)
        source, destination = (parse_side(end, each[end], len(shape.shape), host) for end in ends)
        loads.append(Load(shape, source, destination, each.get("name", "")))
        try:
            check_load(loads[-1])
        except SpecError as error:
            raise Refusal(error.problem.code, error.problem.params, loads[-1].name) from None
    return plan_joint_transfer(
        loads,
        agreed_links(agreed, host),
        strategy=agreed.get("strategy"),
        ordering=agreed["ordering"],
        chunks=agreed.get("chunks"),
    )


def agreed_links(agreed: Mapping[str, Any], host: dict[int, int]) -> Links:
    """Return the links given in the statements, or the defaults for the device."""
    intra, inter = agreed.get("links", CPU_LINKS if agreed.get("device", "cpu") == "cpu" else GPU_LINKS)
    return Links(Link(*intra), Link(*inter), host)


def assign_hosts(
    given: Sequence[int] | None, sides: Sequence[Mapping[str, Any]], names: Mapping[int, str]
) -> dict[int, int]:
    """Return the host number of each process: as given, else from the meshes, else from the host names.

    Raises:
        InputError: ``given`` does not have one entry per process, or two meshes assign a process to different hosts.
    """
    if given is not None:
        if len(given) != dist.get_world_size():
            raise Refusal("host_count", {"given": len(given), "processes": dist.get_world_size()})
        return dict(enumerate(given))
    if not all("hosts" in side for side in sides):
        known = list(dict.fromkeys(names.values()))
        return {process: known.index(name) for process, name in names.items()}
    found: dict[int, int] = {}
    for side in sides:
        for rank, host in zip(side["ranks"], side["hosts"], strict=True):
            if found.setdefault(rank, host) != host:
                raise Refusal("host_disagreement", {"process": rank, "host": found[rank], "other": host})
    return found


def parse_side(end: str, layout: Mapping[str, Any], dims: int, host: Mapping[int, int]) -> tuple[Mesh, tuple[str, ...]]:
    """Return the mesh and the sharding spec of a layout that :func:`describe_layout` wrote.

    Args:
        end: ``source`` or ``destination``, for messages.
        layout: the layout as plain data.
        dims: the number of dims of the tensor.
        host: the host of each process.

    Raises:
        InputError: a process does not exist or occurs twice, or a placement names a dim that the tensor does not have.
    """
    ranks, world = layout["ranks"], dist.get_world_size()
    for rank in ranks:
        if not 0 <= rank < world:
            params = {"end": end, "process": rank, "processes": world, "last": world - 1}
            raise Refusal("process_outside_group", params)
        if ranks.count(rank) > 1:
            raise Refusal("repeated_process", {"process": rank, "end": end})
    mesh = Mesh(tuple(layout["mesh"]), tuple(ranks), tuple(host[rank] for rank in ranks))
    return mesh, tuple(layout["spec"]) if "spec" in layout else _sharding_spec(end, layout, dims)


def _sharding_spec(end: str, layout: Mapping[str, Any], dims: int) -> tuple[str, ...]:
    """Return placements as a sharding spec: an entry per tensor dim, and an entry for the partial axes."""
    entries = [""] * dims
    for dim, axis in layout["axes"]:
        if not -dims <= dim < dims:
            raise Refusal("shard_dim", {"end": end, "dim": dim, "axis": axis, "dims": dims})
        entries[dim] += str(axis)
    partial = "".join(map(str, layout["partial"]))
    return (*(f"S{entry}" if entry else "R" for entry in entries), *([f"P{partial}"] if partial else []))
