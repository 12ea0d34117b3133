"""Resharding of one tensor, as a collective call of all processes of the default group."""

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
from meshwave.engine.findings import Refusal
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
    """Move a tensor to another mesh and sharding spec. All processes of the default group call it.

    To repeat the same transfer, call :func:`prepare` once and start its result repeatedly.

    Args:
        tensor: a DTensor, or this process's shard of the tensor that ``source`` describes; None if this process has no
            shard.
        source: see :func:`prepare`.
        destination: see :func:`prepare`.
        into: the tensor to write this process's shard into; None for a new tensor.
        options: see :func:`prepare`.

    Returns:
        A DTensor if ``destination`` is a DeviceMesh with placements, else the local shard, which may be empty; None if
        this process is not part of the destination.

    Raises:
        InputError: the transfer is invalid on this or another process; no data was sent.
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

    A process may omit values that it does not have, such as the shape or a mesh, if another process passes them. If two
    processes contradict each other, all processes raise the same error, and no data is sent.

    Args:
        tensor: a DTensor, or the local shard, for its shape, dtype and device.
        source: the current layout of the tensor; None for a DTensor.
        destination: the layout after the transfer.
        shape: the shape of the whole tensor.
        dtype: the dtype of the tensor.
        hosts: host number of every process; None to use the meshes or the host names.
        links: links within a host and between hosts, in seconds and bytes/s. The choice of strategy, chunks and senders
            depends on them.
        strategy: name of the strategy; None for the strategy with the shortest planned time.
        ordering: name of the ordering.
        chunks: number of chunks of a chain; None for the best number.
        timeout: timeout of one message; None for that of the default group.

    Raises:
        InputError: the transfer is invalid on this or another process.
    """
    statement: dict[str, Any] = {"host name": socket.gethostname()}
    own_error: InputError | None = None
    try:
        statement |= describe_transfer(tensor, source, destination, shape, dtype)
        statement |= {"hosts": hosts, "links": links, "strategy": strategy, "ordering": ordering, "chunks": chunks}
    except InputError as error:  # sent to the other processes, which would otherwise wait for this one
        statement["error"], own_error = str(error), error
    statements = gather_statements(statement)
    if own_error is not None:
        raise own_error
    agreed = merge_statements(statements)
    for name in ("shape", "dtype", "source", "destination"):
        if name not in agreed:
            raise Refusal("transfer_incomplete", {"name": name})
    host_names = {process: each["host name"] for process, each in enumerate(statements)}
    planned, agreed_dtype = plan_agreed_transfer([agreed], agreed, host_names), getattr(torch, agreed["dtype"])
    merge_statements(gather_statements({"plan": planned.digest.hex()}))
    process, device = dist.get_rank(), current_device(agreed.get("device", "cpu"))
    return Resharding(planned, process, agreed_dtype, make_transport(planned, process, device, timeout), device)
