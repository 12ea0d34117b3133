"""Resharding of several tensors by one plan, asynchronously; only the processes that take part call it."""

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

from meshwave.engine.findings import Refusal
from meshwave.engine.resharding import Link, Transfer
from meshwave.engine.runtime.device.accelerator import current_device
from meshwave.engine.runtime.resharding.agreement import (
    TensorLayout,
    describe_layout,
    is_dtensor,
    merge_statements,
    plan_agreed_transfer,
)
from meshwave.engine.runtime.resharding.bound_transfer import BoundTransfer, PendingTransfer, Shards
from meshwave.engine.runtime.resharding.rendezvous import Rendezvous
from meshwave.engine.runtime.resharding.tensor_checks import dtype_name
from meshwave.engine.runtime.resharding.transports import MessagesInFlight, Transport, make_transport

MAX_CONCURRENT = 4
"""Maximum number of starts of one transfer in flight; the next start waits for the oldest one."""
GivenTensors = Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""Tensors in the order of the items, or by name."""


@dataclass(frozen=True)
class ReshardItem:
    """One of several tensors to be resharded together; the same on all processes that take part."""

    shape: Sequence[int]
    """Shape of the whole tensor."""
    dtype: torch.dtype
    source: TensorLayout
    """Current layout of the tensor; see :func:`meshwave.engine.runtime.resharding.prepare`."""
    destination: TensorLayout
    """Layout of the tensor after the transfer."""
    name: str = ""
    """Name of the tensor, for messages and for tensors that are passed by name."""


class PendingReshardList(PendingTransfer[Shards]):
    """Transfer of several tensors in flight; its result is this process's shard of each tensor, or None."""

    @classmethod
    def finished_transfer(cls, count: int) -> Self:
        """Return the finished transfer of a process that takes no part in it."""
        messages = MessagesInFlight(lambda: None, lambda: None, lambda: True, lambda: None)
        return cls(messages, lambda: [None] * count, (), receives_shard=False)


class ReshardingList(BoundTransfer):
    """Planned transfer of several tensors, bound to this process. It can be started any number of times.

    All processes that take part must start it equally often.
    """

    def __init__(
        self,
        planned: Transfer,
        process: int,
        dtypes: Sequence[torch.dtype],
        transport: Transport,
        device: torch.device,
        take_tags: Callable[[int], int],
    ) -> None:
        """Bind the plan to the dtypes of the tensors and the connections of one process.

        Raises:
            InputError: tensors of a dtype cannot be summed.
        """
        super().__init__(planned, process, dtypes, transport, device)
        self._first_tag = take_tags(MAX_CONCURRENT * self.tag_count)
        self._started = 0
        self._in_flight: dict[int, PendingReshardList] = {}

    def start(self, tensors: GivenTensors | None = None, *, into: GivenTensors | None = None) -> PendingReshardList:
        """Start to send this process's shards of the source and to receive its shards of the destination.

        Args:
            tensors: this process's shards, or DTensors; do not write to them before the transfer is complete.
            into: tensors to receive shards into, with any strides; None for new tensors.

        Raises:
            InputError: a tensor is missing, has not the shape or dtype of its shard, or shares memory with another one;
                or a name does not belong to exactly one tensor.
            RunError: the connection to another process is closed.
        """
        locals_, intos = (self._sort_by_position(given) for given in (tensors, into))
        locals_ = [each if owned is not None else None for each, owned in zip(locals_, self.part.owned, strict=True)]
        place = self._started % MAX_CONCURRENT
        if place in self._in_flight:
            self._in_flight[place].wait()
        messages, deliver, data = self.start_messages(locals_, intos, self._first_tag + place * self.tag_count)
        pending = PendingReshardList(messages, deliver, data, receives_shard=self.receives_shard)
        self._in_flight[place] = pending
        self._started += 1
        return pending

    def _sort_by_position(self, given: GivenTensors | None) -> list[Tensor | None]:
        """Return the local tensors in the order of the plan's tensors."""
        names = [load.name for load in self.planned.loads]
        if given is None:
            return [None] * len(names)
        if isinstance(given, Mapping):
            unknown = [name for name in given if names.count(name) != 1]
            if unknown:
                raise Refusal("ambiguous_tensor_name", {"count": names.count(unknown[0]), "name": unknown[0]})
            given = [given.get(name) for name in names]
        if len(given) != len(names):
            raise Refusal("tensor_count", {"given": len(given), "expected": len(names)})
        return [each.to_local() if is_dtensor(each) else each for each in given]


def reshard_many(
    items: Sequence[ReshardItem],
    tensors: GivenTensors | None = None,
    *,
    into: GivenTensors | None = None,
    **options: Any,
) -> PendingReshardList:
    """Start to reshard tensors to other meshes and specs by one plan. Only the processes of the meshes call it.

    Args:
        items: all tensors, the same on all processes.
        tensors: this process's shards, in the order of the items or by name.
        into: tensors to receive shards into; None for new tensors.
        options: see :func:`prepare_many`.

    Raises:
        InputError: the transfer is invalid on this or another process; no data was sent.
        RunError: another process failed or did not call this function in time.
    """
    ready = prepare_many(items, **options)
    return PendingReshardList.finished_transfer(len(items)) if ready is None else ready.start(tensors, into=into)


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
    """Agree on a transfer of several tensors and plan it. Only the processes of the meshes call it.

    Senders and the order of slices are chosen for all tensors together.

    Args:
        items: all tensors, the same on all processes.
        hosts: host number of every process of the default group; None to use the meshes or the host names.
        links: links within a host and between hosts, in seconds and bytes/s.
        strategy: name of the strategy; None for the strategy with the shortest planned time.
        ordering: name of the ordering.
        chunks: number of chunks of a chain; None for the best number.
        device: device type, such as ``cuda``; None for that of the DeviceMeshes, else ``cpu``.
        timeout: timeout of the agreement and of one message; None for that of the default group.

    Returns:
        The transfer; None in a process that takes no part.

    Raises:
        InputError: the transfer is invalid on this or another process.
        RunError: another process did not call this function in time.
    """
    tensors = [_describe_item(number, item) for number, item in enumerate(items)]
    ranks = sorted({rank for each in tensors for end in ("source", "destination") for rank in each[end]["ranks"]})
    if dist.get_rank() not in ranks:
        return None
    meshes = (layout[0] for item in items for layout in (item.source, item.destination))
    kinds = (mesh.device_type for mesh in meshes if isinstance(mesh, DeviceMesh))
    statement = {
        "number of tensors": len(items),
        "device": device or next(kinds, None),
        "hosts": hosts,
        "links": links,
        "strategy": strategy,
        "ordering": ordering,
        "chunks": chunks,
        "host name": socket.gethostname(),
        "tensors": [_digest(each) for each in tensors],
    }
    rendezvous = Rendezvous(ranks, timeout)
    statements = rendezvous.gather("asked", statement)
    host_names = {process: each["host name"] for process, each in zip(ranks, statements, strict=True)}
    agreed = _merge_with_tensors(statements, ranks, items)
    planned = plan_agreed_transfer(tensors, agreed, host_names)
    merge_statements(rendezvous.gather("planned", {"plan": planned.digest.hex()}), ranks)
    process, own_device = dist.get_rank(), current_device(agreed.get("device", "cpu"))
    transport = make_transport(planned, process, own_device, timeout, members_only=True)
    dtypes = [item.dtype for item in items]
    return ReshardingList(planned, process, dtypes, transport, own_device, rendezvous.take_tags)


def _describe_item(number: int, item: ReshardItem) -> dict[str, Any]:
    ends = {"source": item.source, "destination": item.destination}
    return {
        "name": item.name or f"tensor {number}",
        "shape": list(item.shape),
        "dtype": dtype_name(item.dtype),
        **{end: describe_layout(end, layout) for end, layout in ends.items()},
    }


def _digest(tensor: Mapping[str, Any]) -> str:
    return sha256(json.dumps(tensor).encode()).hexdigest()[:12]


def _merge_with_tensors(
    statements: Sequence[dict[str, Any]], processes: Sequence[int], items: Sequence[ReshardItem]
) -> dict[str, Any]:
    """Merge the statements, and compare their tensors one by one, so that an error names the tensor.

    Raises:
        InputError: two statements contradict each other.
    """
    digests = [statement.pop("tensors") for statement in statements]
    agreed = merge_statements(statements, processes)
    for number, of_tensor in enumerate(zip(*digests, strict=True)):
        for process, digest in zip(processes, of_tensor, strict=True):
            if digest != of_tensor[0]:
                name = items[number].name or f"number {number}"
                raise Refusal("tensor_disagreement", {"first": processes[0], "process": process, "tensor": name})
    return agreed
