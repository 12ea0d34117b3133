"""Scheduling problem of a transfer: the choice of the host that sends each slice, and of the order.

A job occupies the sending side of its sender's host and the receiving sides of all its receivers' hosts for its whole
latency, without preemption. For given senders, at least one order is optimal when each job starts as soon as its sides
are free. A solution is therefore a sender for each job and an order (arXiv:2211.05322, section 3.2).
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

MAX_UNIONS = 256
"""Maximum number of unions of candidate sets in a bound; beyond it, only single sets and the union of all are used."""
MAX_CLIQUE_KINDS = 256
"""Maximum number of kinds of jobs for which the bound searches for sets of mutually exclusive jobs."""


@dataclass(frozen=True)
class Job:
    """Unit task as a job of the scheduling problem."""

    bytes: int
    options: Mapping[int, float]  # seconds by candidate sender host, hosts ascending
    receivers: tuple[int, ...]  # receiving hosts, ascending; empty if no link is used

    @property
    def shortest_s(self) -> float:
        """Duration in seconds with the fastest sender host."""
        return min(self.options.values())


class PlacedJob(NamedTuple):
    """Job of an ordering, with its sender and its start and end in seconds."""

    job: int
    host: int  # host of the sender
    start: float
    end: float


class FreeTimes:
    """Times at which the NICs of every host become free, per direction, in seconds."""

    def __init__(self, nics: int = 1) -> None:
        self._nics = nics
        self._free: dict[tuple[str, int], list[float]] = {}

    def earliest_start(self, host: int, receivers: Sequence[int]) -> float:
        """Return the earliest start of a job from ``host`` to ``receivers``, in seconds."""
        return max([self._free_times("tx", host)[0], *(self._free_times("rx", receiver)[0] for receiver in receivers)])

    def occupy(self, host: int, receivers: Sequence[int], end: float) -> None:
        """Occupy a NIC of the sender's host and of each receiver's host until ``end``."""
        for lane in (self._free_times("tx", host), *(self._free_times("rx", receiver) for receiver in receivers)):
            heapq.heapreplace(lane, end)

    def _free_times(self, side: str, host: int) -> list[float]:
        return self._free.setdefault((side, host), [0.0] * self._nics)


def run_in_order(jobs: Sequence[Job], order: Sequence[tuple[int, int]], nics: int = 1) -> list[PlacedJob]:
    """Return the jobs of ``order`` (pairs of job and sender host), each placed as soon as its NICs are free."""
    lanes = FreeTimes(nics)
    placed = []
    for number, host in order:
        job = jobs[number]
        start = lanes.earliest_start(host, job.receivers) if job.receivers else 0.0
        end = start + job.options[host]
        if job.receivers:
            lanes.occupy(host, job.receivers, end)
        placed.append(PlacedJob(number, host, start, end))
    return placed


def makespan(placed: Sequence[PlacedJob]) -> float:
    """Return the end of the last job in seconds; 0 if there is none."""
    return max((each.end for each in placed), default=0.0)


class _Kind(NamedTuple):
    """Kind of job: equal jobs, and their number."""

    senders: frozenset[int]
    receivers: tuple[int, ...]
    seconds: float  # duration of one job with its fastest sender
    copies: int


def lower_bound(jobs: Sequence[Job], nics: int = 1) -> float:
    """Return a lower bound on the makespan of any order of the jobs, in seconds.

    It is the maximum of the longest job, the work that a set of senders must share, the work that a host receives, and
    the total of mutually exclusive jobs.
    """
    alike = Counter((tuple(job.options.items()), job.receivers) for job in jobs)
    return _cached_bound(tuple(alike.items()), nics)


_JobCount = tuple[tuple[tuple[tuple[int, float], ...], tuple[int, ...]], int]
"""Options and receivers of equal jobs, and their number."""


@lru_cache(maxsize=32)
def _cached_bound(alike: tuple[_JobCount, ...], nics: int) -> float:
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
    receiving = max((_lane_bound(coming, nics) for coming in received.values()), default=0.0)
    exclusive = _exclusive_bound(crossing) if nics == 1 else 0.0
    return max(longest, _sending_bound(crossing, nics), receiving, exclusive)


def _sending_bound(kinds: Sequence[_Kind], nics: int) -> float:
    """Return the largest bound from jobs that only the hosts of one set can send; the sets are unions of candidates."""
    by_set: dict[frozenset[int], list[_Kind]] = defaultdict(list)
    for kind in kinds:
        by_set[kind.senders].append(kind)
    unions = {frozenset[int]()}
    for senders in by_set:
        if len(unions) > MAX_UNIONS:
            unions = {*by_set, frozenset().union(*by_set)}
            break
        unions |= {senders | other for other in unions}

    def jobs_of(hosts: frozenset[int]) -> list[_Kind]:
        return [kind for senders, of_set in by_set.items() if senders <= hosts for kind in of_set]

    return max((_lane_bound(jobs_of(hosts), len(hosts) * nics) for hosts in unions if hosts), default=0.0)


def _lane_bound(kinds: Sequence[_Kind], lanes: int) -> float:
    """Return a lower bound on the makespan of jobs that are distributed over lanes.

    It is the mean load per lane, or the sum of ``q + 1`` of the ``q n + 1`` longest jobs, which one of ``n`` lanes must
    run.
    """
    each = np.repeat([kind.seconds for kind in kinds], [kind.copies for kind in kinds])
    longest = np.sort(each)[::-1]
    until = np.concatenate(([0.0], np.cumsum(longest)))
    q = np.arange((len(longest) - 1) // lanes + 1)
    return max(float(until[-1]) / lanes, float((until[q * lanes + 1] - until[q * lanes - q]).max()))


def _exclusive_bound(kinds: Sequence[_Kind]) -> float:
    """Return the bound from a set of jobs that exclude each other because every two of them share a side.

    Sides are receiving hosts, and sending hosts of jobs with one option. The heaviest set is approximated greedily from
    every kind of job, since an exact search takes too long.
    """
    held: dict[frozenset[tuple[str, int]], float] = defaultdict(float)
    for kind in kinds:
        own = [("tx", host) for host in kind.senders] if len(kind.senders) == 1 else []
        held[frozenset((*own, *(("rx", host) for host in kind.receivers)))] += kind.copies * kind.seconds
    if len(held) > MAX_CLIQUE_KINDS:
        return 0.0
    sides = sorted(frozenset().union(*held))
    holds = np.array([[side in each for side in sides] for each in held], int).reshape(len(held), len(sides))
    excluded = holds @ holds.T > 0
    seconds = np.array(list(held.values()))
    return max((_clique_seconds(first, excluded, seconds) for first in range(len(held))), default=0.0)


def _clique_seconds(first: int, excluded: NDArray[np.bool_], seconds: NDArray[np.float64]) -> float:
    """Return the total seconds of a clique that starts with kind ``first`` and adds the heaviest compatible kinds."""
    weight = float(seconds[first])
    fits = excluded[first].copy()
    fits[first] = False
    while fits.any():
        heaviest = int(np.argmax(np.where(fits, seconds, -1.0)))
        weight += float(seconds[heaviest])
        fits &= excluded[heaviest]
        fits[heaviest] = False
    return weight
