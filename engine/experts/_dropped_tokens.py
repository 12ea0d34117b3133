"""Dropped tokens: expected fraction of token assignments that find no free slot under a capacity."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts._base import expert_schedules
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import StepOp

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

TAIL_DEVIATIONS = 8
"""Standard deviations from the mean beyond which the tail of a binomial is neglected."""
MAX_EXPERTS_AT_ONCE, MAX_TABLE_SIZE = 64, 2**15
"""Maximum number of rows and of entries of a table ``[experts, token counts]``."""


def dropped_token_share(name: str, layer: Layer) -> float:
    """Return the expected fraction of token assignments that are dropped under the schedule ``name``.

    An automatic schedule must be resolved first. The model assumes that tokens choose independently, each expert with its probability
    in the load. A hot expert drops the excess over its capacity; equally loaded experts drop some tokens by chance,
    more if a gate routes fewer tokens. Tokens of one text choose similar experts and gates learn to balance, so a run
    can drop more or fewer. The fraction is 0 without a capacity.
    """
    if layer.capacity_factor is None:
        return 0.0
    return _cached_dropped_token_share(name, replace(layer, nodes=None, placement=None))  # the placement has no effect


@lru_cache(maxsize=256)  # most meshes have equal layers, and most edits leave them unchanged
def _cached_dropped_token_share(name: str, layer: Layer) -> float:
    seen = _gate_tokens(name, layer)
    tokens, slots = round(seen * layer.tokens), round(seen * layer.capacity)
    chances, experts = np.unique(np.minimum(1.0, layer.top_k * np.asarray(layer.shares)), return_counts=True)
    return float(experts @ _expected_excess(tokens, chances, slots) / (tokens * (experts @ chances)))


def _gate_tokens(name: str, layer: Layer) -> float:
    """Return the number of tokens that a gate routes, relative to an input; copies count once."""
    seen = 1.0
    for step in expert_schedules[name]().steps(layer):
        size = layer.size(step.group)
        if step.op == StepOp.GATE:
            return seen
        if step.op == StepOp.SPLIT_TOKENS:
            seen /= size
        elif step.op == StepOp.GATHER_INPUTS:
            seen *= size / min(size, layer.mp)
    return seen


def _expected_excess(tokens: int, chances: Floats, slots: int) -> Floats:
    """Return the expected number of tokens above ``slots`` that choose each expert, ``[experts]``.

    Args:
        tokens: number of tokens that choose.
        chances: [experts] probability that a token chooses the expert, ascending.
        slots: number of slots of an expert.
    """
    mean = tokens * chances
    spread = TAIL_DEVIATIONS * (np.sqrt(mean * (1 - chances)) + 1)
    first = np.maximum(mean - spread, 0).astype(np.int64)
    last = np.minimum(np.ceil(mean + spread), tokens).astype(np.int64)
    found: Floats = np.maximum(mean - slots, 0.0)  # exact for probabilities 0 and 1
    open_ones = np.flatnonzero((chances > 0) & (chances < 1))
    size = max(1, min(MAX_EXPERTS_AT_ONCE, MAX_TABLE_SIZE // int((last - first).max() + 1)))
    for start in range(0, len(open_ones), size):
        some = open_ones[start : start + size]
        found[some] = _binomial_excess(tokens, chances[some], slots, first[some], last[some])
    return found


def _binomial_excess(tokens: int, chances: Floats, slots: int, first: Counts, last: Counts) -> Floats:
    """Return the expected number of tokens above ``slots``, ``[experts]``, for token counts ``first`` to ``last``.

    The probabilities ``chances`` must be between 0 and 1, both excluded.
    """
    count = first[:, None] + np.arange((last - first).max() + 1)  # [experts, token counts]
    odds = np.log(chances / (1 - chances))[:, None]
    ratios = np.log(np.maximum(tokens - count[:, :-1], 1) / count[:, 1:]) + odds  # ratios of successive probabilities
    logs = np.concatenate((np.zeros_like(odds), np.cumsum(ratios, axis=1)), axis=1)
    logs[count > last[:, None]] = -np.inf
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    lost: Floats = (np.maximum(count - slots, 0) * weights).sum(axis=1) / weights.sum(axis=1)
    return lost
