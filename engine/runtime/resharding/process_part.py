"""Part of one process in a transfer: the slices that it sends and receives, and all its messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from meshwave.engine.resharding import Box, Move, Transfer

Window = tuple[slice, ...]
WHOLE = -1
"""Value of ``holder`` that denotes the slice itself instead of a partial sum."""


class Slice(NamedTuple):
    """Unit task in which this process takes part, or the partial sum of one process for such a task."""

    task: int
    tensor: int  # index among the tensors of the transfer
    bytes: int
    read: Window | None  # window in the shard of the source; None if the process neither sends nor keeps the slice
    write: Window | None  # window in the shard that the process receives


class Sum(NamedTuple):
    """Slice of a partial tensor that this process sums; its fields are indices into the list of slices."""

    total: int
    partial_sums: tuple[int, ...]  # in the order of the additions


class Receive(NamedTuple):
    """Message that this process receives: a range of a slice."""

    slice: int  # index into the list of slices
    start: int  # bytes
    stop: int
    source: int
    tag: int


class Send(NamedTuple):
    """Message that this process sends: a range of a slice."""

    slice: int
    start: int  # bytes
    stop: int
    target: int
    tag: int
    needs: tuple[int, ...]  # receives that contain the range; empty if the process owns it


class ProcessPart:
    """Part of one process in a transfer, computed once and executed any number of times."""

    def __init__(self, planned: Transfer, process: int) -> None:
        self.process = process
        self.owned: list[Box | None] = [load.source_boxes.get(process) for load in planned.loads]
        self.needed: list[Box | None] = [load.destination_boxes.get(process) for load in planned.loads]
        self.slices: list[Slice] = []
        self.sums: list[Sum] = []
        self.receives: list[Receive] = []
        self.inside: list[Send] = []  # messages to processes of the same host
        self.outside: list[Send] = []  # messages to processes of other hosts
        self._slice_of: dict[tuple[int, int], int] = {}  # (task, holder) -> index into slices
        self._receive_of: dict[tuple[int, int, int], int] = {}  # (slice, start, stop) -> index into receives
        self._receives_of: defaultdict[int, list[int]] = defaultdict(list)  # slice -> indices into receives
        self._planned = planned
        for number, task in enumerate(planned.tasks):
            if process in task.keepers:
                self._add_slice(number)
        for each in planned.plan.tasks:
            if each.sender == process and planned.tasks[each.task].addends:
                self._add_sum(each.task)
        self._totals = {each.total: each for each in self.sums}
        self.tag_count = self._add_moves()

    def is_sum(self, place: int) -> bool:
        """Return True if this process sums a slice, and therefore has it only after all partial sums have arrived."""
        return place in self._totals

    def _add_sum(self, number: int) -> None:
        group = self._planned.tasks[number].ranks_summed_by(self.process)
        self.sums.append(Sum(self._add_slice(number), tuple(self._add_slice(number, rank) for rank in group)))

    def _add_moves(self) -> int:
        """Add the messages of this process, and return the largest number of tags that any process needs.

        The tag of a message is its index among the messages between its two processes.
        """
        numbers: Counter[tuple[int, int]] = Counter()
        for move in self._planned.moves:
            pair = move.source, move.target
            if self.process in pair:
                self._add_move(move, numbers[pair])
            numbers[pair] += 1
        return max(numbers.values(), default=0)

    def _add_move(self, move: Move, number: int) -> None:
        task, host = self._planned.tasks[move.task], self._planned.links.host
        place = self._add_slice(move.task, move.source if move.is_partial_sum(task) else WHOLE)
        item_bytes = task.bytes // task.elements
        span = place, move.start * item_bytes, move.stop * item_bytes
        if self.process == move.target:
            self._receive_of[span] = len(self.receives)
            self._receives_of[place].append(len(self.receives))
            self.receives.append(Receive(*span, move.source, number))
        else:
            lane = self.inside if host[move.source] == host[move.target] else self.outside
            lane.append(Send(*span, move.target, number, self._needed_receives(*span)))

    def _add_slice(self, number: int, holder: int = WHOLE) -> int:
        """Add the slice of a task, or the partial sum that ``holder`` has of it, unless it exists; return its index."""
        key = number, holder
        if key not in self._slice_of:
            task = self._planned.tasks[number]
            owns = self.process in task.senders and not task.addends if holder == WHOLE else holder == self.process
            needs = holder == WHOLE and self.process in (*task.receivers, *task.keepers)
            read = _window(task.box, self.owned[task.tensor]) if owns else None
            write = _window(task.box, self.needed[task.tensor]) if needs else None
            self._slice_of[key] = len(self.slices)
            self.slices.append(Slice(number, task.tensor, task.bytes, read, write))
        return self._slice_of[key]

    def _needed_receives(self, place: int, start: int, stop: int) -> tuple[int, ...]:
        """Return the receives that contain a range of a slice."""
        if self.slices[place].read is not None:
            return ()
        if place in self._totals:
            return tuple(number for part in self._totals[place].partial_sums for number in self._receives_of[part])
        if (place, start, stop) in self._receive_of:
            return (self._receive_of[place, start, stop],)
        parts = [(number, self.receives[number]) for number in self._receives_of[place]]
        return tuple(number for number, each in parts if each.start < stop and start < each.stop)


def _window(box: Box, shard: Box | None) -> Window:
    """Return the index slices of ``box`` relative to a shard that contains it."""
    assert shard is not None
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, shard, strict=True))


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the shape of a tensor that fills a box."""
    return tuple(stop - start for start, stop in box)
