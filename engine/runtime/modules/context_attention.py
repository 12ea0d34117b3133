"""Attention of a share of the tokens of each sequence to the keys and values of all members of the group.

With the exchange ``all_gather``, every member gathers the keys and values of all members before it attends to them, and
the backward reduce-scatters their gradients. With ``ring``, keys and values pass from member to member while each
member attends to those that it holds (Liu et al., Ring Attention, arXiv:2310.01889). The partial results are joined by
their log-sums, as blocks of FlashAttention are (arXiv:2205.14135). The backward passes keys and values around again,
and their gradients behind them, one step later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from meshwave.engine.runtime.communication.all_to_all import start_ring_shift
from meshwave.engine.runtime.communication.groups import Group, all_gather, reduce_scatter, to_group_memory
from meshwave.engine.runtime.device.turns import wait_in_turn
from meshwave.engine.runtime.modules.attention_product import AttentionRule, attend, attention_mask, attention_scores
from meshwave.engine.runtime.modules.context_share import ContextShare
from meshwave.engine.runtime.modules.documents import (
    DocumentLengths,
    attend_by_document,
    documents_of_rows,
    packed_documents,
    split_by_document,
)
from meshwave.engine.runtime.modules.precision import at_least_float32

Bias = Callable[[range, range, Tensor], Tensor]
"""Function that returns ``[heads, queries, keys]``, added to the scores of tokens at these positions, with the dtype and
device of a tensor."""


def attend_in_context(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: AttentionRule,
    share: ContextShare | None,
    sinks: Tensor | None = None,
    bias: Bias | None = None,
) -> Tensor:
    """Return the values that the queries of this process attend to; see :func:`.attention_product.attend`.

    Args:
        q: ``[batch, heads, own tokens, dims]``.
        k: ``[batch, key-value heads, own tokens, dims]``.
        v: ``[batch, key-value heads, own tokens, value dims]``.
        rule: the attention mask, and how scores become weights.
        share: the tokens of this process; None if it has whole sequences.
        sinks: ``[heads]``, a score per head that takes part in the softmax but has no value.
        bias: returns the position bias of scores; None for no bias.
    """
    documents = packed_documents()
    if share is None:

        def attend_whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            whole = range(q.shape[2])
            return attend(q, k, v, rule, sinks, None if bias is None else bias(whole, whole, q))

        return attend_whole(q, k, v) if documents is None else attend_by_document(attend_whole, q, k, v, documents)
    share = share.resize(q.shape[2])
    q, k = q.to(v.dtype), k.to(v.dtype)  # on an accelerator, norms of queries and keys return float32
    if share.exchange == "all_gather" or share.group.size == 1:
        return _attend_to_gathered(q, k, v, _Shared(rule, share, bias, documents), sinks)
    values: Tensor = _RingAttention.apply(q, k, v, sinks, _Shared(rule, share, bias, documents))  # type: ignore[no-untyped-call]
    return values


class _Block(NamedTuple):
    """Queries of this process that belong to one document in each sequence, and keys to which they attend."""

    batch: slice  # the sequences
    rows: slice  # of the own tokens
    queries: range  # positions of the rows
    keys: range  # positions of the keys to which at least one of the queries attends


class _Shared(NamedTuple):
    """Attention rule, share, position bias and documents of context-parallel attention."""

    rule: AttentionRule
    share: ContextShare
    bias: Bias | None
    documents: DocumentLengths | None

    def blocks_by_sequence(self) -> Iterator[list[_Block]]:
        """Yield the own queries of each sequence in their order, with all keys to which they attend.

        Without documents, the sequences of a microbatch share their blocks.
        """
        for batch, lengths in documents_of_rows(self.documents, self.share.sequence):
            yield [*self._blocks(batch, lengths)]

    def _blocks(self, batch: slice, lengths: Sequence[int]) -> Iterator[_Block]:
        for number, chunk in enumerate(self.share.chunks_of(self.share.group.index)):
            for queries, document in split_by_document(chunk, lengths):
                first = number * self.share.chunk_length - chunk.start
                rows = slice(first + queries.start, first + queries.stop)
                seen = self.rule.visible_keys(queries, document.stop)
                yield _Block(batch, rows, queries, range(max(document.start, seen.start), seen.stop))

    def blocks_of(self, member: int) -> Iterator[tuple[_Block, slice]]:
        """Yield the own queries with the keys that a member holds, and the place of the keys in its tokens."""
        size = self.share.chunk_length
        for block in chain.from_iterable(self.blocks_by_sequence()):
            for number, held in enumerate(self.share.chunks_of(member)):
                start, stop = max(held.start, block.keys.start), min(held.stop, block.keys.stop)
                if start < stop:
                    first = number * size - held.start
                    yield block._replace(keys=range(start, stop)), slice(first + start, first + stop)

    def finish_scores(self, scores: Tensor, block: _Block) -> Tensor:
        """Return the scores of a block with the position bias and the mask, in at least float32."""
        wide = at_least_float32(scores)
        if self.bias is not None:
            wide = wide + self.bias(block.queries, block.keys, wide)
        sizes = len(block.queries), len(block.keys), block.queries.start - block.keys.start
        mask = attention_mask(self.rule, *sizes, scores.device)
        return wide if mask is None else wide.masked_fill(~mask, -torch.inf)


# ---- all_gather ----


def _attend_to_gathered(q: Tensor, k: Tensor, v: Tensor, shared: _Shared, sinks: Tensor | None) -> Tensor:
    widths, share = [k.shape[-1], v.shape[-1]], shared.share
    gathered = share.restore_order(_gather(torch.cat((k, v), -1), share.group), 2)

    def attend_block(block: _Block) -> Tensor:
        batch, rows, queries, seen = block
        keys, values = torch.split(gathered[batch, :, seen.start : seen.stop], widths, -1)
        added = None if shared.bias is None else shared.bias(queries, seen, q)
        offset = queries.start - seen.start
        return attend(q[batch, :, rows], keys, values, shared.rule, sinks, added, offset=offset)

    return torch.cat([torch.cat([*map(attend_block, blocks)], 2) for blocks in shared.blocks_by_sequence()])


def _gather(own: Tensor, group: Group) -> Tensor:
    if group.size == 1:
        return own
    gathered: Tensor = _Gather.apply(own, group)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(Function):
    """All-gather along dim 2 in the forward; the backward reduce-scatters the gradients."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = own.new_empty(group.size, *own.shape)
        wait_in_turn(all_gather(parts.view(-1), own.contiguous().view(-1), group=group.handle, async_op=True))
        return torch.cat([*parts], 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        group: Group = ctx.group
        parts = torch.stack(gradient.chunk(group.size, 2))
        own = torch.empty_like(parts[0])
        wait_in_turn(reduce_scatter(own.view(-1), parts.view(-1), group=group.handle, async_op=True))
        return own, None


# ---- ring ----


class _RingAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ring: _Shared) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        widths = [k.shape[-1], v.shape[-1]]
        values = q.new_zeros(*q.shape[:3], widths[1], dtype=wide)
        log_sums = q.new_full((*q.shape[:3], 1), -torch.inf, dtype=wide)
        if sinks is not None:
            log_sums.copy_(sinks.view(1, -1, 1, 1))
        with torch.autocast(q.device.type, enabled=False):
            for member, key_value in _iterate_ring(torch.cat((k, v), -1), ring.share.group):
                for block, columns in ring.blocks_of(member):
                    place = block.batch, slice(None), block.rows
                    held = key_value[block.batch, :, columns]
                    keys, found = torch.split(_share_heads(held, q), widths, -1)
                    scores = ring.finish_scores(attention_scores(q[place], keys, ring.rule), block)
                    before = log_sums[place]
                    after = torch.logaddexp(before, scores.logsumexp(-1, keepdim=True))
                    base = after.clamp_min(torch.finfo(wide).min)  # a row may see no key yet
                    attended = (scores - base).exp().to(found.dtype) @ found
                    values[place] = values[place] * (before - base).exp() + attended
                    log_sums[place] = after
        output = values.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, output, log_sums)
        ctx.ring = ring
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, computed block by block (FlashAttention, arXiv:2205.14135, appendix B.2)."""
        q, k, v, sinks, output, log_sums = ctx.saved_tensors
        ring: _Shared = ctx.ring
        with torch.autocast(q.device.type, enabled=False):
            rows = _Rows(q, gradient, log_sums, (gradient * output).sum(-1, keepdim=True, dtype=log_sums.dtype))
            for_q, passed = torch.zeros_like(q), _RingSum(ring.share.group)
            for member, key_value in _iterate_ring(torch.cat((k, v), -1), ring.share.group):
                for_key_value = torch.zeros_like(key_value)
                for block, columns in ring.blocks_of(member):
                    of_block = rows.select(block).gradients(key_value[block.batch, :, columns], ring, block)
                    for_q[block.batch, :, block.rows] += of_block[0]
                    for_key_value[block.batch, :, columns] += of_block[1]
                passed.add(for_key_value)
            for_k, for_v = torch.split(passed.wait(), [k.shape[-1], v.shape[-1]], -1)
        return for_q, for_k, for_v, None if sinks is None else rows.sink_gradient(sinks), None


class _Rows(NamedTuple):
    """Rows of a backward: queries, the gradient of their output, its log-sums, and the mean gradient of their weights."""

    q: Tensor
    gradient: Tensor
    log_sums: Tensor
    mean: Tensor

    def select(self, block: _Block) -> _Rows:
        """Return the rows of a block."""
        return _Rows(*(each[block.batch, :, block.rows] for each in self))

    def gradients(self, key_value: Tensor, ring: _Shared, block: _Block) -> tuple[Tensor, Tensor]:
        """Return the gradients of the queries, and of the keys and values, of a block."""
        q, gradient, rule = self.q, self.gradient, ring.rule
        k, v = torch.split(_share_heads(key_value, q), [q.shape[-1], gradient.shape[-1]], -1)
        scores = attention_scores(q, k, rule)
        weights = (ring.finish_scores(scores, block) - self.log_sums).exp()
        slopes = weights * (gradient @ v.mT - self.mean)
        if rule.soft_cap is not None:
            slopes = slopes * (1 - (scores / rule.soft_cap) ** 2)
        slopes = (slopes * rule.factor(q.shape[-1])).to(q.dtype)
        for_key_value = torch.cat((slopes.mT @ q, weights.to(gradient.dtype).mT @ gradient), -1)
        return slopes @ k, _sum_heads(for_key_value, key_value)

    def sink_gradient(self, sinks: Tensor) -> Tensor:
        """Return the gradient of the sinks, whose value is zero."""
        weights = (sinks.view(1, -1, 1, 1) - self.log_sums).exp()
        return -(weights * self.mean).sum((0, 2, 3)).to(sinks.dtype)


def _share_heads(x: Tensor, q: Tensor) -> Tensor:
    """Return keys or values repeated for the query heads that share them."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _sum_heads(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of keys or values, summed over the query heads that share them."""
    batch, heads, *rest = x.shape
    return gradient if gradient.shape[1] == heads else gradient.view(batch, heads, -1, *rest).sum(2)


# ---- messages around the ring ----


class _RingMessage:
    """Message to the next member of a group, and the one that arrives from the previous member."""

    def __init__(self, sent: Tensor, group: Group) -> None:
        self._device = sent.device
        self._sent = to_group_memory(sent, group).contiguous()
        self._arriving = torch.empty_like(self._sent)
        self._work = start_ring_shift(group, self._arriving, self._sent)

    def wait(self) -> Tensor:
        """Return the message from the previous member."""
        wait_in_turn(self._work)
        return self._arriving.to(self._device)


def _iterate_ring(own: Tensor, group: Group) -> Iterator[tuple[int, Tensor]]:
    """Yield each member with its tensor, this process first; the next one arrives while the caller uses it."""
    held = own
    for step in range(group.size):
        passing = _RingMessage(held, group) if step + 1 < group.size else None
        yield (group.index - step) % group.size, held
        if passing is not None:
            held = passing.wait()


class _RingSum:
    """Sum that travels around the ring behind the tensors of :func:`_iterate_ring`, and ends at their owners."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._passing: _RingMessage | None = None

    def add(self, part: Tensor) -> None:
        """Add a part to the sum that arrives here, and pass it on."""
        self._passing = _RingMessage(part if self._passing is None else part + self._passing.wait(), self._group)

    def wait(self) -> Tensor:
        """Return the sum of all parts for this process."""
        assert self._passing is not None, "one part of each member was added"
        return self._passing.wait()
