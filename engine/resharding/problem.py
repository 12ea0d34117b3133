"""The problem of who sends which slice, and when; and what an answer comes to.

A job holds the sending side of its sender's host and the receiving side of all its receivers' hosts
for its whole latency, and is not interrupted. Given senders, to start each job in some order as soon
as all it needs is free reaches the optimum for one of the orders at least, so that an answer is a
sender for each job and an order (arXiv:2211.05322, section 3.2).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


class _Kind(NamedTuple):
    """Jobs that are alike."""

    senders: frozenset[int]
    receivers: tuple[int, ...]
    seconds: float  # of the shortest way to send one
    copies: int


def lower_bound(jobs: Sequence[Job], nics: int = 1) -> float:
    """No answer is shorter: the longest job; what the senders of a set must send among them; what a host
    receives; and jobs of which no two can run at once."""
    alike = Counter((tuple(job.options.items()), job.receivers) for job in jobs)
    return _bound(tuple(alike.items()), nics)


_Alike = tuple[tuple[tuple[tuple[int, float], ...], tuple[int, ...]], int]
"""Options and receivers of jobs, and how many there are."""


@lru_cache(maxsize=32)
def _bound(alike: tuple[_Alike, ...], nics: int) -> float:
    kinds = [
        _Kind(frozenset(dict(options)), receivers, min(seconds for _, seconds in options), count)
        for (options, receivers), count in alike
    ]
    longest = max((kind.seconds for kind in kinds), default=0.0)
    crossing = [kind for kind in kinds if kind.receivers]
    received: dict[int, list[_Kind]] = defaultdict(list)
    for kind in crossing:
        for host in kind.receivers:
            received[host].append(kind)
    receiving = max((_shared_out(coming, nics) for coming in received.values()), default=0.0)
    exclusive = _exclusive_bound(crossing) if nics == 1 else 0.0
    return max(longest, _sending_bound(crossing, nics), receiving, exclusive)


def _sending_bound(kinds: Sequence[_Kind], nics: int) -> float:
    """Over every union of candidate sets: the jobs that its hosts alone can send."""
    by_set: dict[frozenset[int], list[_Kind]] = defaultdict(list)
    for kind in kinds:
        by_set[kind.senders].append(kind)
    unions = {frozenset[int]()}
    for senders in by_set:
        if len(unions) > MOST_UNIONS:
            unions = {*by_set, frozenset().union(*by_set)}
            break
        unions |= {senders | other for other in unions}

    def theirs(hosts: frozenset[int]) -> list[_Kind]:
        return [kind for senders, of_set in by_set.items() if senders <= hosts for kind in of_set]

    return max((_shared_out(theirs(hosts), len(hosts) * nics) for hosts in unions if hosts), default=0.0)


def _shared_out(kinds: Sequence[_Kind], lanes: int) -> float:
    """No sharing of jobs over lanes is shorter: their mean; and of the ``q n + 1`` longest some lane gets ``q + 1``."""
    each = np.repeat([kind.seconds for kind in kinds], [kind.copies for kind in kinds])
    longest = np.sort(each)[::-1]
    until = np.concatenate(([0.0], np.cumsum(longest)))
    q = np.arange((len(longest) - 1) // lanes + 1)
    return max(float(until[-1]) / lanes, float((until[q * lanes + 1] - until[q * lanes - q]).max()))


def _exclusive_bound(kinds: Sequence[_Kind]) -> float:
    """Jobs of which each two share a side exclude each other, though no side is in all of them.

    Sides are receiving hosts, and sending hosts where there is no choice. The heaviest set is sought greedily
    from every kind of job: to find it for certain takes too long.
    """
    held: dict[frozenset[tuple[str, int]], float] = defaultdict(float)
    for kind in kinds:
        own = [("tx", host) for host in kind.senders] if len(kind.senders) == 1 else []
        held[frozenset((*own, *(("rx", host) for host in kind.receivers)))] += kind.copies * kind.seconds
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
