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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_UNIONS = 256
"""Unions of candidate sets that are asked for a bound; of more, each set by itself and all of them."""
MOST_KINDS_IN_CLIQUES = 256
"""Kinds of jobs among which sets that exclude each other are sought."""


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
    """No answer is shorter: the longest job; what the senders of a set must send among them; what a host
    receives; and jobs of which no two can run at once."""
    crossing = [job for job in jobs if job.receivers]
    longest = max((job.shortest for job in jobs), default=0.0)
    sides = [
        _shared_out([job.shortest for job in crossing if host in job.receivers], nics) for host in _receivers(crossing)
    ]
    return max([longest, _sending_bound(crossing, nics), *sides, _exclusive_bound(crossing) if nics == 1 else 0.0])


def _receivers(jobs: Sequence[Job]) -> set[int]:
    return {host for job in jobs for host in job.receivers}


def _sending_bound(jobs: Sequence[Job], nics: int) -> float:
    """Over every union of candidate sets: the jobs that its hosts alone can send."""
    by_set: dict[frozenset[int], list[float]] = defaultdict(list)
    for job in jobs:
        by_set[frozenset(job.options)].append(job.shortest)
    unions = {frozenset[int]()}
    for options in by_set:
        if len(unions) > MOST_UNIONS:
            unions = {*by_set, frozenset().union(*by_set)}
            break
        unions |= {options | other for other in unions}
    return max(
        (
            _shared_out(
                [each for options, seconds in by_set.items() if options <= hosts for each in seconds], len(hosts) * nics
            )
            for hosts in unions
            if hosts
        ),
        default=0.0,
    )


def _shared_out(seconds: Sequence[float], lanes: int) -> float:
    """No sharing of jobs over lanes is shorter: their mean; and of the ``q n + 1`` longest some lane gets ``q + 1``."""
    longest = np.sort(np.asarray(seconds))[::-1]
    most = [float(longest[q * lanes - q : q * lanes + 1].sum()) for q in range(1, (len(longest) - 1) // lanes + 1)]
    return max([float(longest.sum()) / lanes, *most])


def _exclusive_bound(jobs: Sequence[Job]) -> float:
    """Jobs of which each two share a side exclude each other, though no side is in all of them.

    Sides are receiving hosts, and sending hosts where there is no choice. The heaviest set is sought greedily
    from every kind of job: to find it for certain takes too long.
    """
    held: dict[frozenset[tuple[str, int]], float] = defaultdict(float)
    for job in jobs:
        own = [("tx", host) for host in job.options] if len(job.options) == 1 else []
        held[frozenset((*own, *(("rx", host) for host in job.receivers)))] += job.shortest
    if len(held) > MOST_KINDS_IN_CLIQUES:
        return 0.0
    sides = sorted(frozenset().union(*held))
    holds = np.array([[side in each for side in sides] for each in held], int).reshape(len(held), len(sides))
    excluded = holds @ holds.T > 0
    seconds = np.array(list(held.values()))
    return max((_clique(first, excluded, seconds) for first in range(len(held))), default=0.0)


def _clique(first: int, excluded: NDArray[np.bool_], seconds: NDArray[np.float64]) -> float:
    """What a set that starts with one kind adds up to, the heaviest that fits taken each time."""
    weight = float(seconds[first])
    fits = excluded[first].copy()
    fits[first] = False
    while fits.any():
        heaviest = int(np.argmax(np.where(fits, seconds, -1.0)))
        weight += float(seconds[heaviest])
        fits &= excluded[heaviest]
        fits[heaviest] = False
    return weight
