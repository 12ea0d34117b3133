"""Tensor parallelism: processes that hold a cut of each product and sum what they found.

Shoeybi et al. (arXiv:1909.08053, section 3): the first of two products is cut by columns and the
second by rows, so that one all-reduce in the forward and one in the backward do for both. What
is not cut (norms, positions, the biases behind a sum) is held and computed by all alike: their
gradients are whole on each process, because every process has the same gradient of the sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.deferred_gradients import Linear, Table


class Cut(NamedTuple):
    """Which part of a whole weight a parameter is."""

    dim: int
    pieces: tuple[range, ...]  # of that dim, one after the other
    whole: int  # size of that dim of the whole weight

    def shape(self, own: torch.Size) -> list[int]:
        """The shape of the whole weight."""
        return [self.whole if dim == self.dim else size for dim, size in enumerate(own)]

    def of(self, whole: Tensor) -> Tensor:
        """The part of the whole weight."""
        return torch.cat([whole.narrow(self.dim, piece.start, len(piece)) for piece in self.pieces], self.dim)


def cut_of(parameter: Tensor) -> Cut | None:
    """Which part a parameter is; none where it is whole."""
    return getattr(parameter, "cut", None)


class _Copy(Function):
    """The same tensor to all; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _Reduce(Function):
    """The sum of what all found; the gradient is the same for all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _summed(x: Tensor, group: Group) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group.handle)
    return x


def copy_to(x: Tensor, group: Group) -> Tensor:
    """``x``, held by all of the group, into what each computes of it."""
    if group.size == 1:
        return x
    copied: Tensor = _Copy.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """The sum of ``x`` over the group, held by all."""
    if group.size == 1:
        return x
    reduced: Tensor = _Reduce.apply(x, group)  # type: ignore[no-untyped-call]
    return reduced


class ColumnLinear(Linear):
    """The own columns of a linear map of ``pieces`` equal blocks, each cut over the group alike.

    It takes what all hold and gives what only this process has.
    """

    def __init__(self, inputs: int, outputs: int, group: Group = ALONE, *, pieces: int = 1, bias: bool = True) -> None:
        block = outputs // pieces
        own = group.part(block)
        super().__init__(inputs, pieces * len(own), bias=bias)
        self.group = group
        if group.size > 1:
            parts = tuple(range(n * block + own.start, n * block + own.stop) for n in range(pieces))
            for parameter in self.parameters():
                parameter.cut = Cut(0, parts, outputs)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        if self.cast is not None and self.group.size > 1:
            x = x.to(self.cast[0].dtype)  # a GPU norms in 32 bits: its gradient would be summed in them
        return super().forward(copy_to(x, self.group))


class RowLinear(Linear):
    """The own rows of a linear map: it takes what only this process has and gives what all hold.

    The bias is added once, to the sum.
    """

    def __init__(self, inputs: int, outputs: int, group: Group = ALONE) -> None:
        own = group.part(inputs)
        super().__init__(len(own), outputs)
        self.group = group
        if group.size > 1:
            self.weight.cut = Cut(1, (own,), inputs)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        if self.group.size == 1:
            return super().forward(x)
        found, bias = self.without_bias(x)
        return reduce_from(found, self.group) + bias


class VocabTable(Table):
    """Rows of a table of tokens, the own ones of the group's."""

    def __init__(self, vocab: int, hidden: int, group: Group = ALONE) -> None:
        self.own = group.part(vocab)
        super().__init__(len(self.own), hidden)
        self.group = group
        if group.size > 1:
            self.weight.cut = Cut(0, (self.own,), vocab)  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        if self.group.size == 1:
            return super().forward(tokens)
        place = tokens - self.own.start
        outside = (place < 0) | (place >= len(self.own))
        rows = super().forward(place.masked_fill(outside, 0))
        return reduce_from(rows.masked_fill(outside.unsqueeze(-1), 0.0), self.group)


def cross_entropy(logits: Tensor, targets: Tensor, own: range, group: Group, ignored: int) -> Tensor:
    """The mean loss of ``[rows, own]`` logits, the own columns of the vocabulary; ``[rows]`` targets.

    The logarithms are in 32 bits at least: autocast sees to that on a CPU, and on a GPU rounds them to 16.
    The group exchanges three numbers a row, not the logits (arXiv:1909.08053, section 3).
    """
    if group.size == 1:
        return F.cross_entropy(_wide(logits), targets, ignore_index=ignored)
    loss: Tensor = _CrossEntropy.apply(logits, targets, own, group, ignored)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, own: range, group: Group, ignored: int) -> Tensor:
        wide = _wide(logits)
        largest = wide.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group.handle)
        exps = (wide - largest.unsqueeze(1)).exp_()
        total = exps.sum(1)
        dist.all_reduce(total, group=group.handle)
        place = targets - own.start
        mine = (place >= 0) & (place < len(own))
        place = place.masked_fill(~mine, 0)
        aimed = wide.gather(1, place.unsqueeze(1)).squeeze(1).masked_fill(~mine, 0.0)
        dist.all_reduce(aimed, group=group.handle)
        counts = targets != ignored
        number = counts.sum()
        ctx.save_for_backward(exps.div_(total.unsqueeze(1)), place, mine, counts, number)
        ctx.dtype = logits.dtype
        losses = (total.log() + largest - aimed).masked_fill(~counts, 0.0)
        return losses.sum() / number

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        found, place, mine, counts, number = ctx.saved_tensors
        found = found.clone()
        found.scatter_add_(1, place.unsqueeze(1), -mine.to(found.dtype).unsqueeze(1))
        found.mul_((gradient / number) * counts.unsqueeze(1))
        return found.to(ctx.dtype), None, None, None, None


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
