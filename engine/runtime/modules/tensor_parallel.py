"""Tensor parallelism: each process holds a shard of every matrix, and partial results are summed.

Shoeybi et al. (arXiv:1909.08053, section 3): the first of two matrices is sharded by columns and the second by rows, so
that both together need one all-reduce in the forward and one in the backward. Weights that are not sharded (norms,
positions, biases added after a sum) are replicated. Their gradients are complete on each process, because all processes
have the same gradient of the sum.

With sequence parallelism (Korthikanti et al., arXiv:2205.05198, section 4.2.2), each process has a share of the tokens
outside attention and MLP. The input of the first matrix is gathered and the output of the second is reduce-scattered.
The gradient of a replicated weight is then a sum over the process's own tokens, and is marked as partial.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.communication.groups import ALONE, Group, all_gather, reduce_scatter
from meshwave.engine.runtime.device.turns import wait_in_turn
from meshwave.engine.runtime.modules.deferred_gradients import EmbeddingTable, Linear, add_linear_gradients
from meshwave.engine.runtime.modules.precision import at_least_float32


class WeightShard(NamedTuple):
    """Part of a whole weight that a parameter holds."""

    dim: int
    pieces: tuple[range, ...]  # indices along that dim, in the order of the parameter
    whole_size: int  # size of that dim in the whole weight

    def whole_shape(self, shape: torch.Size) -> list[int]:
        """Return the shape of the whole weight, given the shape of the parameter."""
        return [self.whole_size if dim == self.dim else size for dim, size in enumerate(shape)]

    def select_part(self, whole: Tensor) -> Tensor:
        """Return the elements of this part from the whole weight."""
        return torch.cat([whole.narrow(self.dim, piece.start, len(piece)) for piece in self.pieces], self.dim)


def weight_shard(parameter: Tensor) -> WeightShard | None:
    """Return the part of a weight that a parameter holds; None if the parameter is the whole weight."""
    return getattr(parameter, "shard", None)


def mark_partial(part: nn.Module, group: Group) -> None:
    """Mark the direct weights of a module that computes a share of the tokens: ``group`` must sum their gradients."""
    if group.divides_tokens and group.size > 1:
        for parameter in part.parameters(recurse=False):
            if weight_shard(parameter) is None:
                parameter.has_partial_gradient = True  # type: ignore[attr-defined]


def has_partial_gradient(parameter: Tensor) -> bool:
    """Return True if the gradient of a replicated weight is the sum of the gradients of its tensor-parallel group."""
    return getattr(parameter, "has_partial_gradient", False)


class _Copy(Function):
    """Identity in the forward; the backward sums the gradients over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradient, ctx.group), None


class _Reduce(Function):
    """Sum over the group in the forward; identity in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _all_reduce(x: Tensor, group: Group) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    wait_in_turn(dist.all_reduce(x, group=group.handle, async_op=True))
    return x


class _ScatterTokens(Function):
    """Reduce-scatter over tokens in the forward, plus a bias; the backward gathers the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, bias: Tensor | None) -> Tensor:
        ctx.group = group
        own = _scatter_tokens(x, group)
        return own if bias is None else own.add_(bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor | None]:
        whole = _gather_tokens(gradient, ctx.group)
        return whole, None, whole.flatten(0, 1).sum(0) if ctx.needs_input_grad[2] else None


class _GatherTokens(Function):
    """All-gather over tokens in the forward; the backward sums the gradients, and each process keeps its own tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scatter_tokens(gradient, ctx.group), None


class _GatherReplicated(Function):
    """All-gather over tokens in the forward; the backward selects the own tokens of a gradient that all members have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gather_tokens(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_tokens(gradient, ctx.group), None


class _SelectTokens(Function):
    """Selection of the own tokens in the forward; the backward gathers the gradients of all tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _own_tokens(x, group).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather_tokens(gradient, ctx.group), None


def _own_tokens(x: Tensor, group: Group) -> Tensor:
    own = group.own_range(x.shape[1])
    return x[:, own.start : own.stop]


class _GatheringLinear(Function):
    """Linear map of all tokens of the group; it saves only its own tokens and gathers the others again in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, linear: ColumnLinear) -> Tensor:
        x = x.to(weight.dtype)
        ctx.save_for_backward(x, weight)
        ctx.linear, ctx.dtype = linear, x.dtype
        return linear.products.output(linear.products.keep(_gather_tokens(x, linear.group)), weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        linear, rows = ctx.linear, gradient.flatten(0, -2)
        kept = linear.products.keep(_gather_tokens(x, linear.group))
        input_gradient = linear.products.input_gradient(rows, weight).view(*gradient.shape[:-1], -1)
        input_gradient = _scatter_tokens(input_gradient, linear.group)
        if linear.gradient_queue is not None:
            linear.gradient_queue.add(partial(add_linear_gradients, linear, rows, *kept))
            return input_gradient, None, None, None
        weight_gradient = linear.products.weight_gradient(rows, kept)
        return input_gradient, weight_gradient, None if linear.bias is None else rows.sum(0), None


def _gather_tokens(x: Tensor, group: Group) -> Tensor:
    """Return the tokens of all members, ``[batch, sequence, width]``; each member passes an equal share of them."""
    parts = torch.empty((group.size, *x.shape), dtype=x.dtype, device=x.device)
    wait_in_turn(all_gather(parts.view(-1), x.contiguous().view(-1), group=group.handle, async_op=True))
    return parts.transpose(0, 1).flatten(1, 2)


def _scatter_tokens(x: Tensor, group: Group) -> Tensor:
    """Return this member's tokens of the sum of ``x [batch, sequence, width]`` over the group."""
    batch, sequence, width = x.shape
    parts = x.view(batch, group.size, sequence // group.size, width).transpose(0, 1).contiguous()
    own = torch.empty(parts.shape[1:], dtype=x.dtype, device=x.device)
    wait_in_turn(reduce_scatter(own.view(-1), parts.view(-1), group=group.handle, async_op=True))
    return own


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Return ``x``, which is the same on the whole group, with a backward that sums the gradients of the group.

    With sequence parallelism, ``x`` has this process's tokens, and those of all members are returned.
    """
    if group.size == 1:
        return x
    copied: Tensor = (_GatherTokens if group.divides_tokens else _Copy).apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def apply_to_all_tokens(replicated: Callable[[Tensor], Tensor], x: Tensor, group: Group) -> Tensor:
    """Apply a function that computes the same on the whole group; with sequence parallelism, ``x`` has own tokens only.

    The group gathers the tokens and selects its own tokens of the output. The gradient of the output is gathered.
    """
    if group.size == 1 or not group.divides_tokens:
        return replicated(x)
    out: Tensor = _SelectTokens.apply(replicated(_GatherReplicated.apply(x, group)), group)  # type: ignore[no-untyped-call]
    return out


def sum_over_group(x: Tensor, group: Group, bias: Tensor | None = None) -> Tensor:
    """Return the sum of ``x`` over the group plus a bias; with sequence parallelism, only for this process's tokens."""
    if group.size > 1 and group.divides_tokens:
        own: Tensor = _ScatterTokens.apply(x, group, bias)  # type: ignore[no-untyped-call]
        return own
    if group.size > 1:
        x = _differentiable_sum(x, group)
    return x if bias is None else x + bias


def _differentiable_sum(x: Tensor, group: Group) -> Tensor:
    reduced: Tensor = _Reduce.apply(x, group)  # type: ignore[no-untyped-call]
    return reduced


class ColumnLinear(Linear):
    """Linear map with several output blocks, each sharded by columns over the group; this process holds its columns.

    The input is the same on the whole group, or with sequence parallelism this process's tokens; the output is this
    process's shard of all tokens.
    """

    def __init__(self, inputs: int, *blocks: int, group: Group = ALONE, bias: bool = True) -> None:
        own = [group.own_range(block) for block in blocks]
        self.widths = [len(part) for part in own]  # columns of this process's part of each block
        super().__init__(inputs, sum(self.widths), bias=bias)
        self.group = group
        if group.size > 1:
            starts = accumulate(blocks, initial=0)
            parts = tuple(
                range(start + part.start, start + part.stop) for start, part in zip(starts, own, strict=False)
            )
            for parameter in self.parameters():
                parameter.shard = WeightShard(0, parts, sum(blocks))  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., inputs]`` to this process's columns ``[..., outputs / group size]``."""
        if self.cast is not None and self.group.size > 1:
            x = x.to(self.cast[0].dtype)  # on an accelerator, norms return float32, in which gradients would be summed
        if self.group.divides_tokens and self.group.size > 1:
            weight, bias = self.cast or (self.weight, self.bias)
            out: Tensor = _GatheringLinear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
            return out
        return super().forward(copy_to_group(x, self.group))


class RowLinear(Linear):
    """Linear map whose matrix is sharded by rows over the group; this process holds its rows.

    The input is this process's shard; the output is the same on the whole group. The bias is added once, to the sum.
    """

    def __init__(self, inputs: int, outputs: int, group: Group = ALONE, *, bias: bool = True) -> None:
        own = group.own_range(inputs)
        super().__init__(len(own), outputs, bias=bias)
        self.group = group
        if group.size > 1:
            self.weight.shard = WeightShard(1, (own,), inputs)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Map this process's shard ``x [..., inputs / group size]`` to ``[..., outputs]``."""
        if self.group.size == 1:
            return super().forward(x)
        if self.bias is None:
            return sum_over_group(super().forward(x), self.group)
        product, bias = self.product_and_bias(x)
        return sum_over_group(product, self.group, bias)


class VocabularyTable(EmbeddingTable):
    """Embedding table of tokens that is sharded by rows over the group; this process holds its rows."""

    def __init__(self, vocab: int, hidden: int, group: Group = ALONE) -> None:
        self.own = group.own_range(vocab)
        super().__init__(len(self.own), hidden)
        self.group = group
        if group.size > 1:
            self.weight.shard = WeightShard(0, (self.own,), vocab)  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings ``[..., hidden]`` of ``tokens [...]``, which are the same on the whole group."""
        if self.group.size == 1:
            return super().forward(tokens)
        index = tokens - self.own.start
        outside = (index < 0) | (index >= len(self.own))
        rows = super().forward(index.masked_fill(outside, 0))
        return sum_over_group(rows.masked_fill(outside.unsqueeze(-1), 0.0), self.group)


def parallel_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    vocabulary_range: range,
    group: Group,
    ignore_index: int,
    count: Tensor | None = None,
) -> Tensor:
    """Return the mean cross-entropy of logits whose columns are sharded over a group.

    The group exchanges three numbers per row instead of the logits (arXiv:1909.08053, section 3). Logarithms are
    computed in float32 or higher precision: autocast does so on a CPU, but rounds them to 16 bits on a GPU.

    Args:
        logits: ``[rows, len(vocabulary_range)]``, this process's columns of the vocabulary.
        targets: ``[rows]`` tokens.
        vocabulary_range: the tokens of this process's columns.
        group: the processes that hold the columns.
        ignore_index: the target of rows without a loss.
        count: the number of rows by which the sum of their losses, or ``[rows]`` each loss, is divided; None: that of
            the rows with a loss.
    """
    if group.size == 1:
        how = "mean" if count is None else "none" if count.ndim else "sum"
        losses = F.cross_entropy(at_least_float32(logits), targets, ignore_index=ignore_index, reduction=how)
        return losses if count is None else (losses / count).sum()
    count = (targets != ignore_index).sum() if count is None else count
    loss: Tensor = _CrossEntropy.apply(logits, targets, vocabulary_range, group, ignore_index, count)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        vocabulary_range: range,
        group: Group,
        ignore_index: int,
        count: Tensor,
    ) -> Tensor:
        wide = at_least_float32(logits)
        largest = wide.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group.handle)
        exps = (wide - largest.unsqueeze(1)).exp_()
        total = exps.sum(1)
        dist.all_reduce(total, group=group.handle)
        index = targets - vocabulary_range.start
        is_own = (index >= 0) & (index < len(vocabulary_range))
        index = index.masked_fill(~is_own, 0)
        target_logits = wide.gather(1, index.unsqueeze(1)).squeeze(1).masked_fill(~is_own, 0.0)
        dist.all_reduce(target_logits, group=group.handle)
        has_loss = targets != ignore_index
        ctx.save_for_backward(exps.div_(total.unsqueeze(1)), index, is_own, has_loss, count)
        ctx.dtype = logits.dtype
        losses = (total.log() + largest - target_logits).masked_fill(~has_loss, 0.0)
        return (losses / count).sum() if count.ndim else losses.sum() / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, index, is_own, has_loss, count = ctx.saved_tensors
        logits_gradient = probabilities.clone()
        logits_gradient.scatter_add_(1, index.unsqueeze(1), -is_own.to(logits_gradient.dtype).unsqueeze(1))
        logits_gradient.mul_((gradient / count.to(gradient.dtype) * has_loss).unsqueeze(1))
        return logits_gradient.to(ctx.dtype), None, None, None, None, None
