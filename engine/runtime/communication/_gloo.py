"""How processes hand tensors to each other: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.runtime.communication.batching import Batch
from meshwave.engine.runtime.communication.layout import Layout
from meshwave.engine.runtime.communication.wire import Leaving, Message, Pending, Routes, Sharing, Wire, Work
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import GlooCarrier


class GlooWire(Wire):
    """Gloo moves host memory: tensors of a GPU go through it, on the way out and in.

    A send is a rendezvous and a receive that was posted first is what lets both directions of
    a pair flow at once; the program posts receives ahead. Tags keep messages apart.
    """

    def __init__(
        self,
        layout: Layout,
        process: int,
        message: Message,
        device: torch.device,
        sharing: Sharing,
        routes: Routes,
        timeout: timedelta,
    ) -> None:
        super().__init__(layout, process, message, device, sharing, routes)
        self._make_groups("gloo", timeout)
        self._carrier = GlooCarrier(timeout)
        # Straight to gloo: on the way there torch.distributed asks the same questions at every message.
        self._gloo: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        start, tag = self._gloo.send, self.tag(made)

        def send(tensor: Tensor) -> Leaving:
            host = tensor.to("cpu").contiguous()
            return _Sent(start([host], process, tag), host)

        return send

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        start, tag, device = self._gloo.recv, self.tag(made), self._device
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            host = torch.empty(shape, dtype=dtype)
            return _Gloo(start([host], process, tag), host, device)

        return receive

    @property
    def _carried_on(self) -> torch.device:
        return torch.device("cpu")

    def _join(self, made: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> Batch:
        return self._batches.join(made, dist.P2POp(start, tensor, process, tag=self.tag(made)))

    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        if (stage, members) not in self._groups:
            return _Here(flat)
        host = flat.to("cpu")
        work = dist.all_reduce(host, group=self._groups[stage, members], async_op=True)
        return _GlooReduction(work, host, self._device)

    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
        dist.all_reduce(sums)
        return sums


class _Sent(NamedTuple):
    """Both must live until the message is gone."""

    work: Work
    tensor: Tensor

    def wait(self) -> None:
        self.work.wait()

    def is_gone(self) -> bool:
        return bool(self.work.is_completed())  # of gloo never before somebody waits


class _Here(Pending):
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        return self._tensor


class _Gloo(Pending):
    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        self._work, self._host, self._device = work, host, device

    def wait(self) -> Tensor:
        self._work.wait()
        return self._host.to(self._device)


class _GlooReduction(_Gloo):
    """Collectives, unlike messages, say when they are done."""

    def __init__(self, work: Work, host: Tensor, device: torch.device) -> None:
        super().__init__(work, host, device)
        self._arrived: int | None = None
        work.get_future().add_done_callback(self._done)

    def _done(self, _: object) -> None:
        self._arrived = time.perf_counter_ns()

    @property
    def arrived(self) -> Stamp | None:
        return self._arrived
