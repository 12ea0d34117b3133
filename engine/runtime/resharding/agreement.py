"""What all processes of a transfer agree on before anything moves: the tensor, both ends, the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Link, Links, Mesh, SpecError, Transfer, transfer
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.device.accelerator import accelerator_type, current_device, device_backend
from meshwave.engine.runtime.resharding.tensor_checks import dtype_name

Layout = tuple[DeviceMesh, Sequence[Placement]] | tuple[Mesh, Sequence[str]]
"""Where a tensor lies: in torch's words, or a mesh of processes with an ``R`` or ``S0`` for each dim."""
GPU_LINKS = Link(5e-6, 3e11), Link(1e-5, 2.5e10)
CPU_LINKS = Link(1e-4, 4e9), Link(1.5e-4, 1.25e9)
"""Inside a host and between hosts, where nobody says better: of NVLink and a 200 Gbit/s NIC; of gloo and 10 Gbit/s."""


def described(
    tensor: Tensor | None,
    source: Layout | None,
    destination: Layout | None,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
) -> dict[str, Any]:
    """What this process knows of the transfer, as plain data."""
    if isinstance(tensor, DTensor):
        if source is not None:
            raise InputError("a DTensor says itself where it lies; leave source out")
        source, shape = (tensor.device_mesh, tensor.placements), tensor.shape if shape is None else shape
        order = getattr(tensor._spec, "shard_order", None)
    else:
        order = None
    said: dict[str, Any] = {"shape": None if shape is None else list(shape)}
    dtype = tensor.dtype if dtype is None and tensor is not None else dtype
    said["dtype"] = None if dtype is None else dtype_name(dtype)
    said["device"] = None if tensor is None else tensor.device.type
    for end, layout in (("source", source), ("destination", destination)):
        said[end] = None if layout is None else describe_layout(end, layout, order if end == "source" else None)
        if said["device"] is None and layout is not None and isinstance(layout[0], DeviceMesh):
            said["device"] = layout[0].device_type
    return said


def describe_layout(end: str, layout: Layout, order: Any = None) -> dict[str, Any]:
    """A layout as plain data; ``order`` is that of the shards of a DTensor.

    Raises:
        InputError: a placement cannot be resharded.
    """
    mesh, cut = layout
    if isinstance(mesh, Mesh):
        spec = [str(entry) for entry in cut]
        return {"mesh": list(mesh.shape), "ranks": list(mesh.ranks), "hosts": list(mesh.hosts), "spec": spec}
    axes: list[tuple[int, int]] = []  # of a tensor dim, a mesh axis; outer first
    partial: list[int] = []
    for axis, placement in enumerate(cut):
        if isinstance(placement, Shard) and type(placement) is Shard:
            axes.append((placement.dim, axis))
        elif end == "source" and isinstance(placement, Partial) and placement.reduce_op == "sum":
            partial.append(axis)
        elif not isinstance(placement, Replicate):
            raise InputError(_cannot_lie(end, placement, axis))
    if order is not None:
        axes = [(entry.tensor_dim, axis) for entry in order for axis in entry.mesh_dims]
    ranks = mesh.mesh
    return {"mesh": list(ranks.shape), "ranks": ranks.flatten().tolist(), "axes": axes, "partial": partial}


def _cannot_lie(end: str, placement: object, axis: int) -> str:
    """Why a placement is refused, and what to do."""
    words = (
        f"the {end} has the placement {placement!r} on mesh axis {axis}, and only Shard and Replicate can be resharded"
    )
    if end == "source":
        words += ", and Partial of sums"
    if end == "destination" and isinstance(placement, Partial):
        return f"{words} to: every receiver gets the sum; ask for Replicate() or Shard() there"
    return f"{words}; redistribute the tensor on its own mesh first"


def exchange(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``[processes]`` what each says."""
    device = current_device("cpu" if "cpu:gloo" in backends() else accelerator_type() or "cpu")
    text = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(text)], device=device))
    longest = int(max(lengths))
    padded = torch.cat([text, text.new_zeros(longest - len(text))])
    texts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(texts, padded)
    return [json.loads(bytes(each[: int(n)].tolist())) for each, n in zip(texts, lengths, strict=True)]


def agree(told: Sequence[Mapping[str, Any]], processes: Sequence[int] | None = None) -> dict[str, Any]:
    """What all say, of what each says; ``processes`` are those that speak, where these are not all.

    Raises:
        InputError: one refuses, or two say different things; the same on all.
    """
    agreed: dict[str, tuple[int, Any]] = {}
    for process, said in zip(range(len(told)) if processes is None else processes, told, strict=True):
        if "error" in said:
            raise InputError(f"process {process} refuses: {said['error']}")
        for name, value in said.items():
            if value is None or name == "host name":
                continue
            first, other = agreed.setdefault(name, (process, value))
            if other != value:
                raise InputError(
                    f"processes do not agree on the {name}: process {first} says {_short(other)}, "
                    f"process {process} says {_short(value)}; nothing was moved"
                )
    return {name: value for name, (_, value) in agreed.items()}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def plan_of(agreed: Mapping[str, Any], names: Sequence[str]) -> tuple[Transfer, torch.dtype]:
    """The plan of what was agreed, and the dtype; ``names`` of the host of each process."""
    for name in ("shape", "dtype", "source", "destination"):
        if name not in agreed:
            raise InputError(f"no process says the {name} of the transfer; one has to")
    shape, dtype = tuple(agreed["shape"]), getattr(torch, agreed["dtype"])
    host = _hosts(agreed, names)
    source, destination = (read_side(end, agreed[end], len(shape), host) for end in ("source", "destination"))
    usual = CPU_LINKS if agreed.get("device", "cpu") == "cpu" else GPU_LINKS
    intra, inter = (Link(*link) for link in agreed.get("links", usual))
    try:
        planned = transfer(
            Shape(shape, dtype.itemsize),
            source,
            destination,
            Links(intra, inter, host),
            strategy=agreed.get("strategy"),
            ordering=agreed["ordering"],
            chunks=agreed.get("chunks"),
        )
    except SpecError as error:
        raise InputError(str(error)) from None
    return planned, dtype


def _hosts(agreed: Mapping[str, Any], names: Sequence[str]) -> dict[int, int]:
    """The host of each process."""
    if "hosts" in agreed:
        if len(agreed["hosts"]) != len(names):
            raise InputError(f"there are {len(names)} processes, and hosts of {len(agreed['hosts'])}")
        return dict(enumerate(agreed["hosts"]))
    sides = [agreed["source"], agreed["destination"]]
    if all("hosts" in side for side in sides):
        return {rank: host for side in sides for rank, host in zip(side["ranks"], side["hosts"], strict=True)}
    known = list(dict.fromkeys(names))
    return {process: known.index(name) for process, name in enumerate(names)}


def read_side(end: str, laid: Mapping[str, Any], dims: int, host: Mapping[int, int]) -> tuple[Mesh, tuple[str, ...]]:
    """A layout that was described, with the host of each process.

    Raises:
        InputError: a process is not there or stands twice, or a placement names a dim that is not there.
    """
    ranks, world = laid["ranks"], dist.get_world_size()
    for rank in ranks:
        if not 0 <= rank < world:
            raise InputError(f"the {end} has process {rank}, and there are {world}")
        if ranks.count(rank) > 1:
            raise InputError(f"process {rank} stands twice in the {end}")
    mesh = Mesh(tuple(laid["mesh"]), tuple(ranks), tuple(host[rank] for rank in ranks))
    return mesh, tuple(laid["spec"]) if "spec" in laid else _spec(end, laid, dims)


def _spec(end: str, laid: Mapping[str, Any], dims: int) -> tuple[str, ...]:
    """torch's placements as an entry for each of the tensor's dims, and one for the axes of addends."""
    entries = [""] * dims
    for dim, axis in laid["axes"]:
        if not -dims <= dim < dims:
            raise InputError(f"the {end} has Shard({dim}) on mesh axis {axis}, and the tensor {dims} dims")
        entries[dim] += str(axis)
    partial = "".join(map(str, laid["partial"]))
    return (*(f"S{entry}" if entry else "R" for entry in entries), *([f"P{partial}"] if partial else []))


def wanted_on(told: Sequence[Mapping[str, Any]]) -> torch.device:
    return current_device(next((said["device"] for said in told if said["device"] is not None), "cpu"))


def sends_between_devices(device: torch.device) -> bool:
    """Return whether the default group sends tensors of ``device`` without the memory of the host."""
    return f"{device.type}:{device_backend(device)}" in backends()


def backends() -> str:
    """Of the default group by device, such as ``cpu:gloo,cuda:nccl``."""
    return str(dist.get_backend_config())
