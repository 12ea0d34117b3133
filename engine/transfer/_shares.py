"""How messages share a port while a plan is played: which of them has which part of it, from when to when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from engine.transfer._links import Links
from engine.transfer._played import Played, Port, Ports, Sent, capacity

MOST_SHARES = 60_000
"""Of all ports, about; of more, moments are left out."""
LEAST_SHARES = 2_000
"""Of a port, however many there are."""
DIGITS = 4


class Share(NamedTuple):
    """A message on a port, for as long as it has the same part of it: the area under all of them is what passed."""

    message: int
    start_s: float
    end_s: float
    low: float  # 0 to 1 of what the port can carry; other messages lie below and above
    high: float


def shares(played: Played, links: Links) -> dict[Port, list[Share]]:
    """What each port of a play carries, one message on the other; those that follow one another lie in one line as
    far as others leave it to them. A message on a free link, which takes no time, has all of it."""
    sent = played.messages or ()
    passing: dict[Port, list[int]] = {}
    for number, each in enumerate(sent):
        for port in each.ports:
            passing.setdefault(port, []).append(number)
    most = max(LEAST_SHARES, MOST_SHARES // max(1, len(passing)))
    return {port: list(_Sweep(played, numbers, capacity(port, links)).run(most)) for port, numbers in passing.items()}


def most_at_once(found: Sequence[Share]) -> int:
    """How many messages are on a port at once, at most."""
    ends: list[float] = []
    most = 0
    for each in sorted(found, key=lambda each: each.start_s):
        while ends and ends[0] <= each.start_s:
            heappop(ends)
        heappush(ends, each.end_s)
        most = max(most, len(ends))
    return most


class _Sweep:
    """From moment to moment over a port: who is on it, and with how much."""

    def __init__(self, played: Played, passing: Sequence[int], most: float) -> None:
        self._sent: Sequence[Sent] = played.messages or ()
        self._most = most  # bytes/s
        self._coming = sorted(passing, key=lambda number: self._sent[number].start_s)
        self._rates = {ports: played.rates.get(ports, ()) for ports in {self._sent[each].ports for each in passing}}
        self._lines = _lines(self._sent, self._coming)
        self._on: list[tuple[int, int]] = []  # lines and messages, lowest first
        self._open: dict[int, tuple[float, float, float]] = {}  # of a message: since when it has which part

    def run(self, most: int) -> Iterator[Share]:
        moments = self._moments(most)
        place = 0
        for now in moments:
            yield from self._take_off(now)
            while place < len(self._coming) and self._sent[self._coming[place]].start_s <= now:
                number = self._coming[place]
                place += 1
                if self._sent[number].end_s <= now:  # it came and went since the moment before
                    yield self._whole(number)
                else:
                    insort(self._on, (self._lines[number], number))
            yield from self._stack(now)

    def _moments(self, most: int) -> list[float]:
        """When something changes; of too many some, and always the last."""
        ends = {moment for number in self._coming for moment in self._sent[number][-2:]}
        found = sorted(ends | {moment for rates in self._rates.values() for moment, _ in rates})
        spans = ((self._sent[number].start_s, self._sent[number].end_s) for number in self._coming)
        drawn = sum(bisect_left(found, end) - bisect_left(found, start) for start, end in spans)
        return [*found[: -1 : max(1, -(-drawn // most))], found[-1]]

    def _take_off(self, now: float) -> Iterator[Share]:
        gone = [(line, number) for line, number in self._on if self._sent[number].end_s <= now]
        for each in gone:
            self._on.remove(each)
            start, low, high = self._open.pop(each[1])
            yield Share(each[1], start, self._sent[each[1]].end_s, low, high)

    def _stack(self, now: float) -> Iterator[Share]:
        level = 0.0
        for _, number in self._on:
            low, level = level, level + self._rate(self._sent[number].ports, now) / self._most
            part = round(low, DIGITS), round(level, DIGITS)
            start, *before = self._open.get(number, (now,))
            if tuple(before) == part:
                continue
            if before:
                yield Share(number, start, now, *before)
            self._open[number] = (now, *part)

    def _whole(self, number: int) -> Share:
        each = self._sent[number]
        took = each.end_s - each.start_s
        part = min(1.0, each.bytes / took / self._most) if took and self._most else 1.0
        return Share(number, each.start_s, each.end_s, 0.0, round(part, DIGITS))

    def _rate(self, ports: Ports, now: float) -> float:
        rates = self._rates[ports]
        return rates[bisect_right(rates, now, key=lambda each: each[0]) - 1][1]


def _lines(sent: Sequence[Sent], coming: Sequence[int]) -> dict[int, int]:
    """Each message's place among those on the port with it, the lowest that is free."""
    found: dict[int, int] = {}
    taken: list[tuple[float, int]] = []  # a heap: until when a line is
    free: list[int] = []  # a heap
    for number in coming:
        while taken and taken[0][0] <= sent[number].start_s:
            heappush(free, heappop(taken)[1])
        found[number] = heappop(free) if free else len(taken)
        heappush(taken, (sent[number].end_s, found[number]))
    return found
