"""Randomized greedy: repeatedly take the largest set of jobs that can run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from meshwave.engine.resharding.orderings._base import TOLERANCE, Answer, Order, Ordering, orderings
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

TRIES = 100
"""Number of shuffles per set, as in the released code."""
WORK_LIMIT = 2_000_000
"""Maximum number of jobs that all shuffles scan; larger problems get fewer shuffles per set."""


@orderings.register("randomized-greedy")
class RandomizedGreedy(Ordering):
    """Form sets of unit tasks that can run at the same time, in random trials, and run the largest set first.

    This is the method of AlpaComm. A job joins a set if its receivers' hosts and one of its sender hosts are free in
    it. The sender is drawn at random, with a preference for hosts that have sent less. The set with the most jobs in
    100 trials is kept, and among equal sets the one with the most even bytes of senders (arXiv:2211.05322, section
    3.2). Sets define the order of the jobs; a job does not wait for the end of the previous set.
    """

    title: ClassVar = "Greedy sets"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        packer = _Packer(jobs, nics)
        chance = np.random.default_rng(0)
        order: Order = [(number, next(iter(job.options))) for number, job in enumerate(jobs) if not job.receivers]
        left = [number for number, job in enumerate(jobs) if job.receivers]
        load = dict.fromkeys(sorted({host for number in left for host in jobs[number].options}), 0)
        tries = max(1, min(TRIES, WORK_LIMIT // max(1, len(left)) ** 2))
        while left:
            packed = min((packer.pack(left, load, chance) for _ in range(tries)), key=lambda each: each.sort_key)
            order += packed.order
            load = packed.load
            taken = {number for number, _ in packed.order}
            left = [number for number in left if number not in taken]
        length = makespan(run_in_order(jobs, order, nics))
        return Answer(order, length <= lower_bound(jobs, nics) * (1 + TOLERANCE))


class _Set(NamedTuple):
    """Jobs that can run at the same time, and the bytes that each host has sent after them."""

    order: Order
    load: dict[int, int]

    @property
    def sort_key(self) -> tuple[int, int]:
        """Sort key: the most jobs first, then the smallest variance of the load."""
        sizes = self.load.values()
        return -len(self.order), len(sizes) * sum(size * size for size in sizes) - sum(sizes) ** 2


class _Packer:
    """Grouper of jobs into sets whose members can run at the same time."""

    def __init__(self, jobs: Sequence[Job], nics: int) -> None:
        self._jobs = jobs
        self._sends = dict.fromkeys((host for job in jobs for host in job.options), nics)
        self._receives = dict.fromkeys((host for job in jobs for host in job.receivers), nics)

    def pack(self, left: Sequence[int], load: dict[int, int], chance: np.random.Generator) -> _Set:
        """Shuffle the remaining jobs, and return a set of those that fit together."""
        sends, receives = dict(self._sends), dict(self._receives)
        order: Order = []
        after = dict(load)
        most = max(load.values())
        for number in chance.permutation(left).tolist():
            job = self._jobs[number]
            free = [host for host in job.options if sends[host]]
            if not free or not all(receives[host] for host in job.receivers):
                continue
            host = _draw_sender(free, [most - load[host] + 1 for host in free], chance)
            order.append((number, host))
            after[host] += job.bytes
            sends[host] -= 1
            for receiver in job.receivers:
                receives[receiver] -= 1
            if not any(sends.values()) or not any(receives.values()):
                break
        return _Set(order, after)


def _draw_sender(hosts: Sequence[int], weights: Sequence[int], chance: np.random.Generator) -> int:
    if len(hosts) == 1:
        return hosts[0]
    ends = np.cumsum(weights)
    return hosts[int(np.searchsorted(ends, chance.random() * ends[-1], side="right"))]
