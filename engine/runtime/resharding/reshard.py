"""For everybody: one call that takes a tensor to another mesh and sharding."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Link, Transfer
from meshwave.engine.runtime.resharding.agreement import (
    Layout,
    agree,
    described,
    exchange,
    plan_of,
    sends_between_devices,
    wanted_on,
)
from meshwave.engine.runtime.resharding.bound_transfer import Resharding
from meshwave.engine.runtime.resharding.carriers import Carrier, GlooCarrier, NcclCarrier


def reshard(
    tensor: Tensor | None = None,
    source: Layout | None = None,
    destination: Layout | None = None,
    *,
    into: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Take a tensor to another mesh and sharding; all processes of the default group call it.

    ``prepare`` does all of it but the moving: take that where the same transfer comes again.

    Args:
        tensor: a DTensor, or this process's shard where ``source`` says of what; none in processes
            that hold no part of it.
        source: see :func:`prepare`.
        destination: see :func:`prepare`.
        into: a tensor for the shard that this process gets.
        options: see :func:`prepare`.

    Returns:
        A DTensor where ``destination`` was given here as a DeviceMesh with placements, else the local
        shard, of no elements where it is empty; none where this process is not in the destination.

    Raises:
        InputError: what is asked for cannot be, here or in another process; nothing has moved.
        RunError: a message did not come, because another process failed or is too late.
    """
    ready = prepare(tensor, source, destination, **options)
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    shard = ready.start(local if ready.part.owned[0] is not None else None, into=into).wait()
    if shard is None or destination is None or not isinstance(destination[0], DeviceMesh):
        return shard
    shape = torch.Size(ready.planned.tensor.shape)
    stride = torch.empty(shape, device="meta").stride()
    mesh, placements = destination
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=shape, stride=stride)


def prepare(
    tensor: Tensor | None = None,
    source: Layout | None = None,
    destination: Layout | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    hosts: Sequence[int] | None = None,
    links: tuple[Link, Link] | None = None,
    strategy: str | None = None,
    ordering: str = "ensemble",
    chunks: int | None = None,
    timeout: timedelta | None = None,
) -> Resharding:
    """Agree on a transfer, and plan it; all processes of the default group call it.

    What a process does not know, the shape, a mesh, it may leave out: another says it. What two say
    must be the same, or all are told and nothing moves.

    Args:
        tensor: a DTensor, or the local shard, for its shape, dtype and device.
        source: where the tensor lies, where it is no DTensor.
        destination: where it is wanted.
        shape: of the whole tensor.
        dtype: of the tensor.
        hosts: of every process; none: those of the meshes, or by the hosts' names.
        links: inside a host and between hosts, in seconds and bytes/s; the choice of strategy, chunks
            and senders follows them.
        strategy: its name; none: the one that takes the shortest by the plan.
        ordering: its name.
        chunks: of a chain; none: the best number.
        timeout: the longest that one message may take; none: that of the default group.

    Raises:
        InputError: what is asked for cannot be, here or in another process.
    """
    said: dict[str, Any] = {"host name": socket.gethostname()}
    refusal: InputError | None = None
    try:
        said |= described(tensor, source, destination, shape, dtype)
        said |= {"hosts": hosts, "links": links, "strategy": strategy, "ordering": ordering, "chunks": chunks}
    except InputError as error:  # told to all, or they would wait for this process
        said["error"], refusal = str(error), error
    told = exchange(said)
    if refusal is not None:
        raise refusal
    planned, kind = plan_of(agree(told), [each["host name"] for each in told])
    agree(exchange({"plan": planned.digest.hex()}))
    process, device = dist.get_rank(), wanted_on(told)
    return Resharding(planned, process, kind, _carrier(planned, process, device, timeout), device)


def _carrier(planned: Transfer, process: int, device: torch.device, timeout: timedelta | None) -> Carrier:
    if sends_between_devices(device):
        pairs = sorted({(move.source, move.target) for move in planned.moves})
        return NcclCarrier(pairs, process, device, timeout)
    return GlooCarrier(timeout)
