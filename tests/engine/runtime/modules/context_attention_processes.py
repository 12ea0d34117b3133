"""Attention with context parallelism in several processes, and the same attention to whole sequences in each of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.document.training import ContextExchange
from meshwave.engine.runtime.communication.groups import Group
from meshwave.engine.runtime.modules.attention_product import AttentionRule
from meshwave.engine.runtime.modules.context_attention import Bias, attend_in_context
from meshwave.engine.runtime.modules.context_share import ContextShare, balanced_chunks
from meshwave.engine.runtime.modules.documents import pack_documents
from meshwave.engine.runtime.modules.positions import alibi_bias

BATCH, HEADS, KEY_HEADS, DIMS, VALUE_DIMS = 2, 4, 2, 6, 5
EXCHANGES: tuple[ContextExchange, ...] = ("ring", "all_gather")
RULES = (
    AttentionRule(causal=True),
    AttentionRule(causal=False),
    AttentionRule(causal=True, window=4),
    AttentionRule(causal=False, window=3, scale=0.4),
    AttentionRule(causal=True, soft_cap=0.7),
)


def compare_with_whole_sequences(sequence: int) -> list[tuple[str, float]]:
    """Return the largest difference of outputs and gradients, by exchange, rule, sinks and documents."""
    members = tuple(range(dist.get_world_size()))
    group = Group(members, dist.get_rank(), dist.new_group())
    found = []
    documents = [[4, 1, sequence - 5], [sequence - 7, 7]]
    added = (False, None), (True, None), (False, _bias)
    for exchange, rule, (has_sinks, bias), packed in product(EXCHANGES, RULES, added, (None, documents)):
        share = ContextShare(group, balanced_chunks(sequence, group.size), exchange)
        case = f"{exchange} {rule} {has_sinks} {bias} {packed}"
        with pack_documents(packed):
            found.append((case, _largest_difference(share, rule, bias, has_sinks=has_sinks)))
    return found


def _bias(queries: range, keys: range, like: Tensor) -> Tensor:
    return alibi_bias(queries, keys, HEADS, range(HEADS), 1.0, like.dtype, like.device)


def _largest_difference(share: ContextShare, rule: AttentionRule, bias: Bias | None, *, has_sinks: bool) -> float:
    torch.manual_seed(1)
    widths = (HEADS, DIMS), (KEY_HEADS, DIMS), (KEY_HEADS, VALUE_DIMS)
    whole = [torch.randn(BATCH, heads, share.sequence, dims, dtype=torch.float64) for heads, dims in widths]
    sinks = torch.randn(HEADS, dtype=torch.float64)
    weights = torch.randn(BATCH, HEADS, share.sequence, VALUE_DIMS, dtype=torch.float64)
    expected, *expected_gradients = _run(whole, sinks if has_sinks else None, weights, (rule, None, bias))
    own = [share.select_own(each, 2) for each in whole]
    found, *gradients = _run(own, sinks if has_sinks else None, share.select_own(weights, 2), (rule, share, bias))
    pairs = [(found, share.select_own(expected, 2))]
    pairs += [(one, share.select_own(other, 2)) for one, other in zip(gradients, expected_gradients[:3], strict=False)]
    if has_sinks:
        dist.all_reduce(gradients[3])
        pairs.append((gradients[3], expected_gradients[3]))
    return max(float((one - other).abs().max()) for one, other in pairs)


def _run(
    inputs: list[Tensor],
    sinks: Tensor | None,
    weights: Tensor,
    how: tuple[AttentionRule, ContextShare | None, Bias | None],
) -> list[Any]:
    leaves = [each.clone().requires_grad_() for each in (*inputs, *([] if sinks is None else [sinks]))]
    q, k, v, *rest = leaves
    rule, share, bias = how
    values = attend_in_context(q, k, v, rule, share, rest[0] if rest else None, bias)
    (values * weights).sum().backward()
    return [values.detach(), *(leaf.grad for leaf in leaves)]
