"""Softmax attention of queries, keys and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionRule(NamedTuple):
    """The attention mask, and how scores become weights."""

    causal: bool
    window: int | None = None
    """Number of tokens in the sliding window; None: all tokens."""
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(dimensions of a head)."""
    soft_cap: float | None = None
    """Bound on the magnitude of scores, applied with tanh; None: unbounded."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule, sinks: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return the values ``[batch, heads, sequence, value dims]`` that the queries attend to.

    Args:
        q: ``[batch, heads, sequence, dims]``.
        k: ``[batch, key-value heads, sequence, dims]``, each shared by a group of heads.
        v: ``[batch, key-value heads, sequence, value dims]``.
        rule: the attention mask, and how scores become weights.
        sinks: ``[heads]``, a score per head that takes part in the softmax but has no value.
        bias: ``[heads, sequence, sequence]``, added to the scores; a soft cap does not bound it.
    """
    length, shares = q.shape[2], q.shape[1] != k.shape[1]
    is_bounded = rule.window is not None and rule.window < length
    if rule.soft_cap is None and sinks is None:
        if not is_bounded and bias is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=rule.causal, scale=rule.scale, enable_gqa=shares)
        mask = _attention_mask(rule, length, q.device)
        if bias is not None:
            mask = bias.masked_fill(~mask, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=rule.scale, enable_gqa=shares)
    if shares:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if rule.scale is None else rule.scale)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    if bias is not None:
        scores = scores + bias
    if rule.causal or is_bounded:
        scores = scores.masked_fill(~_attention_mask(rule, length, q.device), -torch.inf)
    if sinks is not None:
        column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., :length]
    return weights.to(v.dtype) @ v


def _attention_mask(rule: AttentionRule, length: int, device: torch.device) -> Tensor:
    """Return the attention mask ``[queries, keys]``, True where a query attends to a key."""
    position = torch.arange(length, device=device)
    distance = position[:, None] - position
    window = length if rule.window is None else rule.window
    return (distance < window) & (distance >= 0 if rule.causal else distance > -window)
