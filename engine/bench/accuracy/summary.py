"""How good the predictions are: errors, and whether the faster schedule was predicted to be the faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.bench.accuracy.results import Result

APART = 0.05
"""Of two predictions the longer has to be so much longer than the shorter for their order to count."""
MEDIAN_AIM, TAIL_AIM, MEMORY_AIM = 0.03, 0.08, 0.10


class Spread(NamedTuple):
    """Sizes of errors, whichever way they go, of so many designs (of memory, meshes)."""

    designs: int
    median: float
    tail: float  # the 90th percentile
    worst: float
    bias: float  # the median with its sign

    def as_data(self) -> dict[str, float]:
        return dict(self._asdict())


def spread(errors: Iterable[float]) -> Spread | None:
    """What is to say of some errors; None of none."""
    signed = np.fromiter(errors, np.float64)
    if not signed.size:
        return None
    sizes = np.abs(signed)
    figures = (np.median(sizes), np.percentile(sizes, 90), sizes.max(), np.median(signed))
    return Spread(signed.size, *map(float, figures))


class Ranking(NamedTuple):
    """Pairs of designs that are the same training in two schedules."""

    pairs: int
    right: int  # the one that was predicted to be faster was
    wrong: tuple[str, ...]  # in words
    close: int  # predicted within 5 % of each other: not counted

    def as_data(self) -> dict[str, Any]:
        return {**self._asdict(), "wrong": list(self.wrong)}


def ranking(results: Sequence[Result]) -> Ranking:
    """Whether measurements put schedules into the order that predictions put them, pair by pair of one training."""
    pairs = [
        sorted(pair, key=lambda result: result.predicted)
        for pair in combinations([result for result in results if result.rivals], 2)
        if pair[0].rivals == pair[1].rivals
    ]
    apart = [(fast, slow) for fast, slow in pairs if slow.predicted > (1 + APART) * fast.predicted]
    wrong = tuple(_wrong(fast, slow) for fast, slow in apart if fast.measured >= slow.measured)
    return Ranking(len(apart), len(apart) - len(wrong), wrong, len(pairs) - len(apart))


def _wrong(fast: Result, slow: Result) -> str:
    predicted, measured = slow.predicted / fast.predicted - 1, slow.measured / fast.measured - 1
    return f"{slow.case} was predicted to take {predicted:.1%} longer than {fast.case}, and took {measured:+.1%}"


class Summary(NamedTuple):
    """Of one way of measuring."""

    iteration: Spread | None
    ranking: Ranking
    memory: Spread | None
    groups: Mapping[str, Spread]

    def as_data(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration.as_data() if self.iteration else None,
            "ranking": self.ranking.as_data(),
            "memory": self.memory.as_data() if self.memory else None,
            "groups": {group: spread.as_data() for group, spread in self.groups.items()},
        }


def summary(results: Sequence[Result]) -> Summary:
    groups = {
        group: found
        for group in dict.fromkeys(result.group for result in results)
        if (found := spread(result.error for result in results if result.group == group))
    }
    memory = spread(error for result in results for error in result.memory_errors)
    return Summary(spread(result.error for result in results), ranking(results), memory, groups)
