"""For everybody: several tensors by one plan, called only by the processes that take part, and not waited for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Link, Links, Load, SpecError, Transfer, check_load, transfer_many
from meshwave.engine.resharding import Tensor as Shape
from meshwave.engine.runtime.device.accelerator import current_device
from meshwave.engine.runtime.resharding.agreement import (
    CPU_LINKS,
    GPU_LINKS,
    Layout,
    agree,
    describe_layout,
    read_side,
    sends_between_devices,
)
from meshwave.engine.runtime.resharding.bound_transfer import Bound, Shards, Underway
from meshwave.engine.runtime.resharding.carriers import Carrier, GlooCarrier, NcclCarrier, Under
from meshwave.engine.runtime.resharding.rendezvous import Meeting
from meshwave.engine.runtime.resharding.tensor_checks import dtype_name

TURNS = 4
"""How often the same transfer may be under way at once; a start beyond that waits for the oldest."""
Given = Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""Tensors in the order of the items, or by their names."""


@dataclass(frozen=True)
class ReshardItem:
    """One of several tensors to reshard together; the same on all processes that take part."""

    shape: Sequence[int]
    """Of the whole tensor."""
    dtype: torch.dtype
    source: Layout
    """Where it lies; see :func:`meshwave.engine.runtime.resharding.prepare`."""
    destination: Layout
    """Where it is wanted."""
    name: str = ""
    """For messages, and to give tensors by name."""


class MovingList(Underway[Shards]):
    """A transfer of several tensors, under way; it ends with this process's shard of each, none where it gets none."""

    @classmethod
    def finished(cls, count: int) -> Self:
        """That of a process that takes no part."""
        under = Under(lambda: None, lambda: None, lambda: True, lambda: None)
        return cls(under, lambda: [None] * count, (), gets=False)


class ReshardingList(Bound):
    """A planned transfer of several tensors, bound to this process: start it as often as wanted.

    All processes that take part start it equally often.
    """

    def __init__(
        self,
        planned: Transfer,
        process: int,
        dtypes: Sequence[torch.dtype],
        carrier: Carrier,
        device: torch.device,
        take_tags: Callable[[int], int],
    ) -> None:
        """
        Raises:
            InputError: a dtype cannot be summed.
        """
        super().__init__(planned, process, dtypes, carrier, device)
        self._first_tag = take_tags(TURNS * self.tags)
        self._started = 0
        self._turns: dict[int, MovingList] = {}

    def start(self, tensors: Given | None = None, *, into: Given | None = None) -> MovingList:
        """Start to send what this process holds and to receive what it gets.

        Args:
            tensors: this process's shards, or DTensors; not to be written to before the end.
            into: tensors for the shards that it gets, any strides; new ones for those that are left out.

        Raises:
            InputError: a tensor is not of the shape or the dtype of its shard, or is missing, or shares memory with
                another one; or a name is not that of one tensor.
            RunError: another process has gone already.
        """
        locals_, intos = (self._listed(given) for given in (tensors, into))
        locals_ = [each if held is not None else None for each, held in zip(locals_, self.part.owned, strict=True)]
        turn = self._started % TURNS
        if turn in self._turns:
            self._turns[turn].wait()
        moving = MovingList(*self.begin(locals_, intos, self._first_tag + turn * self.tags), gets=self.gets)
        self._turns[turn] = moving
        self._started += 1
        return moving

    def _listed(self, given: Given | None) -> list[Tensor | None]:
        """``[tensors of the transfer]`` what was given of each."""
        names = [load.name for load in self.planned.loads]
        if given is None:
            return [None] * len(names)
        if isinstance(given, Mapping):
            unknown = [name for name in given if names.count(name) != 1]
            if unknown:
                raise InputError(f"no one tensor of the transfer is called {unknown[0]!r}; give tensors by their order")
            given = [given.get(name) for name in names]
        if len(given) != len(names):
            raise InputError(
                f"the transfer has {len(names)} tensors, and {len(given)} were given; give None where none is"
            )
        return [each.to_local() if isinstance(each, DTensor) else each for each in given]


def reshard_many(
    items: Sequence[ReshardItem], tensors: Given | None = None, *, into: Given | None = None, **options: Any
) -> MovingList:
    """Start to take tensors to another mesh and sharding by one plan; the processes of their meshes call it.

    It returns once these have agreed; ``wait()`` on what it returns gives the shards. Other processes need not
    call it. Several may be under way at once; processes that share several call them in the same order.

    Args:
        items: all tensors, the same on all processes.
        tensors: this process's shards, in the order of the items or by name.
        into: tensors for the shards that it gets.
        options: see :func:`prepare_many`.

    Raises:
        InputError: what is asked for cannot be, here or in another process; nothing has moved.
        RunError: a process did not come, or failed.
    """
    ready = prepare_many(items, **options)
    return MovingList.finished(len(items)) if ready is None else ready.start(tensors, into=into)


def prepare_many(
    items: Sequence[ReshardItem],
    *,
    hosts: Sequence[int] | None = None,
    links: tuple[Link, Link] | None = None,
    strategy: str | None = None,
    ordering: str = "ensemble",
    chunks: int | None = None,
    device: str | None = None,
    timeout: timedelta | None = None,
) -> ReshardingList | None:
    """Agree on a transfer of several tensors, and plan it; the processes of their meshes call it.

    Senders are chosen and slices are ordered over all tensors together.

    Args:
        items: all tensors, the same on all processes.
        hosts: of every process of the default group; none: those of the meshes, or by the hosts' names.
        links: inside a host and between hosts, in seconds and bytes/s.
        strategy: its name; none: the one that takes the shortest by the plan.
        ordering: its name.
        chunks: of a chain; none: the best number.
        device: ``cpu`` or ``cuda``; none: that of the meshes that are torch's, else ``cpu``.
        timeout: the longest to wait for another process, and for one message; none: that of the default group.

    Returns:
        None in a process that takes no part.

    Raises:
        InputError: what is asked for cannot be, here or in another process.
        RunError: a process did not come.
    """
    laid = [_described(item) for item in items]
    ranks = sorted({rank for each in laid for end in ("source", "destination") for rank in each[end]["ranks"]})
    if dist.get_rank() not in ranks:
        return None
    meshes = (layout[0] for item in items for layout in (item.source, item.destination))
    kinds = (mesh.device_type for mesh in meshes if isinstance(mesh, DeviceMesh))
    said = {
        "number of tensors": len(items),
        "device": device or next(kinds, None),
        "hosts": hosts,
        "links": links,
        "strategy": strategy,
        "ordering": ordering,
        "chunks": chunks,
        "host name": socket.gethostname(),
    }
    meeting = Meeting(ranks, timeout)
    told = meeting.exchange("asked", {**said, "tensors": [_digest(each) for each in laid]})
    agreed = _agreed(told, meeting.processes, items)
    planned = _planned(laid, agreed, dict(zip(ranks, (each["host name"] for each in told), strict=True)))
    agree(meeting.exchange("planned", {"plan": planned.digest.hex()}), meeting.processes)
    process, there = dist.get_rank(), current_device(agreed.get("device", "cpu"))
    carrier = _carrier(planned, process, there, timeout)
    dtypes = [item.dtype for item in items]
    return ReshardingList(planned, process, dtypes, carrier, there, meeting.take_tags)


def _described(item: ReshardItem) -> dict[str, Any]:
    """
    Raises:
        InputError: a placement cannot be resharded.
    """
    ends = {"source": item.source, "destination": item.destination}
    return {
        "name": item.name,
        "shape": list(item.shape),
        "dtype": dtype_name(item.dtype),
        **{end: describe_layout(end, layout) for end, layout in ends.items()},
    }


def _digest(laid: Mapping[str, Any]) -> str:
    return sha256(json.dumps(laid).encode()).hexdigest()[:12]


def _agreed(told: Sequence[dict[str, Any]], processes: Sequence[int], items: Sequence[ReshardItem]) -> dict[str, Any]:
    """
    Raises:
        InputError: two processes say different things.
    """
    tensors = [each.pop("tensors") for each in told]
    agreed = agree(told, processes)
    for number, of_tensor in enumerate(zip(*tensors, strict=True)):
        for process, said in zip(processes, of_tensor, strict=True):
            if said != of_tensor[0]:
                name = items[number].name or f"number {number}"
                raise InputError(
                    f"processes {processes[0]} and {process} do not agree on the shape, dtype or layouts of tensor {name}; "
                    "nothing was moved"
                )
    return agreed


def _planned(laid: Sequence[Mapping[str, Any]], agreed: Mapping[str, Any], names: Mapping[int, str]) -> Transfer:
    """
    Raises:
        InputError: a tensor's spec does not fit, or there is no such strategy or ordering.
    """
    host = _hosts(laid, agreed.get("hosts"), names)
    loads = []
    for number, each in enumerate(laid):
        shape = tuple(each["shape"])
        size = getattr(torch, each["dtype"]).itemsize
        (source, spec), (destination, wanted) = (
            read_side(end, each[end], len(shape), host) for end in ("source", "destination")
        )
        loads.append(
            Load(Shape(shape, size), (source, spec), (destination, wanted), each["name"] or f"tensor {number}")
        )
    intra, inter = (
        Link(*link) for link in agreed.get("links", CPU_LINKS if agreed.get("device", "cpu") == "cpu" else GPU_LINKS)
    )
    for load in loads:
        try:
            check_load(load)
        except SpecError as error:
            raise InputError(f"{load.name}: {error}") from None
    return transfer_many(
        loads,
        Links(intra, inter, host),
        strategy=agreed.get("strategy"),
        ordering=agreed["ordering"],
        chunks=agreed.get("chunks"),
    )


def _hosts(laid: Sequence[Mapping[str, Any]], given: Sequence[int] | None, names: Mapping[int, str]) -> dict[int, int]:
    """The host of each process that takes part.

    Raises:
        InputError: meshes put a process on two hosts, or hosts are not given of every process.
    """
    if given is not None:
        if len(given) != dist.get_world_size():
            raise InputError(f"there are {dist.get_world_size()} processes, and hosts of {len(given)}")
        return dict(enumerate(given))
    sides = [each[end] for each in laid for end in ("source", "destination")]
    if not all("hosts" in side for side in sides):
        known = list(dict.fromkeys(names.values()))
        return {process: known.index(name) for process, name in names.items()}
    found: dict[int, int] = {}
    for side in sides:
        for rank, host in zip(side["ranks"], side["hosts"], strict=True):
            if found.setdefault(rank, host) != host:
                raise InputError(f"process {rank} is on host {found[rank]} in one mesh and on host {host} in another")
    return found


def _carrier(planned: Transfer, process: int, device: torch.device, timeout: timedelta | None) -> Carrier:
    if sends_between_devices(device):
        pairs = sorted({(move.source, move.target) for move in planned.moves})
        return NcclCarrier(pairs, process, device, timeout, by_members=True)
    return GlooCarrier(timeout)
