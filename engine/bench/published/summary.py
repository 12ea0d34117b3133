"""Summary of predicted published runs: errors by source and device, order of configurations, and refusals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from statistics import fmean, median
from typing import Any, NamedTuple, TypeVar

from meshwave.engine.bench.published.predictions import PredictedRun, RefusedRun

CLEAR_DIFFERENCE = 0.1
"""Smallest relative difference between published step times at which an order counts."""
K = TypeVar("K", bound=Hashable)


class Errors(NamedTuple):
    """Relative errors of a group of predictions."""

    rows: int
    mean: float
    """Mean of the absolute errors."""
    bias: float
    """Median of the signed errors."""
    worst: float
    """Signed error with the largest absolute value."""
    worst_id: str


def summarize_errors(found: Sequence[PredictedRun]) -> Errors:
    """Return the error statistics of predictions."""
    worst = max(found, key=lambda each: abs(each.error))
    errors = [each.error for each in found]
    return Errors(len(found), fmean(map(abs, errors)), median(errors), worst.error, worst.id)


def group_runs(found: Iterable[PredictedRun], key: Callable[[PredictedRun], K]) -> dict[K, list[PredictedRun]]:
    """Group predictions by a key, sorted by the key."""
    groups: defaultdict[K, list[PredictedRun]] = defaultdict(list)
    for each in found:
        groups[key(each)].append(each)
    return {name: groups[name] for name in sorted(groups)}  # type: ignore[type-var]


class Pair(NamedTuple):
    """IDs of two runs of one model whose published speeds differ clearly, the faster one first."""

    faster: str
    slower: str
    is_right: bool
    """True if the faster run is also predicted faster."""


def clear_pairs(found: Iterable[PredictedRun]) -> Iterator[Pair]:
    """Yield the pairs of configurations of one model that differ clearly.

    Configurations are compared by tokens per second and device, within one source and on equal devices.
    """
    for alike in group_runs(found, lambda each: (each.publication, each.model, each.device, each.devices)).values():
        for one, other in combinations(alike, 2):
            ratio = one.published_tokens_per_s_per_device / other.published_tokens_per_s_per_device
            if not 1 / (1 + CLEAR_DIFFERENCE) < ratio < 1 + CLEAR_DIFFERENCE:
                fast, slow = (one, other) if ratio > 1 else (other, one)
                is_right = fast.predicted_tokens_per_s_per_device > slow.predicted_tokens_per_s_per_device
                yield Pair(fast.id, slow.id, is_right)


def summarize(found: Sequence[PredictedRun | RefusedRun]) -> dict[str, Any]:
    """Return the summary as a JSON object for ``--json``."""
    predicted = [each for each in found if isinstance(each, PredictedRun)]
    refused = [each for each in found if isinstance(each, RefusedRun)]
    by_source = group_runs(predicted, lambda each: (each.publication, each.device, each.arch))
    by_device = group_runs(predicted, lambda each: (each.device, each.arch))
    pairs = [*clear_pairs(predicted)]
    wrong = [each[:2] for each in pairs if not each.is_right]
    return {
        "predicted": len(predicted),
        "by_source": [
            {"publication": publication, "device": device, "arch": arch, **summarize_errors(rows)._asdict()}
            for (publication, device, arch), rows in by_source.items()
        ],
        "by_device": [
            {"device": device, "arch": arch, **summarize_errors(rows)._asdict()}
            for (device, arch), rows in by_device.items()
        ],
        "order": {"pairs": len(pairs), "right": len(pairs) - len(wrong), "wrong": wrong},
        "refused": dict(Counter(each.problem.code for each in refused).most_common()),
    }
