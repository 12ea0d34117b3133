"""Difference of two orders of the same computations: blocks that were moved, split, joined, or put into a shared slot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.messages import render
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.order_edits import Rows, computation_rows
from meshwave.engine.program.program import Program


@dataclass(frozen=True)
class MovedBlock:
    """Block whose place differs from that in the first order."""

    action: Action
    rank: int
    places: int  # places moved relative to blocks that stayed; negative is earlier, 0 if its rank changed
    from_rank: int


@dataclass(frozen=True)
class OrderDifference:
    """Fewest moved blocks that turn one order into another, and the backwards that changed."""

    moved: tuple[MovedBlock, ...]
    split: tuple[Action, ...]  # full backwards that are now halves
    joined: tuple[Action, ...]  # full backwards that were halves
    overlapped: tuple[Action, ...]  # backwards that now share a slot
    separated: tuple[Action, ...]  # backwards that shared a slot

    @property
    def is_empty(self) -> bool:
        """True if the orders are equal."""
        return not (self.moved or self.split or self.joined or self.overlapped or self.separated)

    def summary(self, meshes: Sequence[str], start: str) -> str:
        """Return the difference as one sentence; ``start`` names the first order."""
        within = [moved for moved in self.moved if moved.rank == moved.from_rank]
        stages = sorted({(m.action.stage, m.from_rank, m.rank) for m in self.moved if m.rank != m.from_rank})
        params = {
            "start": start,
            "later": sum(moved.places > 0 for moved in within),
            "earlier": sum(moved.places <= 0 for moved in within),
            "stages": [{"stage": stage, "source": meshes[was], "target": meshes[now]} for stage, was, now in stages],
            "split": len(self.split),
            "joined": len(self.joined),
            "overlapped": len(self.overlapped),
            "separated": len(self.separated),
            "meshes": [meshes[rank] for rank in sorted({moved.rank for moved in within})],
        }
        return render("order_difference", params)


def compare_orders(start: Program, now: Program) -> OrderDifference:
    """Compare two orders of the same stages and microbatches.

    Per rank, the blocks of a longest common subsequence stayed, and all others moved; no set of fewer moves turns one
    order into the other. The input gradient of a split backward is compared with the full backward of the other order.

    Raises:
        Refusal: the orders have different stages, microbatches or meshes.
    """
    if (start.stages, start.microbatches, start.ranks) != (now.stages, now.microbatches, now.ranks):
        raise Refusal("orders_without_common_blocks")
    then = computation_rows(start)
    op, stage, mb = now.op, now.stage, now.microbatch
    was = then[op, stage, mb]
    whole = then[Op.B, stage, mb]
    was = np.where((was < 0) & (op == Op.I), whole, was)  # a half replaces the full backward
    halves = then[Op.I, stage, mb]
    was = np.where((was < 0) & (op == Op.B), halves, was)
    moved: list[MovedBlock] = []
    for rank in range(now.ranks):
        own = np.arange(now.offsets[rank], now.offsets[rank + 1])
        own = own[was[own] >= 0]
        away = own[start.rank[was[own]] != rank]
        moved += [MovedBlock(now.row(row), rank, 0, int(start.rank[was[row]])) for row in away.tolist()]
        stayed = own[start.rank[was[own]] == rank]
        moved += _moved_blocks(now, rank, stayed, was[stayed])
    then_whole, now_whole = then[Op.B] >= 0, computation_rows(now)[Op.B] >= 0
    shared = np.where(
        was >= 0, start.fused[was], now.fused
    )  # [rows now] True if it was the second computation of a slot
    return OrderDifference(
        moved=tuple(moved),
        split=_masked_actions(Op.B, then_whole & ~now_whole),
        joined=_masked_actions(Op.B, ~then_whole & now_whole),
        overlapped=tuple(now.row(row) for row in np.flatnonzero(now.fused & ~shared).tolist()),
        separated=tuple(now.row(row) for row in np.flatnonzero(shared & ~now.fused).tolist()),
    )


def _masked_actions(op: Op, mask: NDArray[np.bool_]) -> tuple[Action, ...]:
    return tuple(Action(op, stage, mb) for stage, mb in np.argwhere(mask).tolist())


def _moved_blocks(now: Program, rank: int, rows: Rows, was: Rows) -> list[MovedBlock]:
    """Return the blocks of one rank outside the longest common subsequence of both orders."""
    if (np.diff(was) > 0).all():
        return []
    places = np.argsort(np.argsort(was))  # former index of each among these blocks
    stays = np.zeros(len(rows), np.bool_)
    stays[_longest_ascent(places.tolist())] = True
    kept = np.sort(places[stays])
    found = []
    for at in np.flatnonzero(~stays).tolist():
        passed = int(stays[:at].sum()) - int(np.searchsorted(kept, places[at]))
        found.append(MovedBlock(now.row(int(rows[at])), rank, passed, rank))
    return found


def _longest_ascent(values: list[int]) -> list[int]:
    """Return the indices of a longest ascending subsequence of distinct values (patience sorting, Fredman 1975)."""
    piles: list[int] = []  # smallest last value of an ascent of each length
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
