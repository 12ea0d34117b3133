"""Base class of transfer orderings, which choose a sender host for each job and the order in which jobs start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import ClassVar, NamedTuple

import numpy as np

from meshwave.engine.registry import Registry
from meshwave.engine.resharding.problem import Job

TOLERANCE = 1e-9
Order = list[tuple[int, int]]
"""Pairs of a job and its sender host, in order."""


class Answer(NamedTuple):
    """Result of an ordering: jobs in order with their sender hosts."""

    order: Order
    is_optimal: bool = False  # True if the search has proved optimality


class Ordering(ABC):
    """Method to choose senders and an order. A member is one file in this folder.

    The first sentence of its docstring is its help text. Equal jobs give equal results on every machine: limits count
    steps instead of seconds, and random numbers are seeded.
    """

    title: ClassVar[str]

    @abstractmethod
    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        """Return sender hosts and an order for all jobs."""

    def candidates(self, jobs: Sequence[Job], nics: int = 1) -> Iterator[Answer]:
        """Yield results from which a caller chooses by costs that the jobs do not contain; by default that of solve()."""
        yield self.solve(jobs, nics)

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


orderings: Registry[type[Ordering]] = Registry("transfer ordering", "meshwave.engine.resharding.orderings")


def balance_senders(jobs: Sequence[Job], weight: Callable[[Job, int], float], *, longest_first: bool) -> list[int]:
    """Return the sender host of each job, ``[jobs]``: the candidate with the smallest total ``weight`` so far.

    Ties go to the lowest host.
    """
    load: dict[int, float] = defaultdict(float)
    hosts = [0] * len(jobs)
    numbers = range(len(jobs))
    for number in sorted(numbers, key=lambda n: -jobs[n].shortest_s) if longest_first else numbers:
        job = jobs[number]
        host = min(job.options, key=lambda host: (load[host] + (weight(job, host) if longest_first else 0.0), host))
        load[host] += weight(job, host)
        hosts[number] = host
    return hosts


def relieve_busiest(jobs: Sequence[Job], hosts: Sequence[int]) -> list[int]:
    """Return the sender host of each job, ``[jobs]``, after jobs are moved away from the busiest hosts.

    Jobs are moved until no move reduces the load of a busiest host. A job moves to a host with less work directly, or
    along other hosts that each pass on one of their own jobs: an augmenting path, which is optimal for jobs of equal
    duration.
    """
    chosen = list(hosts)
    load: dict[int, float] = defaultdict(float)
    held: dict[int, set[int]] = defaultdict(set)
    for number, job in enumerate(jobs):
        if job.receivers:
            load[chosen[number]] += job.options[chosen[number]]
            held[chosen[number]].add(number)
    for _ in range(len(jobs)):
        path = _relieving_moves(jobs, load, held)
        if not path:
            break
        for number, host in path:
            own = chosen[number]
            load[own] -= jobs[number].options[own]
            load[host] += jobs[number].options[host]
            held[own].remove(number)
            held[host].add(number)
            chosen[number] = host
    return chosen


def _relieving_moves(
    jobs: Sequence[Job], load: Mapping[int, float], held: Mapping[int, set[int]]
) -> list[tuple[int, int]]:
    """Return the moves of jobs to hosts that relieve a busiest host; empty if another host would become as busy."""
    busiest = max(load, key=lambda host: (load[host], -host), default=0)
    most = load.get(busiest, 0.0)
    seen = {busiest}
    ends: deque[tuple[int, list[tuple[int, int]]]] = deque([(busiest, [])])
    while ends:
        host, path = ends.popleft()
        came = jobs[path[-1][0]].options[host] if path else 0.0
        for number in sorted(held.get(host, ()), key=lambda number: (jobs[number].options[host], number)):
            job = jobs[number]
            if path and load[host] + came - job.options[host] >= most * (1 - TOLERANCE):
                continue  # the host would become as busy as the relieved one
            for other in job.options:
                if other in seen:
                    continue
                moves = [*path, (number, other)]
                if load.get(other, 0.0) + job.options[other] < most * (1 - TOLERANCE):
                    return moves
                seen.add(other)
                ends.append((other, moves))
    return []


def dispatch_order(jobs: Sequence[Job], hosts: Sequence[int], nics: int = 1, noise: np.ndarray | None = None) -> Order:
    """Return an order for jobs with given senders, by the longest-remaining-time rule of open shops.

    Whenever a side is free, the job that can start and whose sides have the most remaining work is next. Equal jobs
    share one row of the arrays, so that a tensor with many slices in both meshes needs little memory.

    Args:
        jobs: all jobs.
        hosts: [jobs] sender host of each job.
        nics: number of NICs per host.
        noise: [jobs] value added to the priority of each job, to try other jobs of similar priority; None for none.
    """
    order: Order = [(number, hosts[number]) for number, job in enumerate(jobs) if not job.receivers]
    alike: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        if job.receivers:
            alike.setdefault((hosts[number], job.receivers, job.options[hosts[number]]), []).append(number)
    if not alike:
        return order
    kinds = [numbers[::-1] for numbers in alike.values()]  # the next one is at the end
    first = [numbers[-1] for numbers in kinds]
    names = sorted({host for n in first for host in (*jobs[n].receivers, hosts[n])})
    column = {host: place for place, host in enumerate(names)}
    held = [[column[hosts[n]], *(len(names) + column[host] for host in jobs[n].receivers)] for n in first]
    none = 2 * len(names)  # a dummy side that is always free and has no work
    needs = np.full((len(kinds), max(map(len, held))), none)
    for row, sides in enumerate(held):
        needs[row, : len(sides)] = sides
    seconds = np.array([jobs[n].options[hosts[n]] for n in first])
    counts = np.array([len(numbers) for numbers in kinds])
    added = np.zeros(len(kinds)) if noise is None else noise[first]
    # bincount sums in a fixed order; the rounding of a matrix product depends on the machine and could break ties.
    left = np.bincount(needs.ravel(), np.repeat(seconds * counts, needs.shape[1]), none + 1)
    left[none] = -np.inf
    free = np.zeros((none + 1, nics))
    now = 0.0
    while counts.any():
        ready = free.min(axis=1)
        busy = ready > now + 1e-12 * max(1.0, now)
        able = (counts > 0) & ~busy[needs].any(axis=1)
        if not able.any():
            now = float(ready[busy].min())
            continue
        worth = left[needs].max(axis=1) + added
        row = int(np.argmax(np.where(able, worth, -np.inf)))
        counts[row] -= 1
        order.append((kinds[row].pop(), hosts[first[row]]))
        took = held[row]
        free[took, free[took].argmin(axis=1)] = now + seconds[row]
        left[took] -= seconds[row]
    return order
