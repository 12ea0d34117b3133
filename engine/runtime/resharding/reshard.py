"""Reshard one tensor: a collective call over all processes of the default group."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Link
from meshwave.engine.runtime.device.accelerator import current_device
from meshwave.engine.runtime.resharding.agreement import (
    TensorLayout,
    describe_transfer,
    gather_statements,
    is_dtensor,
    merge_statements,
    plan_agreed_transfer,
)
from meshwave.engine.runtime.resharding.bound_transfer import Resharding
from meshwave.engine.runtime.resharding.transports import make_transport


def reshard(
    tensor: Tensor | None = None,
    source: TensorLayout | None = None,
    destination: TensorLayout | None = None,
    *,
    into: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Move a tensor to another mesh and sharding. All processes of the default group call it.

    To repeat the same transfer, call :func:`prepare` once and start what it returns.

    Args:
        tensor: a DTensor, or this process's shard of the tensor that ``source`` describes; None in processes
            that hold no part of it.
        source: see :func:`prepare`.
        destination: see :func:`prepare`.
        into: the tensor to write this process's shard into; None: a new one.
        options: see :func:`prepare`.

    Returns:
        A DTensor where ``destination`` was given here as a DeviceMesh with placements, else the local
        shard (without elements where it is empty); None where this process is not in the destination.

    Raises:
        InputError: the transfer is invalid here or in another process; nothing was moved.
        RunError: a message did not arrive, because another process failed or exceeded the timeout.
    """
    ready = prepare(tensor, source, destination, **options)
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    shard = ready.start(local if ready.part.owned[0] is not None else None, into=into).wait()
    if shard is None or destination is None or not isinstance(destination[0], DeviceMesh):
        return shard
    shape = torch.Size(ready.planned.tensor.shape)
    stride = torch.empty(shape, device="meta").stride()
    mesh, placements = destination
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=shape, stride=stride)


def prepare(
    tensor: Tensor | None = None,
    source: TensorLayout | None = None,
    destination: TensorLayout | None = None,
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
    """Agree on a transfer and plan it. All processes of the default group call it.

    A process may leave out what it does not know, such as the shape or a mesh, if another process gives it.
    Processes that contradict each other raise the same error, and nothing is moved.

    Args:
        tensor: a DTensor, or the local shard, for its shape, dtype and device.
        source: the layout of the tensor; None for a DTensor.
        destination: the layout to move it to.
        shape: the shape of the whole tensor.
        dtype: the dtype of the tensor.
        hosts: the host of every process; None: those of the meshes, or by the names of the hosts.
        links: inside a host and between hosts, in seconds and bytes/s. The choice of strategy, chunks
            and senders depends on them.
        strategy: its name; None: the one with the shortest planned time.
        ordering: its name.
        chunks: the number of chunks of a chain; None: the best number.
        timeout: the timeout of one message; None: that of the default group.

    Raises:
        InputError: the transfer is invalid here or in another process.
    """
    statement: dict[str, Any] = {"host name": socket.gethostname()}
    own_error: InputError | None = None
    try:
        statement |= describe_transfer(tensor, source, destination, shape, dtype)
        statement |= {"hosts": hosts, "links": links, "strategy": strategy, "ordering": ordering, "chunks": chunks}
    except InputError as error:  # the others get it too; they would wait for this process otherwise
        statement["error"], own_error = str(error), error
    statements = gather_statements(statement)
    if own_error is not None:
        raise own_error
    agreed, host_names = merge_statements(statements), [each["host name"] for each in statements]
    planned, agreed_dtype = plan_agreed_transfer(agreed, host_names)
    merge_statements(gather_statements({"plan": planned.digest.hex()}))
    process, device = dist.get_rank(), current_device(agreed.get("device", "cpu"))
    return Resharding(planned, process, agreed_dtype, make_transport(planned, process, device, timeout), device)
