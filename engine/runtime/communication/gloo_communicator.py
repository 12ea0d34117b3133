"""Communication through host memory with gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.runtime.communication.batching import MessageBatch
from meshwave.engine.runtime.communication.communicator import (
    Communicator,
    PendingSend,
    PendingTensor,
    Work,
)
from meshwave.engine.runtime.communication.groups import all_gather, reduce_scatter
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import GlooTransport


class GlooCommunicator(Communicator):
    """Communicator that sends host memory with gloo; tensors of a GPU are copied to the host and back.

    A send waits for its receive, so both directions of a pair carry data at once only if receives are posted first; the
    program posts them ahead. Tags distinguish messages.
    """

    def _connect(self, timeout: timedelta) -> None:
        self._make_groups("gloo", timeout)
        self._transport = self._gloo = GlooTransport(timeout)

    def _bind_direct_send(self, producer: Action, process: int) -> Callable[[Tensor], PendingSend]:
        start, tag = self._gloo.send, self.tag(producer)

        def send(tensor: Tensor) -> PendingSend:
            host = tensor.to("cpu").contiguous()
            return SentTensor(start(host, process, tag), host)

        return send

    def _bind_direct_receive(self, producer: Action, process: int) -> Callable[[], PendingTensor]:
        start, tag, device = self._gloo.receive, self.tag(producer), self._device
        shape_of, dtype = self._bind_shape(producer), self._message.dtype

        def receive() -> PendingTensor:
            host = torch.empty(shape_of(), dtype=dtype)
            return _HostTensor(start(host, process, tag), host, device)

        return receive

    def _add_to_batch(self, producer: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> MessageBatch:
        return self._batches.add(producer, dist.P2POp(start, tensor, process, tag=self.tag(producer)))

    def start_all_reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start an all-reduce of gradients in host memory."""
        if (stage, members) not in self._groups:
            return CompleteTensor(flat)
        host = flat.to("cpu")
        work = dist.all_reduce(host, group=self._groups[stage, members], async_op=True)
        return _Collective(work, host, self._device)

    def start_reduce_scatter(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start a reduce-scatter of gradients in host memory."""
        if (stage, members) not in self._groups:
            return CompleteTensor(flat)
        host = flat.to("cpu")
        part = torch.empty(len(flat) // len(members), dtype=flat.dtype)
        work = reduce_scatter(part, host, group=self._groups[stage, members], async_op=True)
        return _HostTensor(work, part, self._device)

    def start_all_gather(self, stage: int, members: tuple[int, ...], part: Tensor, whole: Tensor) -> PendingTensor:
        """Start an all-gather of weights in host memory."""
        if (stage, members) not in self._groups:
            return CompleteTensor(whole.copy_(part))
        host = whole if whole.device.type == "cpu" else torch.empty_like(whole, device="cpu")
        work = all_gather(host, part.to("cpu"), group=self._groups[stage, members], async_op=True)
        return _GatheredTensor(work, host, whole)

    def sum_over_processes(self, values: Sequence[Tensor | float]) -> Tensor:
        """Return the float64 sum of each value over all processes, computed on the host."""
        sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
        dist.all_reduce(sums)
        return sums


class SentTensor(NamedTuple):
    """Tensor that is being sent; both fields must stay alive until the send is complete."""

    work: Work
    tensor: Tensor

    def wait(self) -> None:
        """Wait until the tensor is sent."""
        self.work.wait()

    def is_complete(self) -> bool:
        """Return True if the tensor is known to be sent. With gloo this is known only after a wait."""
        return bool(self.work.is_completed())


class CompleteTensor(PendingTensor):
    """Tensor that is available without communication."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        """Return the tensor at once."""
        return self._tensor


class _HostTensor(PendingTensor):
    """Tensor in flight to host memory."""

    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        self._work, self._host, self._device = work, host, device

    def wait(self) -> Tensor:
        self._work.wait()
        return self._host.to(self._device)


class _Collective(_HostTensor):
    """Result of a collective in host memory. Unlike a message, it reports its time of completion."""

    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        super().__init__(work, host, device)
        self._arrival_ns: int | None = None
        work.get_future().add_done_callback(self._record_arrival)

    def _record_arrival(self, _: object) -> None:
        self._arrival_ns = time.perf_counter_ns()

    @property
    def arrival(self) -> Stamp | None:
        return self._arrival_ns


class _GatheredTensor(_Collective):
    """All-gathered tensor that arrives in host memory and is then copied to the device."""

    def __init__(self, work: Work, host: Tensor, whole: Tensor) -> None:
        super().__init__(work, host, whole.device)
        self._whole = whole

    def wait(self) -> Tensor:
        self._work.wait()
        return self._whole if self._host is self._whole else self._whole.copy_(self._host)
