"""Orders drawn by hand: move computations, see what follows, repeat a pattern, tell what differs.

Everything works on the computations of a program alone, as :func:`meshwave.engine.lowering.lower.order` gives them.
A *slot* is one computation, or a forward and a backward that overlap; it moves as one. Nothing is
changed in place, and no order is refused for waiting for ever: :func:`play` tells, and
:func:`meshwave.engine.program.deadlock_repair.repair` mends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import InputError
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.order_edits import Rows, _places
from meshwave.engine.program.program import Program

# ---- differences ----


@dataclass(frozen=True)
class Moved:
    """A block that stands elsewhere than where one started."""

    action: Action
    rank: int
    places: int  # in its rank's order among what stayed: later if positive, earlier if negative; 0 if its rank changed
    from_rank: int


@dataclass(frozen=True)
class Difference:
    """How one order differs from another: as few moved blocks as tell it, and what was split, joined, fused, parted."""

    moved: tuple[Moved, ...]
    split: tuple[Action, ...]  # whole backwards that are halves now
    joined: tuple[Action, ...]  # whole backwards that were halves
    fused: tuple[Action, ...]  # backwards that share a slot now and did not
    parted: tuple[Action, ...]  # backwards that shared a slot

    @property
    def is_none(self) -> bool:
        return not (self.moved or self.split or self.joined or self.fused or self.parted)

    def words(self, meshes: Sequence[str], start: str) -> str:
        """One sentence a person can check: against ``start``, on meshes of these names."""
        if self.is_none:
            return f"The same order as {start}"
        parts = []
        here = [moved for moved in self.moved if moved.rank == moved.from_rank]
        for said, count in (("later", sum(m.places > 0 for m in here)), ("earlier", sum(m.places <= 0 for m in here))):
            if count:
                parts.append(f"{count} {'block' if count == 1 else 'blocks'} {said}")
        stages = sorted({(m.action.stage, m.from_rank, m.rank) for m in self.moved if m.rank != m.from_rank})
        parts += [f"stage {stage} on {meshes[to]} instead of {meshes[was]}" for stage, was, to in stages]
        for said, actions in (
            ("split", self.split), ("joined", self.joined), ("in one slot", self.fused), ("parted", self.parted),
        ):  # fmt: skip
            if actions:
                parts.append(f"{len(actions)} {'backward' if len(actions) == 1 else 'backwards'} {said}")
        where = sorted({moved.rank for moved in here})
        on = f" on {meshes[where[0]]}" if len(where) == 1 and len(parts) == 1 else ""
        return f"Against {start}: {', '.join(parts)}{on}"


def difference(start: Program, now: Program) -> Difference:
    """What was moved between two orders of the same stages and microbatches.

    Per rank, the longest part that both orders have in common is what stayed; all other blocks were
    moved, and no fewer moves can lead from one order to the other. Halves of a backward that was
    whole count as it did.

    Raises:
        InputError: the two are of other stages, microbatches or meshes.
    """
    if (start.stages, start.microbatches, start.ranks) != (now.stages, now.microbatches, now.ranks):
        raise InputError("the orders are of other stages, microbatches or meshes; they have no blocks in common")
    then = _places(start)
    op, stage, mb = now.op, now.stage, now.microbatch
    was = then[op, stage, mb]
    whole = then[Op.B, stage, mb]
    was = np.where((was < 0) & (op == Op.I), whole, was)  # half of what was whole stands for it
    halves = then[Op.I, stage, mb]
    was = np.where((was < 0) & (op == Op.B), halves, was)
    moved: list[Moved] = []
    for rank in range(now.ranks):
        own = np.arange(now.offsets[rank], now.offsets[rank + 1])
        own = own[was[own] >= 0]
        away = own[start.rank[was[own]] != rank]
        moved += [Moved(now.row(row), rank, 0, int(start.rank[was[row]])) for row in away.tolist()]
        stayed = own[start.rank[was[own]] == rank]
        moved += _moved_on(now, rank, stayed, was[stayed])
    then_whole, now_whole = then[Op.B] >= 0, _places(now)[Op.B] >= 0
    shared = np.where(was >= 0, start.fused[was], now.fused)  # [rows now] whether each was the second of a slot
    return Difference(
        moved=tuple(moved),
        split=_named(Op.B, then_whole & ~now_whole),
        joined=_named(Op.B, ~then_whole & now_whole),
        fused=tuple(now.row(row) for row in np.flatnonzero(now.fused & ~shared).tolist()),
        parted=tuple(now.row(row) for row in np.flatnonzero(shared & ~now.fused).tolist()),
    )


def _named(op: Op, mask: NDArray[np.bool_]) -> tuple[Action, ...]:
    return tuple(Action(op, stage, mb) for stage, mb in np.argwhere(mask).tolist())


def _moved_on(now: Program, rank: int, rows: Rows, was: Rows) -> list[Moved]:
    """Blocks of one rank outside the longest part that both orders have in common."""
    if (np.diff(was) > 0).all():
        return []
    places = np.argsort(np.argsort(was))  # where each stood, among these
    stays = np.zeros(len(rows), np.bool_)
    stays[_longest_ascent(places.tolist())] = True
    kept = np.sort(places[stays])
    found = []
    for at in np.flatnonzero(~stays).tolist():
        passed = int(stays[:at].sum()) - int(np.searchsorted(kept, places[at]))
        found.append(Moved(now.row(int(rows[at])), rank, passed, rank))
    return found


def _longest_ascent(values: list[int]) -> list[int]:
    """Where a longest ascending part of different values stands (patience sorting, Fredman 1975)."""
    piles: list[int] = []  # the smallest last value of an ascent of each length
    tops: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_left(piles, value)
        before.append(tops[length - 1] if length else -1)
        if length == len(piles):
            piles.append(value)
            tops.append(at)
        else:
            piles[length], tops[length] = value, at
    ascent, at = [], tops[-1] if tops else -1
    while at >= 0:
        ascent.append(at)
        at = before[at]
    return ascent[::-1]
