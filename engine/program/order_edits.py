"""Orders drawn by hand: move computations, see what follows, repeat a pattern, tell what differs.

Everything works on the computations of a program alone, as :func:`meshwave.engine.lowering.lower.order` gives them.
A *slot* is one computation, or a forward and a backward that overlap; it moves as one. Nothing is
changed in place, and no order is refused for waiting for ever: :func:`play` tells, and
:func:`meshwave.engine.program.deadlock_repair.repair` mends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import InputError
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, from_columns
from meshwave.engine.program.timeline import Timeline

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = NDArray[np.int32]  # [actions, 4] op, stage, microbatch, fused

COMPUTATIONS = 4  # F, B, I, W
BACKWARDS = (Op.B, Op.I)


def find(order: Program, actions: Iterable[Action]) -> Rows:
    """The rows of some computations, ascending, each with the other half of its slot.

    Raises:
        InputError: one of them is not in the order.
    """
    places = _places(order)
    rows = []
    for action in actions:
        op, stage, mb, *_ = action
        known = 0 <= op < COMPUTATIONS and 0 <= stage < order.stages and 0 <= mb < order.microbatches
        if not known or places[op, stage, mb] < 0:
            raise InputError(f"{action} is not in this order; choose a block that is")
        rows.append(int(places[op, stage, mb]))
    return _whole_slots(order, np.array(rows, np.int64))


def _places(order: Program) -> Rows:
    """``[4, stages, microbatches]`` the row of each computation, -1 where there is none."""
    places = np.full((COMPUTATIONS, order.stages, order.microbatches), -1, np.int64)
    places[order.op, order.stage, order.microbatch] = np.arange(len(order))
    return places


def _whole_slots(order: Program, rows: Rows) -> Rows:
    taken = np.zeros(len(order) + 1, np.bool_)
    taken[rows] = True
    taken[:-1] |= taken[1:] & order.doubled
    taken[1:-1] |= taken[:-2] & order.fused[1:]
    return np.flatnonzero(taken)


def _slots(order: Program, own: slice) -> Rows:
    """The slots of a rank, by their first rows."""
    slots: Rows = np.flatnonzero(~order.fused[own]) + own.start
    return slots


# ---- moving ----


def move(order: Program, rows: Rows, before: int) -> Program:
    """Take the slots of ``rows``, all of one rank, and put them before the slot of row ``before``.

    They stand together then, in the order that they had. ``before`` is a row of the same rank, or
    the number after its last row for the end of its order.

    Raises:
        InputError: the blocks are of several ranks, or the place is of another one.
    """
    rows = _whole_slots(order, rows)
    if not len(rows):
        return order
    own = order.rows(int(order.rank[rows[0]]))
    if rows[-1] >= own.stop:
        raise InputError("these blocks are of several meshes; move those of one mesh at a time")
    if not own.start <= before <= own.stop:
        raise InputError("a block stays on the mesh that holds its stage; move the stage to take it elsewhere")
    if before < own.stop:
        before = int(order.slot[before])
    rest = np.setdiff1d(np.arange(own.start, own.stop), rows, assume_unique=True)
    at = int(np.searchsorted(rest, before))
    return _reordered(order, own, np.concatenate([rest[:at], rows, rest[at:]]))


def shift(order: Program, rows: Rows, by: int) -> Program:
    """Move the slots of ``rows`` by so many places in the order of their ranks, back if negative.

    What is not moved keeps its order, and those that are moved keep their distances, but where the
    end of an order stops them.
    """
    rows = _whole_slots(order, rows)
    for rank in np.unique(order.rank[rows]).tolist():
        own = order.rows(rank)
        slots = _slots(order, own)
        chosen = np.isin(slots, rows)
        at, count = np.flatnonzero(chosen), len(slots)
        number = np.arange(len(at))
        to = np.minimum(at + by, count - len(at) + number) if by > 0 else np.maximum(at + by, number)
        free = np.ones(count, np.bool_)
        free[to] = False
        shifted = np.empty_like(slots)
        shifted[to], shifted[free] = slots[chosen], slots[~chosen]
        order = _reordered(order, own, order.rows_of(shifted))
    return order


def _reordered(order: Program, own: slice, rows: Rows) -> Program:
    """The order with that of one rank replaced by ``rows``, a permutation of its own."""
    new = np.arange(len(order))
    new[own] = rows
    return order.reordered(new)


def move_stage(order: Program, timeline: Timeline, stage: int, rank: int, replica: int = 0) -> Program:
    """Give a stage, of one replica of the model, to another rank.

    Its computations go where they are in ``timeline``, which is of this very order, among those of
    the rank: what starts first goes first, and of what starts at once, what the other needs.

    Raises:
        InputError: there is no such stage or rank, or a rank would be left with nothing to do.
    """
    if not (0 <= stage < order.stages and 0 <= rank < order.ranks and 0 <= replica < order.replicas):
        raise InputError(f"there are stages 0 to {order.stages - 1} and meshes 0 to {order.ranks - 1}; choose of these")
    home = int(order.placement[replica, stage])
    if rank == home:
        return order
    moved = (order.stage == stage) & (order.replica[order.microbatch] == replica)
    if (moved | (order.rank != home)).all():
        raise InputError(
            f"stage {stage} is all that mesh {timeline.meshes[home]} holds; a mesh needs a stage to compute"
        )
    start = _starts(timeline, order)[order.op, order.stage, order.microbatch]
    level = np.empty(len(order))
    level[order.graph.nodes] = np.arange(len(order.graph.nodes))
    level[order.fused] = level[order.slot[order.fused]]
    new_rank = np.where(moved, rank, order.rank)
    parted = order.fused & (moved != moved[order.slot])
    rows = np.lexsort((np.arange(len(order)), level, start, new_rank))
    columns = _columns(order)
    columns[parted, 3] = 0
    placement = order.placement.copy()
    placement[replica, stage] = rank
    ends = np.searchsorted(new_rank[rows], np.arange(1, order.ranks))
    return from_columns(np.split(columns[rows], ends), placement, order.replica)


def _columns(order: Program) -> Columns:
    return np.stack([order.op, order.stage, order.microbatch, order.fused], axis=1).astype(np.int32)


def _starts(timeline: Timeline, order: Program) -> Floats:
    """``[4, stages, microbatches]`` when each computation starts; not a number where there is none."""
    starts = np.full((COMPUTATIONS, order.stages, order.microbatches), np.nan)
    own = timeline.is_compute
    starts[timeline.op[own], timeline.stage[own], timeline.microbatch[own]] = timeline.start[own]
    return starts


# ---- halves and slots ----


def split(order: Program, rows: Rows) -> Program:
    """Part each whole backward of ``rows`` into its input gradient and, right after, its weight gradient.

    Raises:
        InputError: there is no whole backward among them.
    """
    whole = rows[order.op[rows] == Op.B]
    if not len(whole):
        raise InputError("none of these blocks is a whole backward (B); choose one to split it into I and W")
    columns = _columns(order)
    columns[whole, 0] = Op.I
    weights = columns[whole]
    weights[:, 0], weights[:, 3] = Op.W, 0
    return _rebuilt(
        order, np.insert(columns, whole + 1, weights, axis=0), np.insert(order.rank, whole + 1, order.rank[whole])
    )


def join(order: Program, rows: Rows) -> Program:
    """Make whole backwards again of the halves among ``rows``: each stands where its input gradient stood.

    Raises:
        InputError: there is no half among them.
    """
    halves = rows[np.isin(order.op[rows], (Op.I, Op.W))]
    if not len(halves):
        raise InputError("none of these blocks is half a backward (I or W); choose one to join it with the other half")
    places, columns = _places(order), _columns(order)
    inputs, weights = (np.unique(places[op, order.stage[halves], order.microbatch[halves]]) for op in (Op.I, Op.W))
    columns[inputs, 0] = Op.B
    kept = np.ones(len(order), np.bool_)
    kept[weights] = False
    return _rebuilt(order, columns[kept], order.rank[kept])


def fuse(order: Program, rows: Rows) -> Program:
    """Put forwards and backwards of ``rows`` into one slot each, the first of a rank with its first and so on.

    A backward comes to where its forward stands.

    Raises:
        InputError: a rank has not as many backwards as forwards among them, or both are of one
            microbatch in one stage; or a block shares a slot already.
    """
    columns, at = _columns(order), np.arange(len(order), dtype=np.float64)
    double = order.fused | order.doubled
    if double[rows].any():
        raise InputError(f"{order.row(int(rows[double[rows]][0]))} shares a slot already; part it first")
    for rank in np.unique(order.rank[rows]).tolist():
        own = rows[order.rank[rows] == rank]
        first, second = own[order.op[own] == Op.F], own[np.isin(order.op[own], BACKWARDS)]
        if len(first) != len(second) or len(first) + len(second) != len(own):
            raise InputError("a slot holds one forward and one backward (B or I); choose as many of each on a mesh")
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            a, b = order.row(one), order.row(other)
            if a[1:3] == b[1:3]:
                raise InputError(f"{b} needs {a}, so that they cannot overlap; choose a backward of another microbatch")
        at[second] = first + 0.5
        columns[second, 3] = 1
    new = np.argsort(at, kind="stable")
    return _rebuilt(order, columns[new], order.rank)  # nothing changes ranks


def part(order: Program, rows: Rows) -> Program:
    """Let the two of each slot of ``rows`` run one after the other.

    Raises:
        InputError: none of them shares a slot.
    """
    second = rows[order.fused[rows]]
    if not len(second):
        raise InputError("none of these blocks shares a slot; choose two that overlap to part them")
    fused = order.fused.copy()
    fused[second] = False
    return replace(order, fused=fused)


def _rebuilt(order: Program, columns: Columns, rank: NDArray[np.int32]) -> Program:
    """The same stages on the same ranks with other computations; ``rank`` is that of each row, ascending."""
    parts = np.split(columns, np.searchsorted(rank, np.arange(1, order.ranks)))
    return from_columns(parts, order.placement, order.replica)
