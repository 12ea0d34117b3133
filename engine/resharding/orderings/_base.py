"""What an ordering is: a sender host for each job, and the order in which they start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from typing import ClassVar, NamedTuple

import numpy as np

from meshwave.engine.registry import Registry
from meshwave.engine.resharding.problem import Job

CLOSE = 1e-9
Order = list[tuple[int, int]]
"""Pairs of job and sender host."""


class Answer(NamedTuple):
    order: Order
    is_optimal: bool = False  # the search has shown that there is no better one


class Ordering(ABC):
    """A way to choose senders and an order. A member is one file in this folder.

    The first sentence of its docstring is its help text. The same jobs give the same answer everywhere:
    limits are counted in steps, not in seconds, and chance is seeded.
    """

    title: ClassVar[str]

    @abstractmethod
    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        """An answer for all jobs."""

    @classmethod
    def help(cls) -> str:
        return cleandoc(cls.__doc__ or "")


orderings: Registry[type[Ordering]] = Registry("transfer ordering", "meshwave.engine.resharding.orderings")


def balanced(jobs: Sequence[Job], weight: Callable[[Job, int], float], *, longest_first: bool) -> list[int]:
    """[jobs] a sender host for each: in order the one with the least ``weight`` so far, the lowest of equals."""
    load: dict[int, float] = defaultdict(float)
    hosts = [0] * len(jobs)
    numbers = range(len(jobs))
    for number in sorted(numbers, key=lambda n: -jobs[n].shortest) if longest_first else numbers:
        job = jobs[number]
        host = min(job.options, key=lambda host: (load[host] + (weight(job, host) if longest_first else 0.0), host))
        load[host] += weight(job, host)
        hosts[number] = host
    return hosts


def evened(jobs: Sequence[Job], hosts: Sequence[int]) -> list[int]:
    """[jobs] the senders of ``hosts``, jobs passed on until no busiest host gets less by it.

    A job goes straight to a host with less to do or along others, each of which passes one of its own on: an
    augmenting path, which for jobs of one length ends at the best there is.
    """
    chosen = list(hosts)
    load: dict[int, float] = defaultdict(float)
    held: dict[int, set[int]] = defaultdict(set)
    for number, job in enumerate(jobs):
        if job.receivers:
            load[chosen[number]] += job.options[chosen[number]]
            held[chosen[number]].add(number)
    for _ in range(len(jobs)):
        path = _relief(jobs, chosen, load, held)
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


def _relief(
    jobs: Sequence[Job], chosen: Sequence[int], load: Mapping[int, float], held: Mapping[int, set[int]]
) -> list[tuple[int, int]]:
    """Moves of a job to a host, from a busiest host on; none where they would only make another as busy."""
    busiest = max(load, key=lambda host: (load[host], -host), default=0)
    most = load.get(busiest, 0.0)
    seen = {busiest}
    ends: deque[tuple[int, list[tuple[int, int]]]] = deque([(busiest, [])])
    while ends:
        host, path = ends.popleft()
        came = jobs[path[-1][0]].options[host] if path else 0.0
        for number in sorted(held.get(host, ()), key=lambda number: (jobs[number].options[host], number)):
            job = jobs[number]
            if path and load[host] + came - job.options[host] >= most * (1 - CLOSE):
                continue  # the host would be as busy as the one that is relieved
            for other in job.options:
                if other in seen:
                    continue
                moves = [*path, (number, other)]
                if load.get(other, 0.0) + job.options[other] < most * (1 - CLOSE):
                    return moves
                seen.add(other)
                ends.append((other, moves))
    return []


def dispatched(jobs: Sequence[Job], hosts: Sequence[int], nics: int = 1, noise: np.ndarray | None = None) -> Order:
    """An order for jobs whose senders are chosen: whenever something is free, of the jobs that could start
    the one first whose host has the most left to do (the longest-remaining-time rule of open shops).

    ``noise``, ``[jobs]``, is added to what a job is worth, to try others of nearly the same worth. Jobs that
    are alike are one row of the arrays, so that a tensor cut many times in both meshes stays small.
    """
    order: Order = [(number, hosts[number]) for number, job in enumerate(jobs) if not job.receivers]
    alike: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        if job.receivers:
            alike.setdefault((hosts[number], job.receivers, job.options[hosts[number]]), []).append(number)
    if not alike:
        return order
    kinds = [numbers[::-1] for numbers in alike.values()]  # the next one is the last
    first = [numbers[-1] for numbers in kinds]
    names = sorted({host for n in first for host in (*jobs[n].receivers, hosts[n])})
    column = {host: place for place, host in enumerate(names)}
    held = [[column[hosts[n]], *(len(names) + column[host] for host in jobs[n].receivers)] for n in first]
    none = 2 * len(names)  # a side that is always free, and of which nothing is left
    needs = np.full((len(kinds), max(map(len, held))), none)
    for row, sides in enumerate(held):
        needs[row, : len(sides)] = sides
    seconds = np.array([jobs[n].options[hosts[n]] for n in first])
    counts = np.array([len(numbers) for numbers in kinds])
    added = np.zeros(len(kinds)) if noise is None else noise[first]
    # Summed one by one: a product of matrices rounds as the machine likes, and a rounding may choose between equals.
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
