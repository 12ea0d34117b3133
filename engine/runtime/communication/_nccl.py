"""How processes hand tensors to each other: gloo through the host, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.runtime.communication._gloo import _Here, _Sent
from meshwave.engine.runtime.communication.batching import Batch
from meshwave.engine.runtime.communication.layout import Layout
from meshwave.engine.runtime.communication.wire import Leaving, Message, Pending, Routes, Sharing, Wire, Work
from meshwave.engine.runtime.device.accelerator import device_backend, record_event, synchronize, use_stream
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import NcclCarrier


class NcclWire(Wire):
    """NCCL between GPUs: one communicator for each direction of each pair of processes.

    NCCL knows no tags, so what makes messages find each other is their order, which the program
    keeps per pair; and operations of one communicator stand in line, so that with one for both
    directions a send could wait behind the receive that it is the condition of. Batches have one communicator for
    each pair, on which both ends issue the same batches in the same order.
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
        backend = device_backend(device)
        assert backend is not None, "a device with collectives of its own"
        self._lanes: dict[tuple[int, int], Any] = {}
        for lane in self._lanes_across():
            group = dist.new_group(lane, timeout=timeout, backend=backend)
            if process in lane:
                self._lanes[lane] = group
        self._pairs: dict[tuple[int, int], Any] = {}
        for pair in self._batched_lanes():
            group = dist.new_group(pair, timeout=timeout, backend=backend)
            if process in pair:
                self._pairs[pair] = group
        self._make_groups(backend, timeout)
        # What notes arrivals, one a communicator, whose messages arrive in order: torch has 32 streams, and from then
        # on hands out the same again, so that a stream made for each would soon be one that something else waits in.
        arriving = [*(lane for lane in self._lanes if lane[1] == process), *self._groups]
        self._sides = {each: torch.Stream(device) for each in arriving}
        self._pair_sides = {pair: torch.Stream(device) for pair in self._pairs}
        self._warm_up()
        pairs = {(move.source, move.target) for route in routes.values() for move in route.moves}
        self._carrier = NcclCarrier(sorted(pairs), process, device, timeout)

    def _warm_up(self) -> None:
        """Make the communicators now, in one order for all: each waits for both its ends."""
        token = torch.zeros(1, device=self._device)
        for (source, target), group in self._lanes.items():
            if source == self._process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        for pair, group in self._pairs.items():
            peer, came = sum(pair) - self._process, torch.empty_like(token)
            both = [dist.P2POp(dist.isend, token, peer, group), dist.P2POp(dist.irecv, came, peer, group)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        for group in self._groups.values():
            dist.all_reduce(token, group=group)
        dist.all_reduce(token)
        synchronize(self._device)

    def _sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        group = self._lanes[self._process, process]

        def send(tensor: Tensor) -> Leaving:
            self._forget_the_gone()
            tensor = tensor.contiguous()
            return _Sent(dist.isend(tensor, process, group=group), tensor)

        return send

    def _forget_the_gone(self) -> None:
        """No answer is needed: the GPU says so; the oldest go first."""
        leaving = self._leaving
        for gone in list(takewhile(lambda name: leaving[name].is_gone(), leaving)):
            del leaving[gone]

    def _receiver(self, made: Action, process: int) -> Callable[[], Pending]:
        lane = process, self._process
        group, side = self._lanes[lane], self._sides[lane]
        shape, dtype = self._message.holding(self._tensors(made)), self._message.dtype

        def receive() -> Pending:
            tensor = torch.empty(shape, dtype=dtype, device=self._device)
            return _Nccl(dist.irecv(tensor, process, group=group), tensor, side)

        return receive

    def _batched_sender(self, made: Action, process: int) -> Callable[[Tensor], Leaving]:
        send = super()._batched_sender(made, process)

        def send_and_forget(tensor: Tensor) -> Leaving:
            self._forget_the_gone()
            return send(tensor)

        return send_and_forget

    @property
    def _carried_on(self) -> torch.device:
        return self._device

    def _join(self, made: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> Batch:
        pair = min(self._process, process), max(self._process, process)
        return self._batches.join(made, dist.P2POp(start, tensor, process, self._pairs[pair]), self._pair_sides[pair])

    def reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> Pending:
        if (stage, members) not in self._groups:
            return _Here(flat)
        shared = stage, members
        work = dist.all_reduce(flat, group=self._groups[shared], async_op=True)
        return _Nccl(work, flat, self._sides[shared])

    def total(self, values: Sequence[Tensor | float]) -> Tensor:
        sums = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self._device) for value in values])
        dist.all_reduce(sums)
        return sums


class _Nccl(Pending):
    """``Work.wait`` lets a stream wait, not the host; a stream of its own notes the arrival.

    The tensor was made on the stream of the computations and is held here until that stream has
    waited for it, so the allocator needs no ``record_stream`` to keep its memory.
    """

    def __init__(self, work: Work, tensor: Tensor, side: torch.Stream) -> None:
        self._work, self._tensor = work, tensor
        with use_stream(side):
            work.wait()
            self._arrived = record_event()

    def wait(self) -> Tensor:
        self._work.wait()
        return self._tensor

    @property
    def arrived(self) -> Stamp | None:
        return self._arrived
