"""Make an order that waits for ever legal again, by moving as few blocks as possible.

Blocks that keep their order among themselves are *kept*. An order can be mended by moving the others,
and by parting slots of two, exactly if what the kept ones ask for and what computations need of each
other go together; where the others go then follows. Each ring of ranks that wait for each other
names, by the two ends of each stretch of an order that it follows, blocks of which one has to move:
trying each of them, with one more change allowed each time, finds the fewest changes (a bounded
search tree, as for feedback vertex sets: Downey and Fellows, 2013, section 3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Action
from meshwave.engine.program.program import Program

Rows = NDArray[np.int64]

EFFORT = 3_000_000
"""Computations walked over before the search for the fewest changes is given up: a few seconds."""
MOST_WALKS = 400


@dataclass(frozen=True, eq=False)
class Repair:
    """A legal order near one that was not."""

    order: Program
    moved: tuple[Action, ...]  # each stands, of the places that are legal, at the nearest
    parted: tuple[Action, ...]  # forwards that shared a slot
    is_smallest: bool  # it is proved that no fewer changes are enough

    def words(self) -> str:
        """What was done, in a sentence."""
        if not self.moved and not self.parted:
            return "Nothing had to move: the order can run"
        done = [
            f"{said} {', '.join(map(str, actions[:4]))}{f' and {len(actions) - 4} more' if len(actions) > 4 else ''}"
            for said, actions in (("moved", self.moved), ("parted the slot of", self.parted))
            if actions
        ]
        changes = len(self.moved) + len(self.parted)
        sure = "the fewest changes that are enough" if self.is_smallest else "perhaps not the fewest changes"
        told = " and ".join(done)
        return f"{told[0].upper()}{told[1:]} ({'one change' if changes == 1 else f'{changes} changes'}, {sure})"


def repair(order: Program) -> Repair:
    """The smallest reordering of a complete order of computations that can run.

    Smallest is the fewest slots moved and slots parted; of several ways the one whose blocks go the
    fewest places. That it is the fewest is proved unless the search would take seconds: then each
    rank that stands still runs the nearest block that it can, and ``is_smallest`` is False.
    """
    search = _Search(order)
    _, waiting = search.walk(_Changes(frozenset(), frozenset()))
    if not len(waiting):
        return Repair(order, (), (), is_smallest=True)
    rough = search.pulled_ahead()
    found, is_smallest = search.fewest(rough.changes.size)
    best = min([search.placed(changes) for changes in found] or [rough], key=lambda way: way.distance)
    changes = best.changes
    return Repair(
        order=best.order,
        moved=tuple(order.row(row)._replace(fused=0) for row in sorted(changes.moved)),
        parted=tuple(order.row(row) for row in sorted(changes.parted)),
        is_smallest=is_smallest,
    )


class _Changes(NamedTuple):
    """What is not as it was: slots by their first rows."""

    moved: frozenset[int]
    parted: frozenset[int]

    @property
    def size(self) -> int:
        return len(self.moved) + len(self.parted)


class _Placed(NamedTuple):
    changes: _Changes
    order: Program
    distance: int  # places gone by all that were moved


class _Search:
    """The order that is to be mended, and what was tried."""

    def __init__(self, order: Program) -> None:
        self._order = order
        self._needs = _needs(order)
        self._needed_by = _needed_by(order)
        self._left = max(20, min(MOST_WALKS, EFFORT // max(1, len(order))))  # walks

    # ---- walking ----

    def walk(self, changes: _Changes) -> tuple[_Run, Rows]:
        """Run what can run: the kept slots of each rank in their order, and what is moved whenever it can.

        Returns the numbers of the lines that stand still beside: ranks, then what is moved.
        """
        self._left -= 1
        lines = [*self._chains(changes), *(np.array([row]) for row in sorted(changes.moved))]
        run = _Run(lines, self._of_slots(self._needs, changes), len(self._order))
        return run, run.go()

    def _chains(self, changes: _Changes) -> list[Rows]:
        """Per rank the slots that are kept, by their first rows."""
        heads = ~self._order.fused
        heads[[row + 1 for row in changes.parted]] = True
        heads[list(changes.moved)] = False
        rows = np.flatnonzero(heads)
        return np.split(rows, np.searchsorted(rows, self._order.offsets[1:-1]))

    def _of_slots(self, needs: list[Rows], changes: _Changes) -> list[Rows]:
        """What each slot needs, as slots: a slot of two needs what its second needs too."""
        order = self._parted(changes)
        if not order.fused.any():
            return needs
        slot = np.append(order.slot, -1)
        needs = [slot[need] for need in needs]
        return [*needs, *(np.where(order.doubled, np.append(need[1:], -1), -1) for need in needs)]

    # ---- the fewest changes ----

    def fewest(self, most: int) -> tuple[list[_Changes], bool]:
        """All ways with the fewest changes, up to ``most``; whether that many are proved to be the fewest.

        An empty list where the search was given up.
        """
        for count in range(1, most + 1):
            tried: set[_Changes] = set()
            found = list(self._ways(_Changes(frozenset(), frozenset()), count, tried))
            if found:
                return found, True
            if self._left <= 0:
                return [], count == most  # fewer than that were tried, all of them
        return [], True

    def _ways(self, changes: _Changes, more: int, tried: set[_Changes]) -> Iterator[_Changes]:
        """Every mending set of changes that has ``changes`` and at most so many more."""
        if changes in tried or self._left <= 0:
            return
        tried.add(changes)
        run, waiting = self.walk(changes)
        if not len(waiting):
            yield changes
        elif more:
            for next_change in self._candidates(run, waiting, changes):
                yield from self._ways(next_change, more - 1, tried)

    def _candidates(self, run: _Run, waiting: Rows, changes: _Changes) -> list[_Changes]:
        """Changes of which every mending set has at least one, by a shortest ring."""
        ring = _shortest_ring(run, waiting)
        found = []
        for number, (at, _) in enumerate(ring):
            needed = ring[number - 1][1]  # of the line of ``at``, where it stands at ``at`` or behind
            for row in (at, needed):
                if at != needed and row not in changes.moved:
                    found.append(changes._replace(moved=changes.moved | {row}))
                if self._is_whole(row, changes):
                    found.append(changes._replace(parted=changes.parted | {row}))
        return list(dict.fromkeys(found))

    def _is_double(self, row: int) -> bool:
        return bool(self._order.doubled[row])

    # ---- some changes ----

    def pulled_ahead(self, parted: frozenset[int] = frozenset()) -> _Placed:
        """Let every rank run its order; whenever all stand still, follow what one waits for to a slot that
        can run, and run the nearest of these out of its turn. Never wrong, and not always the least."""
        changes = _Changes(frozenset(), parted)
        chains, needs = self._chains(changes), self._of_slots(self._needs, changes)
        run = _Run(chains, needs, len(self._order))
        pulled: list[tuple[int, int]] = []  # which slot, and the place in all chains of the slot that it ran before
        distance = 0
        while len(waiting := run.go()):
            found = [self._first_that_can(run, needed) for needed in self._ring_of_some(run, waiting)]
            runnable = [row for row, can in found if can]
            if not runnable:  # slots of two stand in the way of each other
                return self.pulled_ahead(parted | {next(row for row, _ in found)})
            row = min(runnable, key=run.ahead)
            distance += run.ahead(row)
            pulled.append((row, run.pull(row)))
        rows = np.concatenate(chains)
        out, at = np.array(pulled, np.int64).reshape(-1, 2).T
        stays = ~np.isin(rows, out)
        order = np.lexsort(
            (np.append(np.full(stays.sum(), len(out)), np.arange(len(out))), np.append(np.flatnonzero(stays), at))
        )
        joined = np.concatenate([rows[stays], out])[order]
        moved = changes._replace(moved=frozenset(out.tolist()))
        return _Placed(moved, self._joined(joined, changes), distance)

    def _ring_of_some(self, run: _Run, waiting: Rows) -> list[int]:
        """What slots that stand still in a ring need of each other."""
        line, ring = int(waiting[0]), {}
        while line not in ring:
            ring[line] = run.first_need(run.head(line))
            line = run.line_of(ring[line])
        needed = list(ring.values())
        return needed[list(ring).index(line) :]

    def _first_that_can(self, run: _Run, row: int) -> tuple[int, bool]:
        """Follow what a slot needs to one that can run; or to a slot of two, if that leads back."""
        passed = []
        while row not in passed:
            passed.append(row)
            need = run.first_need(row)
            if need < 0:
                return row, True
            row = need
        return next(each for each in passed[passed.index(row) :] if self._is_double(each)), False

    def _is_whole(self, row: int, changes: _Changes) -> bool:
        """Whether two share the slot of this row, still."""
        return self._is_double(row) and row not in changes.parted

    # ---- where what is moved goes ----

    def placed(self, changes: _Changes) -> _Placed:
        """Put each moved slot to the nearest legal place among the kept ones, one after the other."""
        chains, distance = self._chains(changes), 0
        loose = sorted(changes.moved)
        needs, needed_by = (self._of_slots(each, changes) for each in (self._needs, self._needed_by))
        rank_of = self._order.rank
        while loose:
            row = loose.pop(0)
            rank = int(rank_of[row])
            others = [np.array([other]) for other in loose]
            before = _Run([*chains, *others], needs, len(self._order))
            after = _Run([*(chain[::-1] for chain in chains), *others], needed_by, len(self._order))
            before.go(), after.go()
            chain = chains[rank]
            high, low = int(before.ran[rank]), len(chain) - int(after.ran[rank])
            meant = int(np.searchsorted(chain, row))
            place = min(max(meant, low), high)
            distance += abs(place - meant)
            chains[rank] = np.insert(chain, place, row)
        return _Placed(changes, self._joined(np.concatenate(chains), changes), distance)

    def _joined(self, slots: Rows, changes: _Changes) -> Program:
        order = self._parted(changes)
        return order.reordered(order.rows_of(slots))

    def _parted(self, changes: _Changes) -> Program:
        fused = self._order.fused.copy()
        fused[[row + 1 for row in changes.parted]] = False
        return replace(self._order, fused=fused)


class _Run:
    """Lines of slots of which each runs once all that it needs has run and those before it in its line."""

    def __init__(self, lines: list[Rows], needs: list[Rows], size: int) -> None:
        lengths = np.array([len(line) for line in lines])
        self._rows = np.append(np.concatenate(lines), size)
        self._ends = np.cumsum(lengths)
        self._at = self._ends - lengths
        self._first = self._at.copy()
        self._needs = needs
        self._by_place = [np.append(need, -1)[self._rows] for need in needs]
        self.done = np.zeros(size + 1, np.bool_)
        self.done[-1] = True  # what needs nothing needs row -1
        self._place = np.full(size + 1, -1, np.int64)
        self._place[self._rows] = np.arange(len(self._rows))

    def go(self) -> Rows:
        """Run all that can; the numbers of the lines that stand still."""
        rows, done, ends = self._rows, self.done, self._ends
        while True:
            at = self._at
            ready = np.logical_and.reduce([done[need[at]] for need in self._by_place])
            ready |= done[rows[at]]  # out of its turn
            ready &= at < ends
            if not ready.any():
                return np.flatnonzero(at < ends)
            done[rows[at[ready]]] = True
            at += ready

    @property
    def ran(self) -> Rows:
        """``[lines]`` how many slots of each have run in their turn."""
        return np.asarray(self._at - self._first)

    def head(self, line: int) -> int:
        """The slot that a line stands at."""
        return int(self._rows[self._at[line]])

    def line_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, self._place[row], side="right"))

    def unmet(self, row: int) -> list[int]:
        """What a slot needs that has not run."""
        return sorted({need for each in self._needs if not self.done[need := int(each[row])]})

    def first_need(self, row: int) -> int:
        return next(iter(self.unmet(row)), -1)

    def ahead(self, row: int) -> int:
        """How many places behind what its line stands at a slot is."""
        return int(self._place[row] - self._at[self.line_of(row)])

    def pull(self, row: int) -> int:
        """Run a slot out of its turn; the place, in all lines, of what it runs before."""
        self.done[row] = True
        return int(self._at[self.line_of(row)])


def _needs(order: Program) -> list[Rows]:
    """What computations need of each other: two lists ``[rows]``, -1 for nothing."""
    table, nothing = order.tables, np.full(len(order), -1, np.int64)
    input_, other = nothing, nothing.copy()
    _set(input_, table.forward[1:], table.forward[:-1])
    _set(input_, table.backward[:-1], table.backward[1:])
    _set(other, table.backward, table.forward)
    split = table.weight != table.backward
    _set(other, np.where(split, table.weight, -1), table.backward)
    return [input_, other]


def _needed_by(order: Program) -> list[Rows]:
    """The same the other way round."""
    table, nothing = order.tables, np.full(len(order), -1, np.int64)
    output, other = nothing, nothing.copy()
    _set(output, table.forward[:-1], table.forward[1:])
    _set(output, table.backward[1:], table.backward[:-1])
    _set(other, table.forward, table.backward)
    split = table.weight != table.backward
    _set(other, table.backward, np.where(split, table.weight, -1))
    return [output, other]


def _set(column: Rows, rows: Rows, values: Rows) -> None:
    there = (rows >= 0) & (values >= 0)
    column[rows[there]] = values[there]


def _shortest_ring(run: _Run, waiting: Rows) -> list[tuple[int, int]]:
    """Lines that wait for each other in a ring: the slot that each stands at, and what this one needs of
    the next line, where it stands at or behind what that line stands at."""
    waits = {line: [(run.head(line), need) for need in run.unmet(run.head(line))] for line in waiting.tolist()}
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
