"""Steady states of a custom order, and edits that are repeated for other microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.program.order_edits import Rows, computation_rows, replace_rank_order, slot_rows, whole_slots
from meshwave.engine.program.program import Program


@dataclass(frozen=True)
class SteadyState:
    """Part of a rank's order that repeats every ``period`` slots, ``step`` microbatches later each time."""

    rank: int
    period: int  # period in slots
    step: int  # microbatches between repetitions
    first: int  # first row of the first slot
    last: int  # first row of the last slot


def find_steady_state(order: Program, rank: int) -> SteadyState | None:
    """Return the steady state of a rank; None if there is none.

    For each step in microbatches, every slot is compared with the slot ``period`` places later. A section is scored by
    the number of slots that match minus the number of slots that do not, since an edit of one block affects its
    neighbours. The step with the highest score is chosen.
    """
    own = order.rows(rank)
    slots = slot_rows(order, own)
    places = computation_rows(order)
    number = np.full(len(order) + 1, -1, np.int64)
    number[slots] = np.arange(len(slots))
    number[:-1][order.fused] = number[order.slot[order.fused]]
    best: tuple[int, SteadyState] | None = None
    for step in range(1, order.microbatches // 2 + 1):
        later = order.microbatch[slots] + step
        there = later < order.microbatches
        row = np.where(there, places[order.op[slots], order.stage[slots], np.where(there, later, 0)], -1)
        gap = np.where(row >= 0, number[row] - np.arange(len(slots)), 0)
        if not (gap > 0).any():
            continue
        period = int(np.bincount(gap[gap > 0]).argmax())
        score, first, last = _best_section(gap == period)
        if score >= period and (best is None or score > best[0]):
            best = (
                score,
                SteadyState(rank, period, step, int(slots[first]), int(slots[min(last + period, len(slots) - 1)])),
            )
    return best[1] if best else None


def _best_section(agrees: NDArray[np.bool_]) -> tuple[int, int, int]:
    """Return the score, first and last slot of the best section; the score is the number of agreeing minus other slots."""
    total = np.concatenate(([0], np.cumsum(np.where(agrees, 1, -1))))
    lowest = np.minimum.accumulate(total)
    end = int((total - lowest).argmax())
    start = int(total[: end + 1].argmin())
    return int(total[end] - total[start]), start, max(end - 1, start)


def find_repetitions(order: Program, rows: Rows) -> list[int]:
    """Return the offsets in microbatches at which blocks repeat in the steady state of their ranks.

    Raises:
        Refusal: a block is not part of a steady state.
    """
    found: set[int] = set()
    places = computation_rows(order)
    for rank in np.unique(order.rank[rows]).tolist():
        own, state = rows[order.rank[rows] == rank], find_steady_state(order, rank)
        if state is None or not ((own >= state.first) & (own <= state.last)).any():
            params = {"action": str(order.row(int(own[0]))), "has_steady_state": state is not None}
            raise Refusal("no_steady_state", params)
        op, stage, mb = (column[own] for column in (order.op, order.stage, order.microbatch))
        count = order.microbatches // state.step
        for by in (state.step * number for number in range(-count, count + 1) if number):
            inside = (mb + by >= 0) & (mb + by < order.microbatches)
            if inside.any():
                there = places[op[inside], stage[inside], mb[inside] + by]
                if ((there >= state.first) & (there <= state.last)).any():
                    found.add(by)
    return sorted(found, key=abs)


def repeat_blocks(order: Program, rows: Rows, shifts: Iterable[int] | None = None) -> Program:
    """Move blocks of other microbatches to the same relative places as ``rows``.

    Adjacent blocks of ``rows`` are placed relative to a neighbour: the preceding block, or the following one if the
    preceding block is of their own kind. The corresponding blocks ``by`` microbatches later move next to the same
    neighbour ``by`` microbatches later, for each ``by`` of ``shifts``; None for all microbatches. Blocks without such a
    neighbour do not move.
    """
    rows = whole_slots(order, rows)
    every = range(1, order.microbatches)
    shifts = [*every, *(-by for by in every)] if shifts is None else sorted(shifts, key=lambda by: (by < 0, abs(by)))
    for rank in np.unique(order.rank[rows]).tolist():
        own = order.rows(rank)
        chain = _Chain(order, own)
        for group in _adjacent_groups(order, rows[order.rank[rows] == rank]):
            for by in shifts:
                chain.repeat(group, by)
        order = replace_rank_order(order, own, chain.rows())
    return order


def _adjacent_groups(order: Program, rows: Rows) -> list[list[int]]:
    """Return groups of adjacent slots, by their first rows."""
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    return [[row for row in part.tolist() if not order.fused[row]] for part in np.split(rows, cuts)]


class _Chain:
    """Slots of one rank as a linked list."""

    def __init__(self, order: Program, own: slice) -> None:
        self._order, self._own, self.computation_rows = order, own, computation_rows(order)
        slots = slot_rows(order, own).tolist()
        self._after = dict(pairwise([-1, *slots, -1]))  # -1 is both ends
        self._before = {after: before for before, after in pairwise([-1, *slots, -1])}

    def repeat(self, group: list[int], by: int) -> None:
        """Move the blocks ``by`` microbatches after a group next to the corresponding neighbour.

        The corresponding neighbour is the block ``by`` microbatches after the neighbour of the group.
        """
        moved = [image for row in group if (image := self._same_slot(row, by)) >= 0]
        before, after = (self._same_slot(row, by) for row in self._neighbours(group))
        if before >= 0 and before not in moved:
            self._move(moved, lambda: before)
        elif after >= 0 and after not in moved:
            self._move(moved, lambda: self._before[after])

    def _neighbours(self, group: list[int]) -> tuple[int, int]:
        """Return the preceding and the following slot that define the place of a group, -1 for none.

        A neighbour of the same kind as a slot of the group is ignored if the other neighbour is of another kind:
        otherwise the blocks of all microbatches would follow each other and be collected in one place.
        """
        before, after = self._before[group[0]], self._after[group[-1]]
        kinds = {self._op_and_stage(row) for row in group}
        alike = [row >= 0 and self._op_and_stage(row) in kinds for row in (before, after)]
        if alike == [True, False]:
            return -1, after
        return (before, -1) if alike == [False, True] else (before, after)

    def _op_and_stage(self, row: int) -> tuple[int, int]:
        return int(self._order.op[row]), int(self._order.stage[row])

    def _same_slot(self, row: int, by: int) -> int:
        """Return the slot of this rank with the same block ``by`` microbatches later; -1 if there is none."""
        if row < 0:
            return -1
        op, stage, mb, *_ = self._order.row(row)
        if not 0 <= mb + by < self._order.microbatches:
            return -1
        there = int(self.computation_rows[op, stage, mb + by])
        inside = self._own.start <= there < self._own.stop
        return int(self._order.slot[there]) if inside else -1

    def _move(self, rows: list[int], find_anchor: Callable[[], int]) -> None:
        """Move slots: remove them, and insert them after the slot that ``find_anchor`` returns after the removal."""
        for row in rows:
            before, after = self._before[row], self._after[row]
            self._after[before], self._before[after] = after, before
        anchor = find_anchor()
        for row in rows:
            after = self._after[anchor]
            self._after[anchor], self._before[row] = row, anchor
            self._after[row], self._before[after] = after, row
            anchor = row

    def rows(self) -> Rows:
        """Return the rows of the rank in their new order."""
        slots, row = [], self._after[-1]
        while row >= 0:
            slots.append(row)
            row = self._after[row]
        return self._order.rows_of(np.array(slots, np.int64))
