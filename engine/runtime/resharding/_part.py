"""The part of one process in a transfer: what it holds and gets, and every message of its own."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from engine.transfer import Box, Transfer

Window = tuple[slice, ...]


class Slice(NamedTuple):
    """A unit task in which this process has a part."""

    task: int
    elements: int
    read: Window | None  # in the shard that it holds, where it sends or keeps the slice
    write: Window | None  # in the shard that it gets


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
        self.owned, self.needed = planned.owned.get(process), planned.needed.get(process)
        self.slices: list[Slice] = []
        self.receives: list[Receive] = []
        self.inside: list[Send] = []  # to processes of the same host, and to others
        self.outside: list[Send] = []
        self.sent_bytes = self.received_bytes = 0
        self._places: dict[int, int] = {}  # of a task among the slices
        self._brought: dict[tuple[int, int, int], int] = {}  # the receive of a range of a slice
        self._planned = planned
        self._item = planned.tensor.item_bytes
        for number, task in enumerate(planned.tasks):
            if process in task.keepers:
                self._place(number)
        self.tags = self._add_moves()

    def _add_moves(self) -> int:
        """Messages of a pair are told apart by their number; the most that any pair has."""
        numbers: Counter[tuple[int, int]] = Counter()
        host = self._planned.links.host
        for move in self._planned.moves:
            pair = move.source, move.target
            if self.process in pair:
                place = self._place(move.task)
                span = place, move.start * self._item, move.stop * self._item
                if self.process == move.target:
                    self._brought[span] = len(self.receives)
                    self.receives.append(Receive(*span, move.source, numbers[pair]))
                    self.received_bytes += move.elements * self._item
                else:
                    lane = self.inside if host[move.source] == host[move.target] else self.outside
                    lane.append(Send(*span, move.target, numbers[pair], self._bringing(*span)))
                    self.sent_bytes += move.elements * self._item
            numbers[pair] += 1
        return max(numbers.values(), default=0)

    def _place(self, number: int) -> int:
        if number not in self._places:
            task = self._planned.tasks[number]
            read = _window(task.box, self.owned) if self.process in task.senders else None
            write = _window(task.box, self.needed) if self.process in (*task.receivers, *task.keepers) else None
            self._places[number] = len(self.slices)
            self.slices.append(Slice(number, task.elements, read, write))
        return self._places[number]

    def _bringing(self, place: int, start: int, stop: int) -> tuple[int, ...]:
        if self.slices[place].read is not None:
            return ()
        if (place, start, stop) in self._brought:  # as it came
            return (self._brought[place, start, stop],)
        parts = [(number, each) for number, each in enumerate(self.receives) if each.slice == place]
        return tuple(number for number, each in parts if each.start < stop and start < each.stop)


def _window(box: Box, shard: Box | None) -> Window:
    """Where ``box`` lies in a shard."""
    assert shard is not None
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, shard, strict=True))


def extent(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
