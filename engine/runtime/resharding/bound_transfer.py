"""Planned transfers bound to a process, which can be started any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from meshwave.engine.findings import Refusal
from meshwave.engine.resharding import Transfer
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding.partial_sums import SliceSum
from meshwave.engine.runtime.resharding.process_part import ProcessPart, Slice, box_shape
from meshwave.engine.runtime.resharding.tensor_checks import check_no_overlap, check_shard, check_summable
from meshwave.engine.runtime.resharding.transports import MessagesInFlight, Transport

T = TypeVar("T")
Shards = list[Tensor | None]
"""Shard of each tensor of a transfer; None if the process has no part of the tensor."""


class PendingTransfer(Generic[T]):
    """Transfer in flight in which this process takes part."""

    def __init__(
        self, messages: MessagesInFlight, deliver: Callable[[], T], data: Sequence[object], *, receives_shard: bool
    ) -> None:
        """Wrap messages in flight.

        Args:
            messages: the messages of this process.
            deliver: returns the result after all messages have arrived.
            data: objects that must stay alive until all messages are sent.
            receives_shard: True if this process receives a shard.
        """
        self._messages, self._deliver, self._receives_shard = messages, deliver, receives_shard
        self._data = data
        self._result: list[T] = []  # the result, as a single entry, after its arrival
        self._is_complete = False

    def wait_received(self) -> T:
        """Wait until the result of this process has arrived, and return it.

        This process may still be forwarding parts of the result: do not write to it before :meth:`wait` returns.

        Raises:
            RunError: a message did not arrive, because another process failed or exceeded the timeout.
        """
        if not self._result:
            self._messages.wait_received()
            self._result = [self._deliver()]
        return self._result[0]

    def wait(self) -> T:
        """Wait until this process has received and sent all messages, and return its result.

        Raises:
            RunError: a message did not arrive or could not be sent.
        """
        result = self.wait_received()
        if not self._is_complete:
            self._messages.wait_until_sent()
            self._data, self._is_complete = (), True
        return result

    def is_complete(self) -> bool:
        """Return True if all messages are known to be received and sent, without waiting for them."""
        return self._is_complete or ((bool(self._result) or not self._receives_shard) and self._messages.is_sent())

    @property
    def arrival(self) -> Stamp | None:
        """Arrival of the last message; None if unknown. Valid after :meth:`wait_received`.

        It is exact on a GPU and for messages that this process forwards; otherwise it is the time of the first wait.
        """
        return self._messages.arrival()


class PendingReshard(PendingTransfer[Tensor | None]):
    """Transfer of one tensor in flight; its result is this process's shard, or None if it receives none."""


class BoundTransfer:
    """Planned transfer, bound to this process and a transport."""

    def __init__(
        self,
        planned: Transfer,
        process: int,
        dtypes: Sequence[torch.dtype],
        transport: Transport,
        device: torch.device | None,
    ) -> None:
        """Bind the plan to a process.

        Raises:
            InputError: a dtype has another item size than the plan, or cannot be summed.
        """
        for load, dtype in zip(planned.loads, dtypes, strict=True):
            if dtype.itemsize != load.tensor.item_bytes:
                sizes = {"planned": load.tensor.item_bytes, "given": dtype.itemsize}
                raise Refusal("element_size", {"dtype": str(dtype), **sizes})
            check_summable(load, dtype)
        self.planned, self.process, self.dtypes = planned, process, tuple(dtypes)
        self.device = device or transport.device
        self.part = ProcessPart(planned, process)
        self._start_messages, self._transport_device = transport.bind(self.part), transport.device
        self._owned_shapes, self._needed_shapes = (
            [None if box is None else box_shape(box) for box in boxes] for boxes in (self.part.owned, self.part.needed)
        )

    @property
    def tag_count(self) -> int:
        """Number of consecutive tags that a start of the transfer uses."""
        return self.part.tag_count

    @property
    def receives_shard(self) -> bool:
        """True if this process receives a shard of any tensor."""
        return any(shape is not None for shape in self._needed_shapes)

    @torch.no_grad()
    def start_messages(
        self, locals_: Sequence[Tensor | None], intos: Sequence[Tensor | None], tag: int
    ) -> tuple[MessagesInFlight, Callable[[], Shards], list[Tensor]]:
        """Start all messages of this process.

        Returns:
            The messages, a function that returns the shards after they have arrived, and the tensors that must stay
            alive until all messages are sent.

        Raises:
            InputError: a tensor is missing, has not the shape or dtype of its shard, or shares memory with another one.
            RunError: the connection to another process is closed.
        """
        for number in range(len(self.dtypes)):
            self._check_tensors(number, locals_[number], intos[number])
        check_no_overlap(locals_, intos)
        held = [None if each is None else each.detach().to(self._transport_device) for each in locals_]
        shards = [self._receive_buffer(number, into) for number, into in enumerate(intos)]
        slices = [self._slice_bytes(each, held[each.tensor], shards[each.tensor]) for each in self.part.slices]
        data = [flat for flat, _ in slices]
        sums = {each.total: SliceSum(each, data, self._dtype(each.total)) for each in self.part.sums}
        messages = self._start_messages(data, tag, sums)
        to_copy = [(each, flat) for each, (flat, is_view) in zip(self.part.slices, slices, strict=True) if not is_view]

        @torch.no_grad()
        def deliver() -> Shards:
            for compute in sums.values():
                compute()
            for each, flat in to_copy:
                shard = shards[each.tensor]
                assert shard is not None
                assert each.write is not None
                shard[each.write].copy_(flat.view(shard.dtype).view(shard[each.write].shape))
            return [self._deliver_shard(shard, into) for shard, into in zip(shards, intos, strict=True)]

        return messages, deliver, data

    def _deliver_shard(self, shard: Tensor | None, into: Tensor | None) -> Tensor | None:
        if shard is None:
            return None
        if into is not None:
            return into if into is shard else into.copy_(shard)
        return shard.to(self.device)

    def _dtype(self, place: int) -> torch.dtype:
        return self.dtypes[self.part.slices[place].tensor]

    def _check_tensors(self, number: int, local: Tensor | None, into: Tensor | None) -> None:
        process, name = f"process {self.process}", self.planned.loads[number].name
        check_shard(f"{process} holds", name, local, self._owned_shapes[number], self.dtypes[number])
        if into is not None or self._needed_shapes[number] is None:
            check_shard(f"{process} receives", name, into, self._needed_shapes[number], self.dtypes[number])

    def _receive_buffer(self, number: int, into: Tensor | None) -> Tensor | None:
        """Return the tensor on the transport's device into which this process's shard is received."""
        shape = self._needed_shapes[number]
        if shape is None:
            return None
        if into is not None and into.device == self._transport_device:
            return into
        return torch.empty(shape, dtype=self.dtypes[number], device=self._transport_device)

    def _slice_bytes(self, each: Slice, held: Tensor | None, shard: Tensor | None) -> tuple[Tensor, bool]:
        """Return the bytes of a slice, and True if they need no copy into the shard that this process receives."""
        if each.read is not None:
            assert held is not None
            return _flat_bytes(held[each.read].contiguous()), each.write is None
        if each.write is not None:
            assert shard is not None
            window = shard[each.write]
            if window.is_contiguous():
                return _flat_bytes(window), True
        return torch.empty(each.bytes, dtype=torch.uint8, device=self._transport_device), each.write is None


class Resharding(BoundTransfer):
    """Planned transfer of one tensor, bound to this process. Several starts may be in flight at once.

    All processes of both meshes must start it, in the same order relative to other transfers with the same tags.
    """

    def __init__(
        self,
        planned: Transfer,
        process: int,
        dtype: torch.dtype,
        transport: Transport,
        device: torch.device | None = None,
    ) -> None:
        """Bind the plan. Shards are delivered on ``device``; None for the device of the transport.

        Raises:
            InputError: the dtype has another item size than the plan, or cannot be summed.
        """
        super().__init__(planned, process, [dtype], transport, device)

    def start(self, local: Tensor | None = None, *, into: Tensor | None = None, tag: int = 0) -> PendingReshard:
        """Start to send this process's shard of the source and to receive its shard of the destination.

        Args:
            local: the shard of a process in the source mesh, or its partial sum; do not write to it before the transfer
                is complete.
            into: the tensor to receive into, with any strides; None for a new tensor.
            tag: the first of ``tag_count`` tags that no other transfer in flight between these processes uses.

        Raises:
            InputError: a tensor is missing, has not the shape or dtype of the shard, or both tensors share memory.
            RunError: the connection to another process is closed.
        """
        messages, deliver, data = self.start_messages([local], [into], tag)
        return PendingReshard(messages, lambda: deliver()[0], data, receives_shard=self.receives_shard)


def _flat_bytes(contiguous: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor; a tensor with a single element may have any stride."""
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)
