"""What a capacity drops: visits of tokens to experts that find no free slot, as many as the load lets expect."""

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

FAR = 8
"""Standard deviations from the mean beyond which a binomial has nothing left that counts."""
TOGETHER, ROOM = 64, 2**15
"""How many experts are looked at together at most, and how many numbers of tokens with them."""


def dropped_shares(name: str, layer: Layer) -> float:
    """The part of all visits that is expected to find no free slot under the schedule called ``name``, one that has
    steps: where each token chooses apart from all others, every expert as often as the load has it.

    A hot expert drops what is above its room, and even experts some by chance, the more the fewer tokens a gate sees.
    Tokens of one text choose alike and gates learn to balance, so that a run can drop more, or less. 0 without a
    capacity.
    """
    if layer.capacity_factor is None:
        return 0.0
    return _dropped(name, replace(layer, nodes=None, homes=None))  # wherever its experts lie


@lru_cache(maxsize=256)  # most meshes have the same layer, and most edits of a design leave it as it is
def _dropped(name: str, layer: Layer) -> float:
    seen = _seen(name, layer)
    tokens, slots = round(seen * layer.tokens), round(seen * layer.capacity)
    chances, experts = np.unique(np.minimum(1.0, layer.top_k * np.asarray(layer.shares)), return_counts=True)
    return float(experts @ _above(tokens, chances, slots) / (tokens * (experts @ chances)))


def _seen(name: str, layer: Layer) -> float:
    """Tokens among which a gate chooses, as a multiple of those of an input; copies of them count once."""
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


def _above(tokens: int, chances: Floats, slots: int) -> Floats:
    """[experts] the expected number above ``slots`` of those of ``tokens`` that choose an expert, each with the chance of
    this one; the chances ascend."""
    mean = tokens * chances
    spread = FAR * (np.sqrt(mean * (1 - chances)) + 1)
    first = np.maximum(mean - spread, 0).astype(np.int64)
    last = np.minimum(np.ceil(mean + spread), tokens).astype(np.int64)
    found: Floats = np.maximum(mean - slots, 0.0)  # of the chances 0 and 1 that is all
    open_ones = np.flatnonzero((chances > 0) & (chances < 1))
    size = max(1, min(TOGETHER, ROOM // int((last - first).max() + 1)))
    for start in range(0, len(open_ones), size):
        some = open_ones[start : start + size]
        found[some] = _above_by_count(tokens, chances[some], slots, first[some], last[some])
    return found


def _above_by_count(tokens: int, chances: Floats, slots: int, first: Counts, last: Counts) -> Floats:
    """[experts] the same of chances between 0 and 1, over those numbers of tokens that count."""
    count = first[:, None] + np.arange((last - first).max() + 1)  # [experts, numbers of tokens]
    odds = np.log(chances / (1 - chances))[:, None]
    ratios = np.log(np.maximum(tokens - count[:, :-1], 1) / count[:, 1:]) + odds  # of each probability to the last
    logs = np.concatenate((np.zeros_like(odds), np.cumsum(ratios, axis=1)), axis=1)
    logs[count > last[:, None]] = -np.inf
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    lost: Floats = (np.maximum(count - slots, 0) * weights).sum(axis=1) / weights.sum(axis=1)
    return lost
