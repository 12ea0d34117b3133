"""What a capacity drops: visits of tokens to experts that find no free slot, as many as the load lets expect."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil, log, sqrt

import numpy as np

from engine.moe._layer import Layer
from engine.moe._schedule import expert_schedules
from engine.moe._steps import StepOp

FAR = 8
"""Standard deviations from the mean beyond which a binomial has nothing left that counts."""


def dropped(name: str, layer: Layer) -> float:
    """The part of all visits that is expected to find no free slot under the schedule called ``name``, one that has
    steps: where each token chooses apart from all others, every expert as often as the load has it.

    A hot expert drops what is above its room, and even experts some by chance, the more the fewer tokens a gate sees.
    Tokens of one text choose alike and gates learn to balance, so that a run can drop more, or less. 0 without a
    capacity.
    """
    if layer.capacity_factor is None:
        return 0.0
    seen = _seen(name, layer)
    tokens, slots = round(seen * layer.tokens), round(seen * layer.capacity)
    chances = Counter(min(1.0, layer.top_k * share) for share in layer.shares)
    lost = sum(experts * _above(tokens, chance, slots) for chance, experts in chances.items())
    return lost / (tokens * sum(chances.elements()))


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


@lru_cache(maxsize=4096)  # experts that are chosen alike, and layers that differ in nothing of this
def _above(tokens: int, chance: float, slots: int) -> float:
    """The expected number above ``slots`` of those of ``tokens`` that choose an expert, each with this ``chance``."""
    if chance in (0.0, 1.0):
        return max(chance * tokens - slots, 0.0)
    mean, spread = tokens * chance, FAR * (sqrt(tokens * chance * (1 - chance)) + 1)
    count = np.arange(max(0, int(mean - spread)), min(tokens, ceil(mean + spread)) + 1)
    ratios = np.log((tokens - count[:-1]) / count[1:]) + log(chance / (1 - chance))  # of each probability to the last
    logs = np.concatenate(([0.0], np.cumsum(ratios)))
    weights = np.exp(logs - logs.max())
    return float(np.maximum(count - slots, 0) @ weights / weights.sum())
