"""Stacked shares of a port: the part of its capacity that each message uses over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from operator import attrgetter
from typing import NamedTuple

MAX_SHARES = 60_000
"""Approximate maximum number of shares in a drawing, over all ports; beyond it, moments are skipped."""
MIN_SHARES_PER_PORT = 2_000
"""Maximum number of shares of one port in a drawing with so many ports that each gets fewer otherwise."""
MOMENTS_PER_SHARE = 8
"""Number of moments that are examined per share in the drawing."""
DIGITS = 6


class Share(NamedTuple):
    """Constant share of a port that a message uses for some time; its area is proportional to the bytes sent."""

    message: int
    start_s: float
    end_s: float
    low: float  # lower edge as a fraction of the port's capacity, above the shares of other messages
    high: float


class Steps(NamedTuple):
    """Piecewise constant value over time, which changes at each of ``times``; before the first change, the first value."""

    times: Sequence[float]
    values: Sequence[float]

    def value_at(self, now: float) -> float:
        """Return the value at time ``now``."""
        return self.values[max(0, bisect_right(self.times, now) - 1)]


class PortUse(NamedTuple):
    """Message that uses a port, and its share of the port's capacity over time."""

    message: int
    start_s: float  # first byte
    end_s: float
    mean: float  # mean share as a fraction of the port's capacity
    parts: Steps  # share over time, common to all messages through the same ports


def max_shares_per_port(ports: int) -> int:
    """Return the maximum number of shares for each port of a drawing with ``ports`` ports."""
    return max(MIN_SHARES_PER_PORT, MAX_SHARES // max(1, ports))


def stack_shares(passing: Sequence[PortUse], most: int) -> list[Share]:
    """Return the stacked shares of the messages on a port over time, in about ``most`` shares.

    Consecutive messages stay on the same line unless other messages use it.
    """
    if not passing:
        return []
    found = list(_Sweep(passing).run(MOMENTS_PER_SHARE * most))  # this port does not change at every moment
    return found if len(found) <= most else list(_Sweep(passing).run(most))


def max_concurrent_messages(found: Iterable[Share | PortUse]) -> int:
    """Return the maximum number of messages that use a port, or of shares that are drawn, at the same time."""
    ends: list[float] = []
    most = 0
    for each in sorted(found, key=attrgetter("start_s")):
        while ends and ends[0] <= each.start_s:
            heappop(ends)
        heappush(ends, each.end_s)
        most = max(most, len(ends))
    return most


class _Sweep:
    """Sweep over time of the messages on a port and their shares."""

    def __init__(self, passing: Sequence[PortUse]) -> None:
        self._coming = sorted(passing, key=lambda each: each.start_s)
        self._lines = _lowest_free_lines(self._coming)
        self._on: list[tuple[int, int]] = []  # (line, index in `_coming`) of current messages, lowest line first
        self._open: dict[
            int, tuple[float, float, float]
        ] = {}  # start, lower and upper edge of each current share, by index of the message
        self._integrals_of: dict[int, list[float]] = {}  # by id of the steps

    def run(self, most: int) -> Iterator[Share]:
        """Yield the shares between all moments of change.

        Between two moments, a message has its mean share of that interval, even if it uses only a part of the interval
        because moments were left out. Thus shares never overlap, and their areas are exact.
        """
        place = 0
        moments = self._change_times(most)
        for now, following in pairwise([*moments, inf]):
            yield from self._remove_ended(now)
            while place < len(self._coming) and self._coming[place].start_s < following:
                each = self._coming[place]
                if each.end_s <= each.start_s:  # takes no time
                    yield Share(each.message, each.start_s, each.end_s, 0.0, round(each.mean, DIGITS))
                else:
                    insort(self._on, (self._lines[place], place))
                place += 1
            yield from self._stack_messages(now, following)

    def _change_times(self, most: int) -> list[float]:
        """Return the times at which shares change: all of them, or if there are too many, a subset with the last one."""
        steps = {id(each.parts): each.parts for each in self._coming}.values()
        ends = {moment for each in self._coming for moment in (each.start_s, each.end_s)}
        found = sorted(ends.union(*(each.times for each in steps)))
        drawn = sum(bisect_left(found, each.end_s) - bisect_left(found, each.start_s) for each in self._coming)
        return [*found[: -1 : max(1, -(-drawn // most))], found[-1]]

    def _remove_ended(self, now: float) -> Iterator[Share]:
        gone = [entry for entry in self._on if self._coming[entry[1]].end_s <= now]
        for entry in gone:
            self._on.remove(entry)
            start, low, high = self._open.pop(entry[1])
            yield Share(self._coming[entry[1]].message, start, now, low, high)

    def _stack_messages(self, now: float, following: float) -> Iterator[Share]:
        level = 0.0
        for _, place in self._on:
            low, level = level, level + self._mean_share(self._coming[place], now, following)
            part = _edge(low), _edge(level)
            start, *before = self._open.get(place, (now,))
            if tuple(before) == part:
                continue
            if before:
                yield Share(self._coming[place].message, start, now, *before)
            self._open[place] = (now, *part)

    def _mean_share(self, each: PortUse, now: float, following: float) -> float:
        """Return the mean share of a message between two moments, of which it may use only a part."""
        start, end = max(now, each.start_s), min(following, each.end_s)
        times, values = each.parts
        first = max(0, bisect_right(times, start) - 1)
        if first + 1 == len(times) or times[first + 1] >= end:  # constant: a difference of integrals would lose digits
            return (end - start) * values[first] / (following - now)
        last = bisect_left(times, end) - 1
        integrals = self._integrals(each.parts)
        before = integrals[first] + (start - times[first]) * values[first]
        return (integrals[last] + (end - times[last]) * values[last] - before) / (following - now)

    def _integrals(self, steps: Steps) -> list[float]:
        """Return the integrals of a value from its first change to each of its changes."""
        if id(steps) not in self._integrals_of:
            pieces = (
                (end - start) * value for (start, end), value in zip(pairwise(steps.times), steps.values, strict=False)
            )
            self._integrals_of[id(steps)] = list(accumulate(pieces, initial=0.0))
        return self._integrals_of[id(steps)]


def _edge(level: float) -> float:
    """Return the edge of a share; the sum of shares may exceed a port by rounding errors of very short intervals."""
    return min(1.0, round(level, DIGITS))


def _lowest_free_lines(coming: Sequence[PortUse]) -> list[int]:
    """Return, for each message, the lowest line that no concurrent message on the port uses."""
    found: list[int] = []
    taken: list[tuple[float, int]] = []  # heap of (end of use, line)
    free: list[int] = []  # heap
    for each in coming:
        while taken and taken[0][0] <= each.start_s:
            heappush(free, heappop(taken)[1])
        found.append(heappop(free) if free else len(taken))
        heappush(taken, (each.end_s, found[-1]))
    return found
