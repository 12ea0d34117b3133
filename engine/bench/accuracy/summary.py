"""Summary of results: prediction errors, and the order of schedules by step time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.bench.accuracy.results import Result

LEAST_DIFFERENCE = 0.05
"""Smallest relative difference of two predictions for which their order counts."""
MEDIAN_AIM, TAIL_AIM, MEMORY_AIM = 0.03, 0.08, 0.10
"""Target values of the median error, the 90th percentile of the error, and the error of peak memory."""


class ErrorStatistics(NamedTuple):
    """Statistics of absolute relative errors."""

    designs: int  # number of errors
    median: float
    tail: float  # 90th percentile
    worst: float
    bias: float  # median of the signed errors


def error_statistics(errors: Iterable[float]) -> ErrorStatistics | None:
    """Return the statistics of errors; None if there are none."""
    signed = np.fromiter(errors, np.float64)
    if not signed.size:
        return None
    sizes = np.abs(signed)
    figures = (np.median(sizes), np.percentile(sizes, 90), sizes.max(), np.median(signed))
    return ErrorStatistics(signed.size, *map(float, figures))


class Ranking(NamedTuple):
    """Comparison of the measured and the predicted order of pairs of schedules that run the same training."""

    pairs: int
    right: int  # pairs with correctly predicted order
    wrong: tuple[str, ...]  # one sentence for each other pair
    close: int  # pairs whose predictions are too close to count


def rank_pairs(results: Sequence[Result]) -> Ranking:
    """Compare the measured and the predicted order of each pair of schedules that run the same training."""
    pairs = [
        sorted(pair, key=lambda result: result.predicted)
        for pair in combinations([result for result in results if result.rivals], 2)
        if pair[0].rivals == pair[1].rivals
    ]
    apart = [(fast, slow) for fast, slow in pairs if slow.predicted > (1 + LEAST_DIFFERENCE) * fast.predicted]
    wrong = tuple(_wrong_order(fast, slow) for fast, slow in apart if fast.measured >= slow.measured)
    return Ranking(len(apart), len(apart) - len(wrong), wrong, len(pairs) - len(apart))


def _wrong_order(fast: Result, slow: Result) -> str:
    predicted, measured = slow.predicted / fast.predicted - 1, slow.measured / fast.measured - 1
    return f"{slow.case} was predicted to take {predicted:.1%} longer than {fast.case}, and took {measured:+.1%}"


class Summary(NamedTuple):
    """Errors of step time and peak memory of a group of results, and the order of its schedules."""

    iteration: ErrorStatistics | None
    ranking: Ranking
    memory: ErrorStatistics | None
    groups: Mapping[str, ErrorStatistics]

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object for ``--json``."""
        return {
            "iteration": self.iteration._asdict() if self.iteration else None,
            "ranking": {**self.ranking._asdict(), "wrong": list(self.ranking.wrong)},
            "memory": self.memory._asdict() if self.memory else None,
            "groups": {group: statistics._asdict() for group, statistics in self.groups.items()},
        }


def summarize(results: Sequence[Result]) -> Summary:
    """Return the summary of a group of results."""
    groups = {
        group: found
        for group in dict.fromkeys(result.group for result in results)
        if (found := error_statistics(result.error for result in results if result.group == group))
    }
    memory = error_statistics(error for result in results for error in result.memory_errors)
    return Summary(error_statistics(result.error for result in results), rank_pairs(results), memory, groups)
