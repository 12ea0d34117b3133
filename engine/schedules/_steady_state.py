"""Orders of long steps from those of short ones, by repeating the pattern in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules._order_search import Shop, Task

ROUNDS = 3
"""Minimum number of microbatches of a short step, as a multiple of the ranks: one part fills the pipeline, one drains
it, and one between shows the pattern."""
PATTERN_TOLERANCE = 0.05
"""Relative difference in time, in units of the pattern's length, up to which computations count as a repetition."""

Columns = NDArray[np.int32]  # [actions, 4] op, stage, microbatch, fused


class _Pattern(NamedTuple):
    """A number of microbatches after which the order repeats."""

    period: int
    first: int  # first microbatch
    seconds: float  # from one repetition to the next


def short_step_microbatches(microbatches: int, ranks: int, most: int) -> int:
    """Return the microbatches of the step that is searched in place of a long one.

    They are ``most``, or the minimum that shows a pattern; the long step is longer by a multiple of the ranks.
    """
    wanted = max(ROUNDS * ranks, most)
    return min(microbatches, wanted + (microbatches - wanted) % ranks)


def repeat_pattern(short: Shop, ends: Mapping[Task, float], microbatches: int) -> Iterator[list[Columns]]:
    """Yield orders of a step of ``microbatches``, per rank, from the ends of the computations of a short step.

    The caller must verify them: an approximate pattern may deadlock or need more memory.
    """
    starts = _starts(short, ends)
    for pattern in _patterns(short, starts, microbatches - short.microbatches):
        yield _columns_by_start(short, _repeat_starts(starts, pattern, microbatches - short.microbatches))


def _starts(shop: Shop, ends: Mapping[Task, float]) -> NDArray[np.float64]:
    """Return ``[kinds, stages, microbatches]`` the start of each computation."""
    starts = np.empty((len(_kinds(shop)), shop.stages, shop.microbatches))
    for kind, op in enumerate(_kinds(shop)):
        seconds = shop.seconds[op]
        for stage in range(shop.stages):
            starts[kind, stage] = [ends[op, stage, mb] - seconds[stage] for mb in range(shop.microbatches)]
    return starts


def _kinds(shop: Shop) -> tuple[Op, ...]:
    return (Op.F, Op.I, Op.W) if shop.split else (Op.F, Op.B)


def _patterns(shop: Shop, starts: NDArray[np.float64], more: int) -> Iterator[_Pattern]:
    """Yield patterns in the middle of the step that divide ``more`` microbatches, the most accurate first."""
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
    """Return ``[kinds, stages, microbatches]`` the start of each computation with the pattern repeated."""
    period, first, seconds = pattern
    again = more // period
    middle = np.tile(starts[:, :, first : first + period], again) + np.repeat(np.arange(again), period) * seconds
    return np.concatenate([starts[:, :, :first], middle, starts[:, :, first:] + again * seconds], axis=2)


def _columns_by_start(shop: Shop, starts: NDArray[np.float64]) -> list[Columns]:
    """Return the computations of each rank by their starts."""
    kind, stage, mb = (index.ravel() for index in np.indices(starts.shape))
    rank = np.array(shop.rank)[stage]
    order = np.lexsort((kind, starts.ravel(), rank))
    op = np.array(_kinds(shop))[kind]
    columns = np.stack([op, stage, mb, np.zeros_like(op)], axis=1).astype(np.int32)[order]
    return np.split(columns, np.searchsorted(rank[order], np.arange(1, shop.ranks)))
