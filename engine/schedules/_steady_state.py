"""A step that is long made of one that is short: the pattern in the middle of its order, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules._order_search import Shop, Task

ROUNDS = 3
"""Times as many microbatches as there are ranks that a short step has at least: one to fill the pipeline, one to
empty it, and one between that shows the pattern."""
ALIKE = 0.05
"""A pattern may come again so much of its own length earlier or later, of some computations."""

Columns = NDArray[np.int32]  # [actions, 4] op, stage, microbatch, fused


class _Pattern(NamedTuple):
    """So many microbatches after which the order does the same again."""

    period: int
    first: int  # its first microbatch
    seconds: float  # from one to the next


def short_step_microbatches(microbatches: int, ranks: int, most: int) -> int:
    """Microbatches of a step that is searched in place of a long one: ``most``, or as few as show a pattern; the long
    one has whole rounds more."""
    wanted = max(ROUNDS * ranks, most)
    return min(microbatches, wanted + (microbatches - wanted) % ranks)


def repeat_pattern(short: Shop, ends: Mapping[Task, float], microbatches: int) -> Iterator[list[Columns]]:
    """Orders of a step of so many microbatches, per rank, from when each computation of a short one ends.

    What comes of them is to be proved: a pattern that is not quite one may wait for ever, or need more room.
    """
    starts = _starts(short, ends)
    for pattern in _patterns(short, starts, microbatches - short.microbatches):
        yield _ordered(short, _stretched(starts, pattern, microbatches - short.microbatches))


def _starts(shop: Shop, ends: Mapping[Task, float]) -> NDArray[np.float64]:
    """``[kinds, stages, microbatches]`` when each computation starts."""
    starts = np.empty((len(_kinds(shop)), shop.stages, shop.microbatches))
    for kind, op in enumerate(_kinds(shop)):
        seconds = shop.seconds[op]
        for stage in range(shop.stages):
            starts[kind, stage] = [ends[op, stage, mb] - seconds[stage] for mb in range(shop.microbatches)]
    return starts


def _kinds(shop: Shop) -> tuple[Op, ...]:
    return (Op.F, Op.I, Op.W) if shop.split else (Op.F, Op.B)


def _patterns(shop: Shop, starts: NDArray[np.float64], more: int) -> Iterator[_Pattern]:
    """What repeats itself in the middle of the step and goes into ``more`` microbatches; the truest first."""
    found = []
    for period in sorted({1, 2, 4, *(rounds * shop.ranks for rounds in (1, 2, 4))}):
        first = (shop.microbatches - period) // 2
        if more % period or first + 2 * period > shop.microbatches:
            continue
        later = starts[:, :, first + period : first + 2 * period] - starts[:, :, first : first + period]
        seconds = float(np.median(later))
        off = float(np.abs(later - seconds).max())
        if off <= ALIKE * seconds:
            found.append((round(off / seconds, 6), period, _Pattern(period, first, seconds)))
    yield from (pattern for *_, pattern in sorted(found)[:2])


def _stretched(starts: NDArray[np.float64], pattern: _Pattern, more: int) -> NDArray[np.float64]:
    """The start of each computation, ``[kinds, stages, microbatches]``, with the pattern again and again before
    what begins with it."""
    period, first, seconds = pattern
    again = more // period
    middle = np.tile(starts[:, :, first : first + period], again) + np.repeat(np.arange(again), period) * seconds
    return np.concatenate([starts[:, :, :first], middle, starts[:, :, first:] + again * seconds], axis=2)


def _ordered(shop: Shop, starts: NDArray[np.float64]) -> list[Columns]:
    """Per rank its computations, by their starts."""
    kind, stage, mb = (index.ravel() for index in np.indices(starts.shape))
    rank = np.array(shop.rank)[stage]
    order = np.lexsort((kind, starts.ravel(), rank))
    op = np.array(_kinds(shop))[kind]
    columns = np.stack([op, stage, mb, np.zeros_like(op)], axis=1).astype(np.int32)[order]
    return np.split(columns, np.searchsorted(rank[order], np.arange(1, shop.ranks)))
