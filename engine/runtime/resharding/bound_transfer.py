"""A transfer that is bound to a process, started as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from meshwave.engine.errors import InputError
from meshwave.engine.resharding import Transfer
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.resharding.carriers import Carrier, Under
from meshwave.engine.runtime.resharding.partial_sums import Addition
from meshwave.engine.runtime.resharding.process_part import Part, Slice, extent
from meshwave.engine.runtime.resharding.tensor_checks import check_apart, check_shard, check_sum

T = TypeVar("T")
Shards = list[Tensor | None]
"""[tensors of the transfer] a shard of each; none where the process has no part of it."""


class Underway(Generic[T]):
    """A transfer that this process takes part in, under way."""

    def __init__(self, under: Under, deliver: Callable[[], T], held: Sequence[object], *, gets: bool) -> None:
        """``gets``: whether this process gets a shard."""
        self._under, self._deliver, self._gets = under, deliver, gets
        self._held = held  # must live until it is gone
        self._result: list[T] = []  # one, once it is there
        self._is_gone = False

    def received(self) -> T:
        """Wait until what this process gets is whole, and return it; none where it gets none.

        It may still be on its way to others: it is not to be written to before :meth:`wait`.

        Raises:
            RunError: a message did not come; another process failed, or the timeout is over.
        """
        if not self._result:
            self._under.receive()
            self._result = [self._deliver()]
        return self._result[0]

    def wait(self) -> T:
        """As :meth:`received`, and until everything that this process sends is gone.

        Raises:
            RunError: a message did not come or could not be sent.
        """
        result = self.received()
        if not self._is_gone:
            self._under.send()
            self._held, self._is_gone = (), True
        return result

    def is_gone(self) -> bool:
        """Whether it is known without a wait that nothing is under way any more, so that nobody needs to hold it."""
        return self._is_gone or ((bool(self._result) or not self._gets) and self._under.is_gone())

    @property
    def arrived(self) -> Stamp | None:
        """When the last message was there, where that is known: what this process hands on is waited for as it
        comes, and a GPU notes it. Else when somebody asked. To be asked after :meth:`received`."""
        return self._under.arrived()


class Moving(Underway[Tensor | None]):
    """A transfer of one tensor, under way; it ends with this process's shard."""


class Bound:
    """A planned transfer, bound to this process, with a carrier for its bytes."""

    def __init__(
        self,
        planned: Transfer,
        process: int,
        dtypes: Sequence[torch.dtype],
        carrier: Carrier,
        device: torch.device | None,
    ) -> None:
        """
        Raises:
            InputError: an element of a dtype is not as long as those of the plan, or cannot be summed.
        """
        for load, dtype in zip(planned.loads, dtypes, strict=True):
            if dtype.itemsize != load.tensor.item_bytes:
                raise InputError(
                    f"the plan is for elements of {load.tensor.item_bytes} bytes, and one of {dtype} has {dtype.itemsize}"
                )
            check_sum(load, dtype)
        self.planned, self.process, self.dtypes = planned, process, tuple(dtypes)
        self.device = device or carrier.device
        self.part = Part(planned, process)
        self._carry, self._there = carrier.bind(self.part), carrier.device
        self._owned, self._needed = (
            [None if box is None else extent(box) for box in boxes] for boxes in (self.part.owned, self.part.needed)
        )

    @property
    def tags(self) -> int:
        """How many tags it takes, from that of its start on."""
        return self.part.tags

    @property
    def gets(self) -> bool:
        return any(shape is not None for shape in self._needed)

    @torch.no_grad()
    def begin(
        self, locals_: Sequence[Tensor | None], intos: Sequence[Tensor | None], tag: int
    ) -> tuple[Under, Callable[[], Shards], list[Tensor]]:
        """Start all messages; what delivers the shards, and what must live until all is sent.

        Raises:
            InputError: a tensor is not of the shape or the dtype of its shard, or is missing, or shares memory with
                another one.
            RunError: another process has gone already.
        """
        for number in range(len(self.dtypes)):
            self._check(number, locals_[number], intos[number])
        check_apart(locals_, intos)
        held = [None if each is None else each.detach().to(self._there) for each in locals_]
        shards = [self._shard(number, into) for number, into in enumerate(intos)]
        slices = [self._bytes(each, held[each.tensor], shards[each.tensor]) for each in self.part.slices]
        data = [flat for flat, _ in slices]
        sums = {each.total: Addition(each, data, self._dtype(each.total)) for each in self.part.sums}
        under = self._carry(data, tag, sums)
        rest = [(each, flat) for each, (flat, is_there) in zip(self.part.slices, slices, strict=True) if not is_there]

        @torch.no_grad()
        def deliver() -> Shards:
            for make in sums.values():
                make()
            for each, flat in rest:
                shard = shards[each.tensor]
                assert shard is not None
                assert each.write is not None
                shard[each.write].copy_(flat.view(shard.dtype).view(shard[each.write].shape))
            return [self._delivered(shard, into) for shard, into in zip(shards, intos, strict=True)]

        return under, deliver, data

    def _delivered(self, shard: Tensor | None, into: Tensor | None) -> Tensor | None:
        if shard is None:
            return None
        if into is not None:
            return into if into is shard else into.copy_(shard)
        return shard.to(self.device)

    def _dtype(self, place: int) -> torch.dtype:
        return self.dtypes[self.part.slices[place].tensor]

    def _check(self, number: int, local: Tensor | None, into: Tensor | None) -> None:
        who, name = f"process {self.process}", self.planned.loads[number].name
        check_shard(f"{who} holds", name, local, self._owned[number], self.dtypes[number])
        if into is not None or self._needed[number] is None:
            check_shard(f"{who} gets", name, into, self._needed[number], self.dtypes[number])

    def _shard(self, number: int, into: Tensor | None) -> Tensor | None:
        shape = self._needed[number]
        if shape is None:
            return None
        if into is not None and into.device == self._there:
            return into
        return torch.empty(shape, dtype=self.dtypes[number], device=self._there)

    def _bytes(self, each: Slice, held: Tensor | None, shard: Tensor | None) -> tuple[Tensor, bool]:
        """The bytes of a slice, and whether the shard that this process gets needs no copy of them."""
        if each.read is not None:
            assert held is not None
            flat = _flat(held[each.read].contiguous())
            return flat, each.write is None
        if each.write is not None:
            assert shard is not None
            window = shard[each.write]
            if window.is_contiguous():
                return _flat(window), True
        return torch.empty(each.bytes, dtype=torch.uint8, device=self._there), each.write is None


class Resharding(Bound):
    """A planned transfer of one tensor, bound to this process: start it as often as wanted, several at once too.

    All processes of both meshes start it, in the same order as they start others of the same tags.
    """

    def __init__(
        self, planned: Transfer, process: int, dtype: torch.dtype, carrier: Carrier, device: torch.device | None = None
    ) -> None:
        """``device``: where shards are wanted; none: where the carrier has them.

        Raises:
            InputError: an element of ``dtype`` is not as long as those of the plan, or cannot be summed.
        """
        super().__init__(planned, process, [dtype], carrier, device)

    def start(self, local: Tensor | None = None, *, into: Tensor | None = None, tag: int = 0) -> Moving:
        """Start to send what this process holds and to receive what it gets.

        Args:
            local: this process's shard, of a process in the source mesh; of a partial tensor its addend. It is
                not to be written to before the end.
            into: a tensor for the shard that it gets, any strides; none: a new one.
            tag: the first of ``tags`` tags that no other transfer under way between these processes has.

        Raises:
            InputError: a tensor is not of the shape or the dtype of the shard, or is missing, or both
                share memory.
            RunError: another process has gone already.
        """
        under, deliver, held = self.begin([local], [into], tag)
        return Moving(under, lambda: deliver()[0], held, gets=self.gets)


def _flat(contiguous: Tensor) -> Tensor:
    """The bytes of a tensor; one of a single element may be contiguous with any stride."""
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)
