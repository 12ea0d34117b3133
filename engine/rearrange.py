"""Orders drawn by hand: move computations, see what follows, repeat a pattern, tell what differs.

Everything works on the computations of a program alone, as :func:`engine.lowering.order` gives them.
A *slot* is one computation, or a forward and a backward that overlap; it moves as one. Nothing is
changed in place, and no order is refused for waiting for ever: :func:`play` tells, and
:func:`engine.repair.repair` mends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.cost import Costs, estimate, peak_memory
from engine.design import Design
from engine.errors import InputError
from engine.lowering import with_messages
from engine.program.action import Action, Op
from engine.program.program import Program, from_columns
from engine.program.verify import Standstill, complete, ring, verify
from engine.timeline import Timeline

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


# ---- what follows ----


@dataclass(frozen=True, eq=False)
class Played:
    """An order of computations and what becomes of it."""

    order: Program  # computations alone
    program: Program | None  # with transfers and updates; None where computations are missing
    costs: Costs | None
    timeline: Timeline | None  # None where the order cannot run
    faults: list[str]  # why it cannot, in sentences

    @cached_property
    def ring(self) -> list[Standstill]:
        """The ranks that wait for each other for ever, and at what."""
        return ring(self.program) if self.program is not None and self.timeline is None else []

    @cached_property
    def peak_bytes(self) -> Floats | None:
        """``[ranks]`` the most that a device of each holds; None where the order cannot run."""
        if self.timeline is None or self.program is None or self.costs is None:
            return None
        return peak_memory(self.program, self.costs).total_bytes


def play(design: Design, order: Program, known: Sequence[str] = ()) -> Played:
    """Simulate an order of computations on the meshes and costs of a design, or say why it cannot run.

    Args:
        known: why it cannot, where somebody has found out already; of a long order that takes a while.

    Raises:
        InputError: the cost model cannot price the design.
    """
    if faults := complete(order, design.pipe.microbatches):
        return Played(order, None, None, None, faults)
    program = with_messages(order, design)
    if len(program.graph.stuck):
        return Played(order, program, None, None, list(known) or verify(program))
    costs = estimate(design, program)
    names = tuple(mesh.name for mesh in design.meshes)
    timeline = costs.play(program, meshes=names)
    return Played(order, program, costs, timeline, [])


@dataclass(frozen=True, eq=False)
class Consequences:
    """What another order changes; seconds, or units where the costs are in units."""

    delay: Floats  # [spans of the timeline before] how much later each computation starts, 0 for others
    makespan: tuple[float, float]  # before and after
    bubble_ratio: tuple[float, float]
    peak_bytes: tuple[Floats, Floats]  # [ranks] each

    @property
    def later(self) -> int:
        """How many computations start later."""
        return int((self.delay > self._same).sum())

    @property
    def earlier(self) -> int:
        return int((self.delay < -self._same).sum())

    @property
    def _same(self) -> float:
        """Starts that differ by rounding alone are the same."""
        return 1e-9 * max(self.makespan)


def consequences(before: Played, after: Played) -> Consequences:
    """What becomes of a timeline where another order of the same stages can run.

    Raises:
        InputError: one of the two cannot run.
    """
    was, now = before.timeline, after.timeline
    if was is None or now is None or before.peak_bytes is None or after.peak_bytes is None:
        raise InputError((before.faults or after.faults)[0])
    own = np.flatnonzero(was.is_compute)
    starts = _starts(now, after.order)[was.op[own], was.stage[own], was.microbatch[own]]
    delay = np.zeros(len(was))
    delay[own] = np.nan_to_num(starts - was.start[own])  # a backward that was split or joined has no other
    return Consequences(
        delay=delay,
        makespan=(was.makespan, now.makespan),
        bubble_ratio=(was.bubble_ratio, now.bubble_ratio),
        peak_bytes=(before.peak_bytes, after.peak_bytes),
    )


# ---- patterns ----


@dataclass(frozen=True)
class Steady:
    """The part of a rank's order that repeats itself: ``period`` places on stands the same, ``step`` microbatches on."""

    rank: int
    period: int  # slots
    step: int  # microbatches
    first: int  # row
    last: int  # row, of the last repetition


def steady(order: Program, rank: int) -> Steady | None:
    """The steady state of a rank, None if nothing repeats itself.

    For each step in microbatches, what stands ``period`` places on is looked up for every slot; the
    stretch is the one with the most slots that agree, over those that do not (a few may: an edit of
    one block disturbs its neighbours). Of all steps the one with the best stretch wins.
    """
    own = order.rows(rank)
    slots = _slots(order, own)
    places = _places(order)
    number = np.full(len(order) + 1, -1, np.int64)
    number[slots] = np.arange(len(slots))
    number[:-1][order.fused] = number[order.slot[order.fused]]
    best: tuple[int, Steady] | None = None
    for step in range(1, order.microbatches // 2 + 1):
        later = order.microbatch[slots] + step
        there = later < order.microbatches
        row = np.where(there, places[order.op[slots], order.stage[slots], np.where(there, later, 0)], -1)
        gap = np.where(row >= 0, number[row] - np.arange(len(slots)), 0)
        if not (gap > 0).any():
            continue
        period = int(np.bincount(gap[gap > 0]).argmax())
        score, first, last = _best_stretch(gap == period)
        if score >= period and (best is None or score > best[0]):
            best = score, Steady(rank, period, step, int(slots[first]), int(slots[min(last + period, len(slots) - 1)]))
    return best[1] if best else None


def _best_stretch(agrees: NDArray[np.bool_]) -> tuple[int, int, int]:
    """The stretch with the most that agree over those that do not: by how many, its first and its last."""
    total = np.concatenate(([0], np.cumsum(np.where(agrees, 1, -1))))
    lowest = np.minimum.accumulate(total)
    end = int((total - lowest).argmax())
    start = int(total[: end + 1].argmin())
    return int(total[end] - total[start]), start, max(end - 1, start)


def repetitions(order: Program, rows: Rows) -> list[int]:
    """By how many microbatches the blocks of ``rows`` come again in the steady state of their ranks.

    Raises:
        InputError: a block is in no steady state.
    """
    found: set[int] = set()
    places = _places(order)
    for rank in np.unique(order.rank[rows]).tolist():
        own, state = rows[order.rank[rows] == rank], steady(order, rank)
        if state is None or not ((own >= state.first) & (own <= state.last)).any():
            words = "the order of this mesh does not repeat itself" if state is None else "it stands outside"
            raise InputError(f"{order.row(int(own[0]))} is in no steady state: {words}; repeat it for all microbatches")
        op, stage, mb = (column[own] for column in (order.op, order.stage, order.microbatch))
        count = order.microbatches // state.step
        for by in (state.step * number for number in range(-count, count + 1) if number):
            inside = (mb + by >= 0) & (mb + by < order.microbatches)
            if inside.any():
                there = places[op[inside], stage[inside], mb[inside] + by]
                if ((there >= state.first) & (there <= state.last)).any():
                    found.add(by)
    return sorted(found, key=abs)


def repeat(order: Program, rows: Rows, shifts: Iterable[int] | None = None) -> Program:
    """Put the same blocks of other microbatches as the blocks of ``rows`` stand.

    Blocks of ``rows`` that stand together have their place by a neighbour: the block before them, or
    the one after them where that before is of their own kind. The same blocks ``by`` microbatches on
    are put beside the same neighbour ``by`` microbatches on, for each ``by`` of ``shifts``: all
    microbatches, if not given. What has no such neighbour stays where it is.
    """
    rows = _whole_slots(order, rows)
    every = range(1, order.microbatches)
    shifts = [*every, *(-by for by in every)] if shifts is None else sorted(shifts, key=lambda by: (by < 0, abs(by)))
    for rank in np.unique(order.rank[rows]).tolist():
        own = order.rows(rank)
        chain = _Chain(order, own)
        for group in _groups(order, rows[order.rank[rows] == rank]):
            for by in shifts:
                chain.repeat(group, by)
        order = _reordered(order, own, chain.rows())
    return order


def _groups(order: Program, rows: Rows) -> list[list[int]]:
    """Slots that stand together, by their first rows."""
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    return [[row for row in part.tolist() if not order.fused[row]] for part in np.split(rows, cuts)]


class _Chain:
    """The slots of one rank as a linked list, in which blocks are put beside others."""

    def __init__(self, order: Program, own: slice) -> None:
        self._order, self._own, self._places = order, own, _places(order)
        slots = _slots(order, own).tolist()
        self._after = dict(pairwise([-1, *slots, -1]))  # -1 is both ends
        self._before = {after: before for before, after in pairwise([-1, *slots, -1])}

    def repeat(self, group: list[int], by: int) -> None:
        """Put what ``group`` is, ``by`` microbatches on, as the group stands."""
        moved = [image for row in group if (image := self._image(row, by)) >= 0]
        before, after = (self._image(row, by) for row in self._neighbours(group))
        if before >= 0 and before not in moved:
            self._put(moved, lambda: before)
        elif after >= 0 and after not in moved:
            self._put(moved, lambda: self._before[after])

    def _neighbours(self, group: list[int]) -> tuple[int, int]:
        """The slots beside a group by which its place is told, -1 for none.

        A neighbour that is of the same kind as one of the group is left out where the other is not:
        to follow one's own kind, microbatch by microbatch, would gather all of them in one place.
        """
        before, after = self._before[group[0]], self._after[group[-1]]
        kinds = {self._kind(row) for row in group}
        alike = [row >= 0 and self._kind(row) in kinds for row in (before, after)]
        if alike == [True, False]:
            return -1, after
        return (before, -1) if alike == [False, True] else (before, after)

    def _kind(self, row: int) -> tuple[int, int]:
        return int(self._order.op[row]), int(self._order.stage[row])

    def _image(self, row: int, by: int) -> int:
        """The slot of this rank with the same block of another microbatch; -1 if there is none."""
        if row < 0:
            return -1
        op, stage, mb, *_ = self._order.row(row)
        if not 0 <= mb + by < self._order.microbatches:
            return -1
        there = int(self._places[op, stage, mb + by])
        inside = self._own.start <= there < self._own.stop
        return int(self._order.slot[there]) if inside else -1

    def _put(self, rows: list[int], find_anchor: Callable[[], int]) -> None:
        """Take slots out and put them after another, which is found when they are out."""
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
        slots, row = [], self._after[-1]
        while row >= 0:
            slots.append(row)
            row = self._after[row]
        return self._order.rows_of(np.array(slots, np.int64))


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
