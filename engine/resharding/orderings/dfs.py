"""DFS: search all senders and orders, cutting off what a true lower bound rules out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.resharding.orderings._base import (
    CLOSE,
    Answer,
    Order,
    Ordering,
    balanced,
    dispatched,
    evened,
    orderings,
)
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

MOST_WORK = 60_000
"""Prefixes that are looked at, times the kinds of jobs in each: about a second. A limit in seconds would
give each rank another plan."""
MOST_JOBS = 200
"""Of more, the greedy answer is given: no search of that depth comes to an end."""


@orderings.register("dfs")
class DepthFirst(Ordering):
    """Depth first through senders and orders, from a greedy answer. Its bound is a true one, unlike that
    of the released code: what it calls the best is the best, where the search comes to its end."""

    title: ClassVar = "Depth first"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        bound = lower_bound(jobs, nics)
        hosts = evened(jobs, balanced(jobs, lambda job, host: job.options[host], longest_first=True))
        search = _Search(jobs, nics, bound)
        for order in (dispatched(jobs, hosts, nics), [(n, next(iter(job.options))) for n, job in enumerate(jobs)]):
            search.offer(order, makespan(run_in_order(jobs, order, nics)))
        complete = search.run()
        return Answer(search.best, complete or search.length <= bound * (1 + CLOSE))


class _Search:
    """Jobs that are alike are one class, of which the first that is left goes first."""

    def __init__(self, jobs: Sequence[Job], nics: int, bound: float) -> None:
        self._jobs, self._nics, self._bound = jobs, nics, bound
        self.best: Order = []
        self.length = float("inf")
        crossing = [n for n, job in enumerate(jobs) if job.receivers]
        self._local: Order = [(n, next(iter(job.options))) for n, job in enumerate(jobs) if not job.receivers]
        kinds: dict[object, list[int]] = {}
        for number in crossing:
            job = jobs[number]
            kinds.setdefault((tuple(job.options.items()), job.receivers), []).append(number)
        self._kinds = list(kinds.values())
        self._of = [jobs[numbers[0]] for numbers in self._kinds]
        self._hosts = sorted({host for job in self._of for host in (*job.options, *job.receivers)})
        self._alike = _classes(self._of, self._hosts)
        self._nodes, self._most = 0, MOST_WORK // max(1, len(self._kinds))
        self._seen: dict[object, float] = {}

    def offer(self, order: Order, length: float) -> None:
        if length < self.length * (1 - CLOSE):
            self.best, self.length = order, length

    def run(self) -> bool:
        """Search; whether it came to its end before its nodes did."""
        if self.length <= self._bound * (1 + CLOSE):
            return True
        counts = tuple(map(len, self._kinds))
        if self._nics > 1 or sum(counts) > MOST_JOBS:
            return False
        tx = dict.fromkeys(self._hosts, 0.0)
        self._down(counts, tx, dict(tx), [], 0.0, (0.0, 0))
        return self._nodes < self._most

    def _down(
        self,
        counts: tuple[int, ...],
        tx: dict[int, float],
        rx: dict[int, float],
        prefix: list[tuple[int, int]],
        end: float,
        last: tuple[float, int],
    ) -> None:
        """Go on from a prefix that is free at ``tx`` and ``rx`` and ends at ``end``.

        Jobs are taken in the order of their starts, those of one start by kind: every schedule in which each
        job starts as soon as it can has such an order, and no other order of the same is tried. ``last`` is the
        start and the kind of the job before.
        """
        if self._nodes >= self._most or self.length <= self._bound * (1 + CLOSE):
            return
        self._nodes += 1
        if not any(counts):
            self.offer(self._named(prefix), end)
            return
        least = max(end, self._rest(counts, tx, rx, last[0]))
        if least >= self.length * (1 - CLOSE) or not self._is_new((counts, last), tx, rx, end):
            return
        steps = []
        for kind, count in enumerate(counts):
            if count:
                job = self._of[kind]
                ready = max(rx[host] for host in job.receivers)
                steps += [
                    (max(ready, tx[host]), -seconds, kind, host, seconds) for host, seconds in self._different(job, tx)
                ]
        for start, _, kind, host, seconds in sorted(steps):
            done = start + seconds
            if (start, kind) < last or done >= self.length * (1 - CLOSE):
                continue
            sending, receiving = dict(tx), dict(rx)
            sending[host] = done
            for receiver in self._of[kind].receivers:
                receiving[receiver] = done
            fewer = (*counts[:kind], counts[kind] - 1, *counts[kind + 1 :])
            self._down(fewer, sending, receiving, [*prefix, (kind, host)], max(end, done), (start, kind))

    def _different(self, job: Job, tx: dict[int, float]) -> Iterator[tuple[int, float]]:
        """Of hosts that can send the same and are free at the same time the first."""
        seen = set()
        for host, seconds in job.options.items():
            if (self._alike[host], tx[host]) not in seen:
                seen.add((self._alike[host], tx[host]))
                yield host, seconds

    def _rest(self, counts: tuple[int, ...], tx: dict[int, float], rx: dict[int, float], last: float) -> float:
        """No completion is shorter: what each receiver still gets, and what all senders still send together,
        none of it before ``last``."""
        coming = {host: max(free, last) for host, free in rx.items()}
        alone = {host: max(free, last) for host, free in tx.items()}
        total, hosts = 0.0, set()
        for kind, count in enumerate(counts):
            if not count:
                continue
            job = self._of[kind]
            seconds = count * job.shortest
            for host in job.receivers:
                coming[host] += seconds
            if len(job.options) == 1:
                alone[next(iter(job.options))] += seconds
            total += seconds
            hosts |= set(job.options)
        shared = (total + sum(max(tx[host], last) for host in hosts)) / len(hosts)
        touched = {host for kind, count in enumerate(counts) if count for host in self._of[kind].receivers}
        return max([shared, *(coming[host] for host in touched), *(alone[host] for host in hosts)])

    def _is_new(self, left: object, tx: dict[int, float], rx: dict[int, float], end: float) -> bool:
        """Whether no prefix led here before with everything free as early, hosts that are alike in any order."""
        key = (left, tuple(sorted((self._alike[host], free) for host, free in tx.items())), tuple(rx.values()))
        if self._seen.get(key, float("inf")) <= end:
            return False
        self._seen[key] = end
        return True

    def _named(self, prefix: Sequence[tuple[int, int]]) -> Order:
        used: Counter[int] = Counter()
        order = list(self._local)
        for kind, host in prefix:
            order.append((self._kinds[kind][used[kind]], host))
            used[kind] += 1
        return order


def _classes(kinds: Sequence[Job], hosts: Sequence[int]) -> dict[int, int]:
    """A number for each host; hosts of one number can send the same, so that they may change places."""
    numbers: dict[object, int] = {}
    can = {
        host: tuple((kind, job.options[host]) for kind, job in enumerate(kinds) if host in job.options)
        for host in hosts
    }
    return {host: numbers.setdefault(can[host], len(numbers)) for host in hosts}
