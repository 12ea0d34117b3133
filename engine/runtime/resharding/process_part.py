"""The part of one process in a transfer: what it holds and gets, and every message of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from meshwave.engine.resharding import Box, Move, Transfer

Window = tuple[slice, ...]
WHOLE = -1
"""Instead of the rank of an addend: the slice itself."""


class Slice(NamedTuple):
    """A unit task in which this process has a part, or an addend of one."""

    task: int
    tensor: int  # its place among the tensors of the transfer
    bytes: int
    read: Window | None  # in the shard that it holds, where it sends or keeps the slice
    write: Window | None  # in the shard that it gets


class Sum(NamedTuple):
    """A slice of a partial tensor that this process makes; places in the list of slices."""

    total: int
    addends: tuple[int, ...]  # in the order in which they are added


class Receive(NamedTuple):
    slice: int  # its place in the list of slices
    start: int  # bytes
    stop: int
    source: int
    tag: int


class Send(NamedTuple):
    slice: int
    start: int  # bytes
    stop: int
    target: int
    tag: int
    needs: tuple[int, ...]  # the receives that bring the range; none where the process owns it


class Part:
    """What one process does in a transfer; looked up once, played many times."""

    def __init__(self, planned: Transfer, process: int) -> None:
        self.process = process
        self.owned: list[Box | None] = [load.owned.get(process) for load in planned.loads]
        self.needed: list[Box | None] = [load.needed.get(process) for load in planned.loads]
        self.slices: list[Slice] = []
        self.sums: list[Sum] = []
        self.receives: list[Receive] = []
        self.inside: list[Send] = []  # to processes of the same host, and to others
        self.outside: list[Send] = []
        self.sent_bytes = self.received_bytes = 0
        self._places: dict[tuple[int, int], int] = {}  # of a task, or of an addend of it, among the slices
        self._brought: dict[tuple[int, int, int], int] = {}  # the receive of a range of a slice
        self._coming: defaultdict[int, list[int]] = defaultdict(list)  # the receives of a slice
        self._planned = planned
        for number, task in enumerate(planned.tasks):
            if process in task.keepers:
                self._place(number)
        for each in planned.plan.tasks:
            if each.sender == process and planned.tasks[each.task].addends:
                self._add_sum(each.task)
        self._totals = {each.total: each for each in self.sums}
        self.tags = self._add_moves()

    def is_sum(self, place: int) -> bool:
        """Whether this process adds up a slice, so that it owns it only once all addends are there."""
        return place in self._totals

    def _add_sum(self, number: int) -> None:
        group = self._planned.tasks[number].addends_of(self.process)
        self.sums.append(Sum(self._place(number), tuple(self._place(number, rank) for rank in group)))

    def _add_moves(self) -> int:
        """Messages of a pair are told apart by their number; the most that any pair has."""
        numbers: Counter[tuple[int, int]] = Counter()
        for move in self._planned.moves:
            pair = move.source, move.target
            if self.process in pair:
                self._add_move(move, numbers[pair])
            numbers[pair] += 1
        return max(numbers.values(), default=0)

    def _add_move(self, move: Move, number: int) -> None:
        task, host = self._planned.tasks[move.task], self._planned.links.host
        place = self._place(move.task, move.source if move.is_addend(task) else WHOLE)
        item = task.bytes // task.elements
        span = place, move.start * item, move.stop * item
        if self.process == move.target:
            self._brought[span] = len(self.receives)
            self._coming[place].append(len(self.receives))
            self.receives.append(Receive(*span, move.source, number))
            self.received_bytes += move.elements * item
        else:
            lane = self.inside if host[move.source] == host[move.target] else self.outside
            lane.append(Send(*span, move.target, number, self._bringing(*span)))
            self.sent_bytes += move.elements * item

    def _place(self, number: int, addend: int = WHOLE) -> int:
        key = number, addend
        if key not in self._places:
            task = self._planned.tasks[number]
            owns = self.process in task.senders and not task.addends if addend == WHOLE else addend == self.process
            needs = addend == WHOLE and self.process in (*task.receivers, *task.keepers)
            read = _window(task.box, self.owned[task.tensor]) if owns else None
            write = _window(task.box, self.needed[task.tensor]) if needs else None
            self._places[key] = len(self.slices)
            self.slices.append(Slice(number, task.tensor, task.bytes, read, write))
        return self._places[key]

    def _bringing(self, place: int, start: int, stop: int) -> tuple[int, ...]:
        if self.slices[place].read is not None:
            return ()
        if place in self._totals:
            return tuple(number for addend in self._totals[place].addends for number in self._coming[addend])
        if (place, start, stop) in self._brought:  # as it came
            return (self._brought[place, start, stop],)
        parts = [(number, self.receives[number]) for number in self._coming[place]]
        return tuple(number for number, each in parts if each.start < stop and start < each.stop)


def _window(box: Box, shard: Box | None) -> Window:
    """Where ``box`` lies in a shard."""
    assert shard is not None
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, shard, strict=True))


def extent(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
