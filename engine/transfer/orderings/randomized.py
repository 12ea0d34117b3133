"""Randomized: many greedy orders with a little chance, the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from engine.transfer._schedule import Job, lower_bound, makespan, run_in_order
from engine.transfer.orderings._base import Answer, Ordering, balanced, dispatched, orderings

WORK = 400_000
"""Decisions in all rounds together; a decision looks at all jobs, so large problems get few rounds."""
MOST_ROUNDS = 60
CLOSE = 1e-9


@orderings.register("randomized")
class Randomized(Ordering):
    """Senders are balanced by their time; whenever a host is free, the job goes first whose host has the
    most left to do. Repeated with some chance in both, from one seed, the best order is kept."""

    title: ClassVar = "Randomized"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        chance = np.random.default_rng(0)
        bound = lower_bound(jobs, nics)
        rounds = max(2, min(MOST_ROUNDS, WORK // max(1, len(jobs)) ** 2))
        best, shortest = Answer([]), np.inf
        for number in range(rounds):
            order = _round(jobs, nics, chance if number else None)
            length = makespan(run_in_order(jobs, order, nics))
            if length < shortest:
                best, shortest = Answer(order, length <= bound * (1 + CLOSE)), length
            if best.is_optimal:
                break
        return best


def _round(jobs: Sequence[Job], nics: int, chance: np.random.Generator | None) -> list[tuple[int, int]]:
    if chance is None:
        return dispatched(jobs, balanced(jobs, lambda job, host: job.options[host], longest_first=True), nics)
    stretch = chance.uniform(0.8, 1.25, len(jobs))
    place = {id(job): number for number, job in enumerate(jobs)}
    hosts = balanced(jobs, lambda job, host: job.options[host] * stretch[place[id(job)]], longest_first=True)
    scale = max((job.shortest for job in jobs), default=0.0)
    return dispatched(jobs, hosts, nics, chance.uniform(0, 2 * scale, len(jobs)))
