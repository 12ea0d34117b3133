"""Softmax attention of queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionRule(NamedTuple):
    """The attention mask, how scores become weights, and the function that computes both."""

    causal: bool
    window: int | None = None
    """Number of tokens in the sliding window; None: all tokens."""
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(dimensions of a head)."""
    soft_cap: float | None = None
    """Bound on the magnitude of scores, applied with tanh; None: unbounded."""
    fused_product: Callable[..., Tensor] = F.scaled_dot_product_attention
    """Attention without a soft cap and sinks."""

    def factor(self, dims: int) -> float:
        """Return the factor of the scores of heads with ``dims`` dimensions."""
        return dims**-0.5 if self.scale is None else self.scale

    def visible_keys(self, queries: range, length: int) -> range:
        """Return the keys, of ``length`` in a sequence, to which at least one of consecutive queries attends."""
        reach = length if self.window is None else self.window
        stop = queries.stop if self.causal else queries.stop + reach - 1
        return range(max(0, queries.start - reach + 1), min(length, stop))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: AttentionRule,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    offset: int = 0,
) -> Tensor:
    """Return the values ``[batch, heads, queries, value dims]`` that the queries attend to.

    Args:
        q: ``[batch, heads, queries, dims]``.
        k: ``[batch, key-value heads, keys, dims]``, each shared by a group of heads.
        v: ``[batch, key-value heads, keys, value dims]``.
        rule: the attention mask, and how scores become weights.
        sinks: ``[heads]``, a score per head that takes part in the softmax but has no value.
        bias: ``[heads, queries, keys]``, added to the scores; a soft cap does not bound it.
        offset: position of the first query minus that of the first key.
    """
    queries, keys, shares = q.shape[2], k.shape[2], q.shape[1] != k.shape[1]
    is_fused, is_whole = rule.soft_cap is None and sinks is None, queries == keys and offset == 0
    options: dict[str, Any] = {"scale": rule.scale, "enable_gqa": shares}
    if is_fused and is_whole and rule.causal and bias is None and not _is_bounded(rule, keys):
        return rule.fused_product(q, k, v, is_causal=True, **options)
    mask = attention_mask(rule, queries, keys, offset, q.device)
    if is_fused:
        if bias is not None:
            mask = (bias if mask is None else bias.masked_fill(~mask, -torch.inf))[None]  # fused kernels need 4 dims
        return rule.fused_product(q, k, v, attn_mask=mask, **options)
    if shares:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = attention_scores(q, k, rule)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., :keys]
    return weights.to(v.dtype) @ v


def attention_scores(q: Tensor, k: Tensor, rule: AttentionRule) -> Tensor:
    """Return the scores ``[batch, heads, queries, keys]`` before the mask; each head has its own keys."""
    scores = q @ k.mT * rule.factor(q.shape[-1])
    return scores if rule.soft_cap is None else rule.soft_cap * torch.tanh(scores / rule.soft_cap)


def _is_bounded(rule: AttentionRule, length: int) -> bool:
    return rule.window is not None and rule.window < length


def attention_mask(rule: AttentionRule, queries: int, keys: int, offset: int, device: torch.device) -> Tensor | None:
    """Return the attention mask ``[queries, keys]``, True where a query attends to a key; None if all are True.

    The first query is at position ``offset`` from the first key.
    """
    reach = max(offset + queries, keys - offset)
    if not _is_bounded(rule, reach) and (not rule.causal or offset >= keys - 1):
        return None
    distance = torch.arange(offset, offset + queries, device=device)[:, None] - torch.arange(keys, device=device)
    window = reach if rule.window is None else rule.window
    return (distance < window) & (distance >= 0 if rule.causal else distance > -window)
