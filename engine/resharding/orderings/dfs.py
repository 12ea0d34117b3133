"""DFS: branch and bound over all senders and orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.resharding.orderings._base import (
    TOLERANCE,
    Answer,
    Order,
    Ordering,
    balance_senders,
    dispatch_order,
    orderings,
    relieve_busiest,
)
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

MAX_WORK = 60_000
"""Maximum product of prefixes and the kinds of jobs in each, which takes about one second. A limit in seconds could
give each rank a different plan."""
MAX_JOBS = 200
"""Maximum number of jobs to search; for more jobs, the greedy result is returned, since no search of that depth
finishes."""


@orderings.register("dfs")
class DepthFirst(Ordering):
    """Branch and bound, depth first, over senders and orders, starting from a greedy result.

    Its bound is a true lower bound, unlike that of the released code: if the search finishes, its result is optimal.
    """

    title: ClassVar = "Depth first"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        bound = lower_bound(jobs, nics)
        hosts = relieve_busiest(jobs, balance_senders(jobs, lambda job, host: job.options[host], longest_first=True))
        search = _Search(jobs, nics, bound)
        for order in (dispatch_order(jobs, hosts, nics), [(n, next(iter(job.options))) for n, job in enumerate(jobs)]):
            search.keep_if_better(order, makespan(run_in_order(jobs, order, nics)))
        complete = search.run()
        return Answer(search.best, complete or search.length <= bound * (1 + TOLERANCE))


class _Search:
    """State of a search. Equal jobs form one class, whose first remaining job is placed first."""

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
        self._examples = [jobs[numbers[0]] for numbers in self._kinds]
        self._hosts = sorted({host for job in self._examples for host in (*job.options, *job.receivers)})
        self._alike = _host_classes(self._examples, self._hosts)
        self._nodes, self._most = 0, MAX_WORK // max(1, len(self._kinds))
        self._seen: dict[object, float] = {}

    def keep_if_better(self, order: Order, length: float) -> None:
        if length < self.length * (1 - TOLERANCE):
            self.best, self.length = order, length

    def run(self) -> bool:
        """Search, and return True if the search finished within its limit."""
        if self.length <= self._bound * (1 + TOLERANCE):
            return True
        counts = tuple(map(len, self._kinds))
        if self._nics > 1 or sum(counts) > MAX_JOBS:
            return False
        tx = dict.fromkeys(self._hosts, 0.0)
        self._search_from(counts, tx, dict(tx), [], 0.0, (0.0, 0))
        return self._nodes < self._most

    def _search_from(
        self,
        counts: tuple[int, ...],
        tx: dict[int, float],
        rx: dict[int, float],
        prefix: list[tuple[int, int]],
        end: float,
        last: tuple[float, int],
    ) -> None:
        """Extend a prefix whose sides are free at ``tx`` and ``rx`` and that ends at ``end``.

        Jobs are added in the order of their starts, and for equal starts by kind: every schedule in which each job
        starts as early as possible has such an order, so no schedule is tried twice. ``last`` is the start and the kind
        of the previous job.
        """
        if self._nodes >= self._most or self.length <= self._bound * (1 + TOLERANCE):
            return
        self._nodes += 1
        if not any(counts):
            self.keep_if_better(self._order_of_prefix(prefix), end)
            return
        least = max(end, self._remaining_bound(counts, tx, rx, last[0]))
        if least >= self.length * (1 - TOLERANCE) or not self._is_new((counts, last), tx, rx, end):
            return
        steps = []
        for kind, count in enumerate(counts):
            if count:
                job = self._examples[kind]
                ready = max(rx[host] for host in job.receivers)
                steps += [
                    (max(ready, tx[host]), -seconds, kind, host, seconds)
                    for host, seconds in self._distinct_senders(job, tx)
                ]
        for start, _, kind, host, seconds in sorted(steps):
            done = start + seconds
            if (start, kind) < last or done >= self.length * (1 - TOLERANCE):
                continue
            sending, receiving = dict(tx), dict(rx)
            sending[host] = done
            for receiver in self._examples[kind].receivers:
                receiving[receiver] = done
            fewer = (*counts[:kind], counts[kind] - 1, *counts[kind + 1 :])
            self._search_from(fewer, sending, receiving, [*prefix, (kind, host)], max(end, done), (start, kind))

    def _distinct_senders(self, job: Job, tx: dict[int, float]) -> Iterator[tuple[int, float]]:
        """Yield the sender hosts of a job with their free times; of hosts that are interchangeable, only one."""
        seen = set()
        for host, seconds in job.options.items():
            if (self._alike[host], tx[host]) not in seen:
                seen.add((self._alike[host], tx[host]))
                yield host, seconds

    def _remaining_bound(
        self, counts: tuple[int, ...], tx: dict[int, float], rx: dict[int, float], last: float
    ) -> float:
        """Return a lower bound on the makespan of any completion of a prefix.

        It uses the remaining work of each receiver and the total remaining work of all senders, none of which can start
        before ``last``.
        """
        coming = {host: max(free, last) for host, free in rx.items()}
        alone = {host: max(free, last) for host, free in tx.items()}
        total, hosts = 0.0, set()
        for kind, count in enumerate(counts):
            if not count:
                continue
            job = self._examples[kind]
            seconds = count * job.shortest_s
            for host in job.receivers:
                coming[host] += seconds
            if len(job.options) == 1:
                alone[next(iter(job.options))] += seconds
            total += seconds
            hosts |= set(job.options)
        shared = (total + sum(max(tx[host], last) for host in hosts)) / len(hosts)
        touched = {host for kind, count in enumerate(counts) if count for host in self._examples[kind].receivers}
        return max([shared, *(coming[host] for host in touched), *(alone[host] for host in hosts)])

    def _is_new(self, left: object, tx: dict[int, float], rx: dict[int, float], end: float) -> bool:
        """Return True unless an earlier prefix reached an equivalent state with an equal or earlier end.

        States are equivalent if they differ only by a permutation of interchangeable hosts.
        """
        key = (left, tuple(sorted((self._alike[host], free) for host, free in tx.items())), tuple(rx.values()))
        if self._seen.get(key, float("inf")) <= end:
            return False
        self._seen[key] = end
        return True

    def _order_of_prefix(self, prefix: Sequence[tuple[int, int]]) -> Order:
        used: Counter[int] = Counter()
        order = list(self._local)
        for kind, host in prefix:
            order.append((self._kinds[kind][used[kind]], host))
            used[kind] += 1
        return order


def _host_classes(kinds: Sequence[Job], hosts: Sequence[int]) -> dict[int, int]:
    """Return the class of each host; hosts of one class can send the same jobs and are interchangeable."""
    numbers: dict[object, int] = {}
    can = {
        host: tuple((kind, job.options[host]) for kind, job in enumerate(kinds) if host in job.options)
        for host in hosts
    }
    return {host: numbers.setdefault(can[host], len(numbers)) for host in hosts}
