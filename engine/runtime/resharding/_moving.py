"""A transfer that is bound to a process, started as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.errors import InputError
from engine.runtime.clock import Stamp
from engine.runtime.resharding._carriers import Carrier, Under
from engine.runtime.resharding._part import Part, Slice, extent
from engine.transfer import Transfer


class Moving:
    """A transfer that this process takes part in, under way."""

    def __init__(
        self, under: Under, deliver: Callable[[], Tensor | None], held: Sequence[Tensor], *, gets: bool
    ) -> None:
        """``gets``: whether this process gets a shard."""
        self._under, self._deliver, self._gets = under, deliver, gets
        self._held = held  # must live until it is gone
        self._shard: Tensor | None = None
        self._is_here = self._is_gone = False

    def received(self) -> Tensor | None:
        """Wait until this process's shard is whole, and return it; none where it gets none.

        It may still be on its way to others: it is not to be written to before :meth:`wait`.

        Raises:
            RunError: a message did not come; another process failed, or the timeout is over.
        """
        if not self._is_here:
            self._under.receive()
            self._shard, self._is_here = self._deliver(), True
        return self._shard

    def wait(self) -> Tensor | None:
        """As :meth:`received`, and until everything that this process sends is gone.

        Raises:
            RunError: a message did not come or could not be sent.
        """
        shard = self.received()
        if not self._is_gone:
            self._under.send()
            self._held, self._is_gone = (), True
        return shard

    def is_gone(self) -> bool:
        """Whether it is known without a wait that nothing is under way any more, so that nobody needs to hold it."""
        return self._is_gone or ((self._is_here or not self._gets) and self._under.is_gone())

    @property
    def arrived(self) -> Stamp | None:
        """When the last message was there, where that is known: what this process hands on is waited for as it
        comes, and a GPU notes it. Else when somebody asked. To be asked after :meth:`received`."""
        return self._under.arrived()


class Resharding:
    """A planned transfer, bound to this process: start it as often as wanted, several at once too.

    All processes of both meshes start it, in the same order as they start others of the same tags.
    """

    def __init__(
        self, planned: Transfer, process: int, dtype: torch.dtype, carrier: Carrier, device: torch.device | None = None
    ) -> None:
        """``device``: where shards are wanted; none: where the carrier has them.

        Raises:
            InputError: an element of ``dtype`` is not as long as those of the plan.
        """
        if dtype.itemsize != planned.tensor.item_bytes:
            raise InputError(
                f"the plan is for elements of {planned.tensor.item_bytes} bytes, and one of {dtype} has {dtype.itemsize}"
            )
        self.planned, self.process, self.dtype = planned, process, dtype
        self.device = device or carrier.device
        self.part = Part(planned, process)
        self._carry, self._there = carrier.bind(self.part), carrier.device
        self._owned, self._needed = (
            None if box is None else extent(box) for box in (self.part.owned, self.part.needed)
        )

    @property
    def tags(self) -> int:
        """How many tags it takes: from that of :meth:`start` on."""
        return self.part.tags

    @torch.no_grad()
    def start(self, local: Tensor | None = None, *, into: Tensor | None = None, tag: int = 0) -> Moving:
        """Start to send what this process holds and to receive what it gets.

        Args:
            local: this process's shard, of a process in the source mesh. It is not to be written to
                before the end.
            into: a tensor for the shard that it gets, any strides; none: a new one.
            tag: the first of ``tags`` tags that no other transfer under way between these processes has.

        Raises:
            InputError: a tensor is not of the shape or the dtype of the shard, or is missing, or both
                share memory.
            RunError: another process has gone already.
        """
        self._check("holds", local, self._owned)
        if into is not None or self._needed is None:
            self._check("gets", into, self._needed)
        _check_apart(local, into)
        held = None if local is None else local.detach().to(self._there)
        shard = self._shard(into)
        slices = [self._bytes(each, held, shard) for each in self.part.slices]
        under = self._carry([flat for flat, _ in slices], tag)
        rest = [
            (each.write, flat) for each, (flat, is_there) in zip(self.part.slices, slices, strict=True) if not is_there
        ]

        def deliver() -> Tensor | None:
            if shard is None:
                return None
            for window, flat in rest:
                assert window is not None
                shard[window].copy_(flat.view(self.dtype).view(shard[window].shape))
            if into is not None:
                return into if into is shard else into.copy_(shard)
            return shard.to(self.device)

        return Moving(under, deliver, [flat for flat, _ in slices], gets=shard is not None)

    def _shard(self, into: Tensor | None) -> Tensor | None:
        if self._needed is None:
            return None
        if into is not None and into.device == self._there:
            return into
        return torch.empty(self._needed, dtype=self.dtype, device=self._there)

    def _bytes(self, each: Slice, held: Tensor | None, shard: Tensor | None) -> tuple[Tensor, bool]:
        """The bytes of a slice, and whether the shard that this process gets needs no copy of them."""
        if each.read is not None:
            assert held is not None
            flat = _flat(held[each.read].contiguous())
            return flat, each.write is None
        assert each.write is not None
        assert shard is not None
        window = shard[each.write]
        if window.is_contiguous():
            return _flat(window), True
        return torch.empty(each.elements * self.dtype.itemsize, dtype=torch.uint8, device=self._there), False

    def _check(self, what: str, tensor: Tensor | None, shape: tuple[int, ...] | None) -> None:
        who = f"process {self.process}"
        if shape is None:
            if tensor is not None and tensor.numel():
                raise InputError(f"{who} {what} no part of the tensor, and was given one of {_described(tensor)}")
        elif tensor is None:
            if 0 not in shape:
                raise InputError(
                    f"{who} {what} a shard of {_sizes(shape)} {dtype_name(self.dtype)}, and was given none"
                )
        elif tuple(tensor.shape) != shape or tensor.dtype != self.dtype:
            raise InputError(
                f"{who} {what} a shard of {_sizes(shape)} {dtype_name(self.dtype)}, and was given {_described(tensor)}"
            )


def _flat(contiguous: Tensor) -> Tensor:
    """The bytes of a tensor; one of a single element may be contiguous with any stride."""
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def _check_apart(local: Tensor | None, into: Tensor | None) -> None:
    """What comes would overwrite what is yet to go."""
    if local is None or into is None or not local.numel() or not into.numel() or local.device != into.device:
        return
    (first, last), (begin, end) = _memory(local), _memory(into)
    if first < end and begin < last:
        raise InputError("the shard that is sent and the one that is received share memory; give a tensor of its own")


def _memory(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _described(tensor: Tensor) -> str:
    return f"{_sizes(tensor.shape)} {dtype_name(tensor.dtype)}"


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one element"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
