"""Communication between accelerators with the backend of the device, such as NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

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
from meshwave.engine.runtime.communication.gloo_communicator import CompleteTensor, SentTensor
from meshwave.engine.runtime.communication.groups import all_gather, reduce_scatter
from meshwave.engine.runtime.device.accelerator import device_backend, record_event, synchronize, use_stream
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding import DeviceTransport

Pair = tuple[int, int]


class DeviceCommunicator(Communicator):
    """Communicator that sends from device to device, with one backend communicator per direction and pair of processes.

    NCCL and similar backends have no tags: messages are matched by their order, which the program fixes for each pair.
    Operations of one backend communicator run one after the other. With a single one for both directions, a send could
    be queued behind the receive that depends on it. Batches have one communicator per pair, on which both processes
    issue the same batches in the same order.
    """

    def _connect(self, timeout: timedelta) -> None:
        backend = device_backend(self._device)
        assert backend is not None, "the device has a backend of its own"
        self._directions = self._make_pair_groups(self._direct_pairs(), backend, timeout)
        self._batch_pairs = self._make_pair_groups(self._batched_pairs(), backend, timeout)
        self._make_groups(backend, timeout)
        # A stream for each communicator records arrivals, which are in order there. There is no stream per message:
        # torch reuses its 32 streams, and a stream of arrivals would soon be one in which other work waits.
        receiving = [*(pair for pair in self._directions if pair[1] == self._process), *self._groups]
        self._sides = {each: torch.Stream(self._device) for each in receiving}
        self._batch_sides = {pair: torch.Stream(self._device) for pair in self._batch_pairs}
        self._warm_up()
        pairs = {(move.source, move.target) for transfer in self._transfers.values() for move in transfer.moves}
        self._transport = DeviceTransport(sorted(pairs), self._process, self._device, timeout)

    def _make_pair_groups(self, pairs: Sequence[Pair], backend: str, timeout: timedelta) -> dict[Pair, Any]:
        """Create a process group for each pair of processes, and return the groups of this process."""
        groups = {pair: dist.new_group(pair, timeout=timeout, backend=backend) for pair in pairs}
        return {pair: group for pair, group in groups.items() if self._process in pair}

    def _warm_up(self) -> None:
        """Create all backend communicators in one order, because the first use of each waits for all its members."""
        token = torch.zeros(1, device=self._device)
        for (source, target), group in self._directions.items():
            if source == self._process:
                dist.send(token, target, group=group)
            else:
                dist.recv(token, source, group=group)
        for pair, group in self._batch_pairs.items():
            peer, received = sum(pair) - self._process, torch.empty_like(token)
            both = [dist.P2POp(dist.isend, token, peer, group), dist.P2POp(dist.irecv, received, peer, group)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        for group in self._groups.values():
            dist.all_reduce(token, group=group)
        dist.all_reduce(token)
        synchronize(self._device)

    def _bind_direct_send(self, producer: Action, process: int) -> Callable[[Tensor], PendingSend]:
        group = self._directions[self._process, process]

        def send(tensor: Tensor) -> PendingSend:
            self._release_complete()
            tensor = tensor.contiguous()
            return SentTensor(dist.isend(tensor, process, group=group), tensor)

        return send

    def _release_complete(self) -> None:
        """Release the oldest messages that the device reports as sent, before they are acknowledged."""
        sending = self._sending
        for producer in list(takewhile(lambda each: sending[each].is_complete(), sending)):
            del sending[producer]

    def _bind_direct_receive(self, producer: Action, process: int) -> Callable[[], PendingTensor]:
        pair = process, self._process
        group, side = self._directions[pair], self._sides[pair]
        shape_of, dtype = self._bind_shape(producer), self._message.dtype

        def receive() -> PendingTensor:
            tensor = torch.empty(shape_of(), dtype=dtype, device=self._device)
            return _DeviceTensor(dist.irecv(tensor, process, group=group), tensor, side)

        return receive

    def _bind_batched_send(self, producer: Action, process: int) -> Callable[[Tensor], PendingSend]:
        send = super()._bind_batched_send(producer, process)

        def release_and_send(tensor: Tensor) -> PendingSend:
            self._release_complete()
            return send(tensor)

        return release_and_send

    def _add_to_batch(self, producer: Action, start: Callable[..., Any], tensor: Tensor, process: int) -> MessageBatch:
        pair = min(self._process, process), max(self._process, process)
        operation = dist.P2POp(start, tensor, process, self._batch_pairs[pair])
        return self._batches.add(producer, operation, self._batch_sides[pair])

    def start_all_reduce(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start an all-reduce of gradients on the device."""
        key = stage, members
        if key not in self._groups:
            return CompleteTensor(flat)
        work = dist.all_reduce(flat, group=self._groups[key], async_op=True)
        return _DeviceTensor(work, flat, self._sides[key])

    def start_reduce_scatter(self, stage: int, members: tuple[int, ...], flat: Tensor) -> PendingTensor:
        """Start a reduce-scatter of gradients on the device."""
        key = stage, members
        if key not in self._groups:
            return CompleteTensor(flat)
        part = torch.empty(len(flat) // len(members), dtype=flat.dtype, device=flat.device)
        work = reduce_scatter(part, flat, group=self._groups[key], async_op=True)
        return _DeviceTensor(work, part, self._sides[key], flat)

    def start_all_gather(self, stage: int, members: tuple[int, ...], part: Tensor, whole: Tensor) -> PendingTensor:
        """Start an all-gather of weights on the device."""
        key = stage, members
        if key not in self._groups:
            return CompleteTensor(whole.copy_(part))
        work = all_gather(whole, part, group=self._groups[key], async_op=True)
        return _DeviceTensor(work, whole, self._sides[key], part)

    def sum_over_processes(self, values: Sequence[Tensor | float]) -> Tensor:
        """Return the float64 sum of each value over all processes, computed on the device."""
        sums = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self._device) for value in values])
        dist.all_reduce(sums)
        return sums


class _DeviceTensor(PendingTensor):
    """Tensor in flight to a device; a stream of its communicator records the arrival.

    ``Work.wait`` blocks the current stream, not the host. The tensor was allocated on the compute stream and is
    referenced here until that stream has waited for it, so the allocator needs no ``record_stream``.
    """

    def __init__(self, work: Work, tensor: Tensor, side: torch.Stream, source: Tensor | None = None) -> None:
        self._work, self._tensor, self._source = work, tensor, source
        with use_stream(side):
            work.wait()
            self._arrival = record_event()

    def wait(self) -> Tensor:
        self._work.wait()
        return self._tensor

    @property
    def arrival(self) -> Stamp | None:
        return self._arrival
