"""Repair of an order that deadlocks, by moving as few blocks as possible.

Blocks that keep their relative order are *kept*. Moving the others, and splitting shared slots, repairs an order if and
only if the order of the kept blocks is consistent with the dependencies of computations; the places of the other blocks
then follow. A cycle of ranks that wait for each other contains a section of the order of each of its ranks, and at
least one of the blocks at the ends of these sections must move. Trying each of them, with one more permitted change at
a time, finds the fewest changes (a bounded search tree, as for feedback vertex sets: Downey and Fellows, 2013, section
3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.messages import render
from meshwave.engine.program.action import Action
from meshwave.engine.program.program import Program

Rows = NDArray[np.int64]

SEARCH_LIMIT = 3_000_000
"""Maximum number of computations that the search for the fewest changes processes, in about half a second."""
MAX_WALKS = 400


@dataclass(frozen=True, eq=False)
class Repair:
    """Order without deadlock that differs little from a given order that deadlocks."""

    order: Program
    moved: tuple[Action, ...]  # actions moved to their nearest legal place
    split: tuple[Action, ...]  # forwards of split slots
    is_smallest: bool  # True if no smaller repair exists

    @property
    def summary(self) -> str:
        """Description of the changes in one sentence."""
        moved, split = ([str(action) for action in actions] for actions in (self.moved, self.split))
        return render("order_repaired", {"moved": moved, "split": split, "is_smallest": self.is_smallest})


def repair(order: Program) -> Repair:
    """Return the smallest change of a complete order of computations that removes its deadlocks.

    The smallest change moves and splits the fewest slots; among equal ones, its blocks move the fewest places. It is
    proved to be the smallest unless the search would take too long: then each blocked rank runs the nearest block that
    can run, and ``is_smallest`` is False.
    """
    search = _Search(order)
    _, waiting = search.run_slots(_Changes(frozenset(), frozenset()))
    if not len(waiting):
        return Repair(order, (), (), is_smallest=True)
    rough = search.repair_greedily()
    found, is_smallest = search.find_fewest_changes(rough.changes.size)
    best = min([search.place_moved_slots(changes) for changes in found] or [rough], key=lambda way: way.distance)
    changes = best.changes
    return Repair(
        order=best.order,
        moved=tuple(order.row(row)._replace(fused=0) for row in sorted(changes.moved)),
        split=tuple(order.row(row) for row in sorted(changes.split)),
        is_smallest=is_smallest,
    )


class _Changes(NamedTuple):
    """Slots that are moved or split, by their first rows."""

    moved: frozenset[int]
    split: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.moved) + len(self.split)


class _PlacedChanges(NamedTuple):
    changes: _Changes
    order: Program
    distance: int  # sum of the distances, in places, by which slots move


class _Search:
    """Search for the fewest changes that repair an order."""

    def __init__(self, order: Program) -> None:
        self._order = order
        self._needs = _list_dependencies(order)
        self._needed_by = _list_dependents(order)
        self._left = max(20, min(MAX_WALKS, SEARCH_LIMIT // max(1, len(order))))  # remaining walks

    # ---- walking ----

    def run_slots(self, changes: _Changes) -> tuple[_Run, Rows]:
        """Run all slots that can run: kept slots in the order of their rank, moved slots as soon as possible.

        Returns the run and the indices of the blocked lines: ranks, then moved slots.
        """
        self._left -= 1
        lines = [*self._kept_slots(changes), *(np.array([row]) for row in sorted(changes.moved))]
        run = _Run(lines, self._slot_dependencies(self._needs, changes), len(self._order))
        return run, run.run_all()

    def _kept_slots(self, changes: _Changes) -> list[Rows]:
        """Return the slots of each rank that keep their place, by their first rows."""
        heads = ~self._order.fused
        heads[[row + 1 for row in changes.split]] = True
        heads[list(changes.moved)] = False
        rows = np.flatnonzero(heads)
        return np.split(rows, np.searchsorted(rows, self._order.offsets[1:-1]))

    def _slot_dependencies(self, needs: list[Rows], changes: _Changes) -> list[Rows]:
        """Return the slots on which each slot depends; for a shared slot, those of both computations."""
        order = self._split_order(changes)
        if not order.fused.any():
            return needs
        slot = np.append(order.slot, -1)
        needs = [slot[need] for need in needs]
        return [*needs, *(np.where(order.next_is_fused, np.append(need[1:], -1), -1) for need in needs)]

    # ---- the fewest changes ----

    def find_fewest_changes(self, most: int) -> tuple[list[_Changes], bool]:
        """Return all repairs with the fewest changes, at most ``most``, and True if no smaller repair exists.

        The list is empty if the search exceeded its limit.
        """
        for count in range(1, most + 1):
            tried: set[_Changes] = set()
            found = list(self._repairs(_Changes(frozenset(), frozenset()), count, tried))
            if found:
                return found, True
            if self._left <= 0:
                return [], count == most  # True if all smaller repairs were tried
        return [], True

    def _repairs(self, changes: _Changes, more: int, tried: set[_Changes]) -> Iterator[_Changes]:
        """Yield every repair that contains ``changes`` and at most ``more`` additional changes."""
        if changes in tried or self._left <= 0:
            return
        tried.add(changes)
        run, waiting = self.run_slots(changes)
        if not len(waiting):
            yield changes
        elif more:
            for next_change in self._candidates(run, waiting, changes):
                yield from self._repairs(next_change, more - 1, tried)

    def _candidates(self, run: _Run, waiting: Rows, changes: _Changes) -> list[_Changes]:
        """Return extended changes, derived from a shortest cycle, of which every repair contains at least one."""
        cycle = _shortest_cycle(run, waiting)
        found = []
        for number, (at, _) in enumerate(cycle):
            needed = cycle[number - 1][1]  # in the same line as ``at``, at ``at`` or later
            for row in (at, needed):
                if at != needed and row not in changes.moved:
                    found.append(changes._replace(moved=changes.moved | {row}))
                if self._is_unsplit(row, changes):
                    found.append(changes._replace(split=changes.split | {row}))
        return list(dict.fromkeys(found))

    def _is_shared_slot(self, row: int) -> bool:
        return bool(self._order.next_is_fused[row])

    # ---- some changes ----

    def repair_greedily(self, split: frozenset[int] = frozenset()) -> _PlacedChanges:
        """Return a repair found greedily: whenever all ranks are blocked, the nearest slot that can run is run next.

        The resulting order has no deadlock, but is not always the smallest repair.
        """
        changes = _Changes(frozenset(), split)
        chains, needs = self._kept_slots(changes), self._slot_dependencies(self._needs, changes)
        run = _Run(chains, needs, len(self._order))
        pulled: list[tuple[int, int]] = []  # slot, and the place among all chains of the slot before which it runs
        distance = 0
        while len(waiting := run.run_all()):
            found = [self._first_runnable(run, needed) for needed in self._dependencies_in_cycle(run, waiting)]
            runnable = [row for row, can in found if can]
            if not runnable:  # shared slots block each other
                return self.repair_greedily(split | {next(row for row, _ in found)})
            row = min(runnable, key=run.places_ahead)
            distance += run.places_ahead(row)
            pulled.append((row, run.run_out_of_order(row)))
        rows = np.concatenate(chains)
        out, at = np.array(pulled, np.int64).reshape(-1, 2).T
        stays = ~np.isin(rows, out)
        order = np.lexsort(
            (np.append(np.full(stays.sum(), len(out)), np.arange(len(out))), np.append(np.flatnonzero(stays), at))
        )
        joined = np.concatenate([rows[stays], out])[order]
        moved = changes._replace(moved=frozenset(out.tolist()))
        return _PlacedChanges(moved, self._order_of_slots(joined, changes), distance)

    def _dependencies_in_cycle(self, run: _Run, waiting: Rows) -> list[int]:
        """Return the slots that blocked slots of one cycle need from each other."""
        line, cycle = int(waiting[0]), {}
        while line not in cycle:
            cycle[line] = run.first_unmet_dependency(run.next_slot(line))
            line = run.line_of(cycle[line])
        needed = list(cycle.values())
        return needed[list(cycle).index(line) :]

    def _first_runnable(self, run: _Run, row: int) -> tuple[int, bool]:
        """Return the first slot that can run among the dependencies of a slot, or a shared slot if they form a cycle."""
        passed = []
        while row not in passed:
            passed.append(row)
            need = run.first_unmet_dependency(row)
            if need < 0:
                return row, True
            row = need
        return next(each for each in passed[passed.index(row) :] if self._is_shared_slot(each)), False

    def _is_unsplit(self, row: int, changes: _Changes) -> bool:
        """Return True if two computations still share the slot of this row."""
        return self._is_shared_slot(row) and row not in changes.split

    # ---- places of moved slots ----

    def place_moved_slots(self, changes: _Changes) -> _PlacedChanges:
        """Return the order with each moved slot, one after the other, at its nearest legal place among the kept slots."""
        chains, distance = self._kept_slots(changes), 0
        loose = sorted(changes.moved)
        needs, needed_by = (self._slot_dependencies(each, changes) for each in (self._needs, self._needed_by))
        rank_of = self._order.rank
        while loose:
            row = loose.pop(0)
            rank = int(rank_of[row])
            others = [np.array([other]) for other in loose]
            before = _Run([*chains, *others], needs, len(self._order))
            after = _Run([*(chain[::-1] for chain in chains), *others], needed_by, len(self._order))
            before.run_all(), after.run_all()
            chain = chains[rank]
            high, low = int(before.slots_run[rank]), len(chain) - int(after.slots_run[rank])
            meant = int(np.searchsorted(chain, row))
            place = min(max(meant, low), high)
            distance += abs(place - meant)
            chains[rank] = np.insert(chain, place, row)
        return _PlacedChanges(changes, self._order_of_slots(np.concatenate(chains), changes), distance)

    def _order_of_slots(self, slots: Rows, changes: _Changes) -> Program:
        order = self._split_order(changes)
        return order.reorder(order.rows_of(slots))

    def _split_order(self, changes: _Changes) -> Program:
        fused = self._order.fused.copy()
        fused[[row + 1 for row in changes.split]] = False
        return replace(self._order, fused=fused)


class _Run:
    """Execution of lines of slots; a slot runs after its dependencies and after all earlier slots of its line."""

    def __init__(self, lines: list[Rows], needs: list[Rows], size: int) -> None:
        lengths = np.array([len(line) for line in lines])
        self._rows = np.append(np.concatenate(lines), size)
        self._ends = np.cumsum(lengths)
        self._at = self._ends - lengths
        self._first = self._at.copy()
        self._needs = needs
        self._by_place = [np.append(need, -1)[self._rows] for need in needs]
        self.done = np.zeros(size + 1, np.bool_)
        self.done[-1] = True  # slots without dependencies depend on row -1
        self._place = np.full(size + 1, -1, np.int64)
        self._place[self._rows] = np.arange(len(self._rows))

    def run_all(self) -> Rows:
        """Run all slots that can run, and return the indices of the blocked lines."""
        rows, done, ends = self._rows, self.done, self._ends
        while True:
            at = self._at
            ready = np.logical_and.reduce([done[need[at]] for need in self._by_place])
            ready |= done[rows[at]]  # run out of order
            ready &= at < ends
            if not ready.any():
                return np.flatnonzero(at < ends)
            done[rows[at[ready]]] = True
            at += ready

    @property
    def slots_run(self) -> Rows:
        """Number of slots of each line that have run in order, ``[lines]``."""
        return np.asarray(self._at - self._first)

    def next_slot(self, line: int) -> int:
        """Return the first slot of a line that has not run."""
        return int(self._rows[self._at[line]])

    def line_of(self, row: int) -> int:
        """Return the index of the line that contains a slot."""
        return int(np.searchsorted(self._ends, self._place[row], side="right"))

    def unmet_dependencies(self, row: int) -> list[int]:
        """Return the dependencies of a slot that have not run."""
        return sorted({need for each in self._needs if not self.done[need := int(each[row])]})

    def first_unmet_dependency(self, row: int) -> int:
        """Return the first dependency of a slot that has not run; -1 if there is none."""
        return next(iter(self.unmet_dependencies(row)), -1)

    def places_ahead(self, row: int) -> int:
        """Return the number of places between the next slot of a line and a later slot."""
        return int(self._place[row] - self._at[self.line_of(row)])

    def run_out_of_order(self, row: int) -> int:
        """Run a slot before its turn; return the index, in all lines, of the slot before which it runs."""
        self.done[row] = True
        return int(self._at[self.line_of(row)])


def _list_dependencies(order: Program) -> list[Rows]:
    """Return the rows on which each computation depends, as two lists ``[rows]``; -1 for none."""
    table, nothing = order.tables, np.full(len(order), -1, np.int64)
    input_, other = nothing, nothing.copy()
    _set_columns(input_, table.forward[1:], table.forward[:-1])
    _set_columns(input_, table.backward[:-1], table.backward[1:])
    _set_columns(other, table.backward, table.forward)
    split = table.weight != table.backward
    _set_columns(other, np.where(split, table.weight, -1), table.backward)
    return [input_, other]


def _list_dependents(order: Program) -> list[Rows]:
    """Return the rows that depend on each computation, as two lists ``[rows]``; -1 for none."""
    table, nothing = order.tables, np.full(len(order), -1, np.int64)
    output, other = nothing, nothing.copy()
    _set_columns(output, table.forward[:-1], table.forward[1:])
    _set_columns(output, table.backward[1:], table.backward[:-1])
    _set_columns(other, table.forward, table.backward)
    split = table.weight != table.backward
    _set_columns(other, table.backward, np.where(split, table.weight, -1))
    return [output, other]


def _set_columns(column: Rows, rows: Rows, values: Rows) -> None:
    there = (rows >= 0) & (values >= 0)
    column[rows[there]] = values[there]


def _shortest_cycle(run: _Run, waiting: Rows) -> list[tuple[int, int]]:
    """Return a shortest cycle of lines: the next slot of each line, and the slot of the next line that it needs."""
    waits = {
        line: [(run.next_slot(line), need) for need in run.unmet_dependencies(run.next_slot(line))]
        for line in waiting.tolist()
    }
    best: list[tuple[int, int]] = []
    for start in waits:
        paths = deque([[wait] for wait in waits[start]])
        seen: set[int] = set()
        while paths and (not best or len(paths[0]) < len(best)):
            path = paths.popleft()
            line = run.line_of(path[-1][1])
            if line == start:
                best = path
                break
            if line not in seen:
                seen.add(line)
                paths.extend([*path, wait] for wait in waits[line])
    return best
