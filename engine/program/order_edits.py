"""Edits of a custom order: move, split, join and overlap computations.

All edits apply to a program of computations only, as returned by
:func:`meshwave.engine.lowering.lower.order_computations`. A *slot* is one computation, or a forward and a backward that
overlap; it moves as a whole. Edits return a new order, which may deadlock:
:func:`meshwave.engine.program.deadlock_repair.repair` removes deadlocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, from_columns
from meshwave.engine.program.timeline import Timeline

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = NDArray[np.int32]  # [actions, 4] op, stage, microbatch, fused

COMPUTATIONS = 4  # F, B, I, W
BACKWARDS = (Op.B, Op.I)


def find_rows(order: Program, actions: Iterable[Action]) -> Rows:
    """Return the rows of computations in ascending order, including the other row of a shared slot.

    Raises:
        Refusal: a computation is not in the order.
    """
    places = computation_rows(order)
    rows = []
    for action in actions:
        op, stage, mb, *_ = action
        known = 0 <= op < COMPUTATIONS and 0 <= stage < order.stages and 0 <= mb < order.microbatches
        if not known or places[op, stage, mb] < 0:
            raise Refusal("action_not_in_order", {"action": str(action)})
        rows.append(int(places[op, stage, mb]))
    return whole_slots(order, np.array(rows, np.int64))


def computation_rows(order: Program) -> Rows:
    """Return the row of each computation, ``[4, stages, microbatches]``; -1 if it is missing."""
    places = np.full((COMPUTATIONS, order.stages, order.microbatches), -1, np.int64)
    places[order.op, order.stage, order.microbatch] = np.arange(len(order))
    return places


def whole_slots(order: Program, rows: Rows) -> Rows:
    """Return the rows, extended to whole slots."""
    taken = np.zeros(len(order) + 1, np.bool_)
    taken[rows] = True
    taken[:-1] |= taken[1:] & order.next_is_fused
    taken[1:-1] |= taken[:-2] & order.fused[1:]
    return np.flatnonzero(taken)


def slot_rows(order: Program, own: slice) -> Rows:
    """Return the first row of each slot of the rank whose rows are ``own``."""
    slots: Rows = np.flatnonzero(~order.fused[own]) + own.start
    return slots


# ---- moving ----


def move_blocks(order: Program, rows: Rows, before: int) -> Program:
    """Move the slots of ``rows``, which must be on one rank, before the slot of row ``before``.

    The moved slots are then adjacent and keep their relative order. ``before`` is a row of the same rank, or the index
    after its last row for the end of its order.

    Raises:
        Refusal: the blocks are on several ranks, or ``before`` is on another rank.
    """
    rows = whole_slots(order, rows)
    if not len(rows):
        return order
    own = order.rows(int(order.rank[rows[0]]))
    if rows[-1] >= own.stop:
        raise Refusal("blocks_of_several_meshes")
    if not own.start <= before <= own.stop:
        raise Refusal("block_to_another_mesh")
    if before < own.stop:
        before = int(order.slot[before])
    rest = np.setdiff1d(np.arange(own.start, own.stop), rows, assume_unique=True)
    at = int(np.searchsorted(rest, before))
    return replace_rank_order(order, own, np.concatenate([rest[:at], rows, rest[at:]]))


def shift_blocks(order: Program, rows: Rows, by: int) -> Program:
    """Move the slots of ``rows`` by a number of places in the order of their ranks; negative numbers move them earlier.

    The other slots keep their order. The moved slots keep their distances, except at either end of an order.
    """
    rows = whole_slots(order, rows)
    for rank in np.unique(order.rank[rows]).tolist():
        own = order.rows(rank)
        slots = slot_rows(order, own)
        chosen = np.isin(slots, rows)
        at, count = np.flatnonzero(chosen), len(slots)
        number = np.arange(len(at))
        to = np.minimum(at + by, count - len(at) + number) if by > 0 else np.maximum(at + by, number)
        free = np.ones(count, np.bool_)
        free[to] = False
        shifted = np.empty_like(slots)
        shifted[to], shifted[free] = slots[chosen], slots[~chosen]
        order = replace_rank_order(order, own, order.rows_of(shifted))
    return order


def replace_rank_order(order: Program, own: slice, rows: Rows) -> Program:
    """Return the order with the rows ``own`` of one rank replaced by ``rows``, a permutation of them."""
    new = np.arange(len(order))
    new[own] = rows
    return order.reorder(new)


def move_stage(order: Program, timeline: Timeline, stage: int, rank: int, replica: int = 0) -> Program:
    """Move a stage of one replica of the model to another rank.

    Its computations are merged with those of the rank by their start times in ``timeline``, the simulation of this
    order; of two that start at the same time, the one on which the other depends comes first.

    Raises:
        Refusal: the stage or rank does not exist, or a rank would have no computations.
    """
    if not (0 <= stage < order.stages and 0 <= rank < order.ranks and 0 <= replica < order.replicas):
        raise Refusal("unknown_stage_or_mesh", {"last_stage": order.stages - 1, "last_mesh": order.ranks - 1})
    home = int(order.placement[replica, stage])
    if rank == home:
        return order
    moved = (order.stage == stage) & (order.replica[order.microbatch] == replica)
    if (moved | (order.rank != home)).all():
        raise Refusal("only_stage_of_mesh", {"stage": stage, "rank": home, "meshes": list(timeline.meshes)})
    start = computation_starts(timeline, order)[order.op, order.stage, order.microbatch]
    level = np.empty(len(order))
    level[order.graph.nodes] = np.arange(len(order.graph.nodes))
    level[order.fused] = level[order.slot[order.fused]]
    new_rank = np.where(moved, rank, order.rank)
    is_split = order.fused & (moved != moved[order.slot])
    rows = np.lexsort((np.arange(len(order)), level, start, new_rank))
    columns = _program_columns(order)
    columns[is_split, 3] = 0
    placement = order.placement.copy()
    placement[replica, stage] = rank
    ends = np.searchsorted(new_rank[rows], np.arange(1, order.ranks))
    return from_columns(np.split(columns[rows], ends), placement, order.replica)


def _program_columns(order: Program) -> Columns:
    return np.stack([order.op, order.stage, order.microbatch, order.fused], axis=1).astype(np.int32)


def computation_starts(timeline: Timeline, order: Program) -> Floats:
    """Return the start of each computation in seconds, ``[4, stages, microbatches]``; NaN if it is missing."""
    starts = np.full((COMPUTATIONS, order.stages, order.microbatches), np.nan)
    own = timeline.is_compute
    starts[timeline.op[own], timeline.stage[own], timeline.microbatch[own]] = timeline.start[own]
    return starts


# ---- halves and slots ----


def split_backwards(order: Program, rows: Rows) -> Program:
    """Split each full backward of ``rows`` into its input gradient and, right after it, its weight gradient.

    Raises:
        Refusal: ``rows`` contains no full backward.
    """
    whole = rows[order.op[rows] == Op.B]
    if not len(whole):
        raise Refusal("no_whole_backward")
    columns = _program_columns(order)
    columns[whole, 0] = Op.I
    weights = columns[whole]
    weights[:, 0], weights[:, 3] = Op.W, 0
    return _rebuild_program(
        order, np.insert(columns, whole + 1, weights, axis=0), np.insert(order.rank, whole + 1, order.rank[whole])
    )


def join_backwards(order: Program, rows: Rows) -> Program:
    """Join the halves of backwards in ``rows``; each full backward replaces its input gradient.

    Raises:
        Refusal: ``rows`` contains no half backward.
    """
    halves = rows[np.isin(order.op[rows], (Op.I, Op.W))]
    if not len(halves):
        raise Refusal("no_half_backward")
    places, columns = computation_rows(order), _program_columns(order)
    inputs, weights = (np.unique(places[op, order.stage[halves], order.microbatch[halves]]) for op in (Op.I, Op.W))
    columns[inputs, 0] = Op.B
    kept = np.ones(len(order), np.bool_)
    kept[weights] = False
    return _rebuild_program(order, columns[kept], order.rank[kept])


def join_slots(order: Program, rows: Rows) -> Program:
    """Put forwards and backwards of ``rows`` into shared slots.

    The first forward of a rank shares a slot with its first backward, and so on. A backward moves to its forward.

    Raises:
        Refusal: a rank has unequal numbers of forwards and backwards in ``rows``, a forward and its own backward would
            share a slot, or a block shares a slot already.
    """
    columns, at = _program_columns(order), np.arange(len(order), dtype=np.float64)
    double = order.fused | order.next_is_fused
    if double[rows].any():
        raise Refusal("slot_shared_already", {"action": str(order.row(int(rows[double[rows]][0])))})
    for rank in np.unique(order.rank[rows]).tolist():
        own = rows[order.rank[rows] == rank]
        first, second = own[order.op[own] == Op.F], own[np.isin(order.op[own], BACKWARDS)]
        if len(first) != len(second) or len(first) + len(second) != len(own):
            raise Refusal("uneven_slot")
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            a, b = order.row(one), order.row(other)
            if a[1:3] == b[1:3]:
                raise Refusal("slot_of_one_microbatch", {"action": str(a), "backward": str(b)})
        at[second] = first + 0.5
        columns[second, 3] = 1
    new = np.argsort(at, kind="stable")
    return _rebuild_program(order, columns[new], order.rank)  # ranks do not change


def split_slots(order: Program, rows: Rows) -> Program:
    """Make the two computations of each shared slot in ``rows`` run one after the other.

    Raises:
        Refusal: none of the rows shares a slot.
    """
    second = rows[order.fused[rows]]
    if not len(second):
        raise Refusal("no_shared_slot")
    fused = order.fused.copy()
    fused[second] = False
    return replace(order, fused=fused)


def _rebuild_program(order: Program, columns: Columns, rank: NDArray[np.int32]) -> Program:
    """Return an order with the given computations of the same stages; ``rank`` is the rank of each row, ascending."""
    parts = np.split(columns, np.searchsorted(rank, np.arange(1, order.ranks)))
    return from_columns(parts, order.placement, order.replica)
