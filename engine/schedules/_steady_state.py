"""Orders of long steps derived from the orders of short ones, by repeating the pattern in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules._order_search import Shop, Task

ROUNDS = 3
"""Minimum number of microbatches of a short step, as a multiple of the ranks: one part fills the pipeline, one drains
it, and the part between shows the pattern."""
PATTERN_TOLERANCE = 0.05
"""Maximum deviation in time between repetitions of a pattern, relative to the duration of the pattern."""

Columns = NDArray[np.int32]  # [actions, 4] op, stage, microbatch, fused


class _Pattern(NamedTuple):
    """Pattern of an order that repeats after ``period`` microbatches."""

    period: int
    first: int  # first microbatch of the pattern
    seconds: float  # time from one repetition to the next


def reduced_microbatches(microbatches: int, ranks: int, limit: int) -> int:
    """Return the number of microbatches of the short step that is searched instead of a long one.

    It is ``limit``, or the minimum that shows a pattern, rounded up so that the long step is longer by a multiple of the
    ranks.
    """
    wanted = max(ROUNDS * ranks, limit)
    return min(microbatches, wanted + (microbatches - wanted) % ranks)


def repeat_pattern(short: Shop, ends: Mapping[Task, float], microbatches: int) -> Iterator[list[Columns]]:
    """Yield orders of a step of ``microbatches``, per rank, derived from the ends of the computations of a short step.

    The caller must verify the orders: an approximate pattern may deadlock or need more memory.
    """
    starts = _start_times(short, ends)
    for pattern in _find_patterns(short, starts, microbatches - short.microbatches):
        yield _columns_by_start(short, _repeat_starts(starts, pattern, microbatches - short.microbatches))


def _start_times(shop: Shop, ends: Mapping[Task, float]) -> NDArray[np.float64]:
    """Return the start time of each computation, ``[kinds, stages, microbatches]``."""
    starts = np.empty((len(_computation_kinds(shop)), shop.stages, shop.microbatches))
    for kind, op in enumerate(_computation_kinds(shop)):
        seconds = shop.seconds[op]
        for stage in range(shop.stages):
            starts[kind, stage] = [ends[op, stage, mb] - seconds[stage] for mb in range(shop.microbatches)]
    return starts


def _computation_kinds(shop: Shop) -> tuple[Op, ...]:
    return (Op.F, Op.I, Op.W) if shop.split else (Op.F, Op.B)


def _find_patterns(shop: Shop, starts: NDArray[np.float64], more: int) -> Iterator[_Pattern]:
    """Yield patterns in the middle of the step whose period divides ``more`` microbatches, the most accurate first."""
    found = []
    for period in sorted({1, 2, 4, *(rounds * shop.ranks for rounds in (1, 2, 4))}):
        first = (shop.microbatches - period) // 2
        if more % period or first + 2 * period > shop.microbatches:
            continue
        later = starts[:, :, first + period : first + 2 * period] - starts[:, :, first : first + period]
        seconds = float(np.median(later))
        off = float(np.abs(later - seconds).max())
        if off <= PATTERN_TOLERANCE * seconds:
            found.append((round(off / seconds, 6), period, _Pattern(period, first, seconds)))
    yield from (pattern for *_, pattern in sorted(found)[:2])


def _repeat_starts(starts: NDArray[np.float64], pattern: _Pattern, more: int) -> NDArray[np.float64]:
    """Return the start time of each computation with the pattern repeated, ``[kinds, stages, microbatches]``."""
    period, first, seconds = pattern
    again = more // period
    middle = np.tile(starts[:, :, first : first + period], again) + np.repeat(np.arange(again), period) * seconds
    return np.concatenate([starts[:, :, :first], middle, starts[:, :, first:] + again * seconds], axis=2)


def _columns_by_start(shop: Shop, starts: NDArray[np.float64]) -> list[Columns]:
    """Return the computations of each rank in order of their start times, ``[actions, 4]``."""
    kind, stage, mb = (index.ravel() for index in np.indices(starts.shape))
    rank = np.array(shop.rank)[stage]
    order = np.lexsort((kind, starts.ravel(), rank))
    op = np.array(_computation_kinds(shop))[kind]
    columns = np.stack([op, stage, mb, np.zeros_like(op)], axis=1).astype(np.int32)[order]
    return np.split(columns, np.searchsorted(rank[order], np.arange(1, shop.ranks)))
