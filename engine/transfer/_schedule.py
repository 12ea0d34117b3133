"""The problem of who sends which slice, and when; and what an answer comes to.

A job holds the sending side of its sender's host and the receiving side of all its receivers' hosts
for its whole latency, and is not interrupted. Given senders, to start each job in some order as soon
as all it needs is free reaches the optimum for one of the orders at least, so that an answer is a
sender for each job and an order (arXiv:2211.05322, section 3.2).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

MOST_HOSTS_IN_SUBSETS = 10
"""Sending hosts of which every subset is asked for a bound: a thousand subsets."""


@dataclass(frozen=True)
class Job:
    """A unit task as the search sees it."""

    bytes: int
    options: Mapping[int, float]  # candidate sender hosts, ascending, with the seconds of each
    receivers: tuple[int, ...]  # hosts, ascending; none where nothing crosses a link

    @property
    def shortest(self) -> float:
        return min(self.options.values())


class Placed(NamedTuple):
    """One job in an answer."""

    job: int
    host: int  # that sends
    start: float
    end: float


class Lanes:
    """When the NICs of every host are free, each direction by itself."""

    def __init__(self, nics: int = 1) -> None:
        self._nics = nics
        self._free: dict[tuple[str, int], list[float]] = {}

    def earliest(self, host: int, receivers: Sequence[int]) -> float:
        return max([self._of("tx", host)[0], *(self._of("rx", receiver)[0] for receiver in receivers)])

    def take(self, host: int, receivers: Sequence[int], end: float) -> None:
        for lane in (self._of("tx", host), *(self._of("rx", receiver) for receiver in receivers)):
            heapq.heapreplace(lane, end)

    def _of(self, side: str, host: int) -> list[float]:
        return self._free.setdefault((side, host), [0.0] * self._nics)


def run_in_order(jobs: Sequence[Job], order: Sequence[tuple[int, int]], nics: int = 1) -> list[Placed]:
    """Start the jobs of ``order``, pairs of job and sender host, each as soon as all it needs is free."""
    lanes = Lanes(nics)
    placed = []
    for number, host in order:
        job = jobs[number]
        start = lanes.earliest(host, job.receivers) if job.receivers else 0.0
        end = start + job.options[host]
        if job.receivers:
            lanes.take(host, job.receivers, end)
        placed.append(Placed(number, host, start, end))
    return placed


def makespan(placed: Sequence[Placed]) -> float:
    return max((each.end for each in placed), default=0.0)


def lower_bound(jobs: Sequence[Job], nics: int = 1) -> float:
    """No answer is shorter: the longest job; the jobs that one host receives; and for every set of hosts
    the jobs that only they can send, shared out evenly."""
    received: dict[int, float] = defaultdict(float)
    for job in jobs:
        for host in job.receivers:
            received[host] += job.shortest
    longest = max((job.shortest for job in jobs), default=0.0)
    return max([longest, _sending_bound(jobs) / nics, *(busy / nics for busy in received.values())])


def _sending_bound(jobs: Sequence[Job]) -> float:
    by_set: dict[frozenset[int], float] = defaultdict(float)
    for job in jobs:
        if job.receivers:
            by_set[frozenset(job.options)] += job.shortest
    hosts = sorted(set().union(*by_set)) if by_set else []
    sizes = range(1, len(hosts) + 1) if len(hosts) <= MOST_HOSTS_IN_SUBSETS else (1, len(hosts))
    return max(
        (
            sum(seconds for options, seconds in by_set.items() if options <= set(subset)) / size
            for size in sizes
            for subset in combinations(hosts, size)
        ),
        default=0.0,
    )
