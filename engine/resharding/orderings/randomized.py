"""Randomized: many greedy orders with a little chance, the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

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
from meshwave.engine.resharding.orderings._climb import climbed
from meshwave.engine.resharding.orderings._colouring import coloured
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

WORK = 400_000
"""Decisions in all rounds together; a decision looks at all jobs, so large problems get few rounds."""
MOST_ROUNDS = 60


@orderings.register("randomized")
class Randomized(Ordering):
    """Senders are balanced by their time; whenever a host is free, the job goes first whose host has the
    most left to do. Repeated with some chance in both, from one seed; the best order is mended by small moves."""

    title: ClassVar = "Randomized"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        bound = lower_bound(jobs, nics)
        best, shortest = Answer([]), np.inf
        for order in _orders(jobs, nics):
            length = makespan(run_in_order(jobs, order, nics))
            if length < shortest:
                best, shortest = Answer(order, length <= bound * (1 + CLOSE)), length
            if best.is_optimal:
                return best
        order = climbed(jobs, best.order, nics, bound)
        length = makespan(run_in_order(jobs, order, nics))
        return Answer(order, length <= bound * (1 + CLOSE)) if length < shortest else best


def _orders(jobs: Sequence[Job], nics: int) -> Iterator[Order]:
    """Without chance, in rounds of an edge colouring, then with chance."""
    hosts = evened(jobs, balanced(jobs, lambda job, host: job.options[host], longest_first=True))
    yield dispatched(jobs, hosts, nics)
    if order := coloured(jobs, hosts):
        yield order
    chance = np.random.default_rng(0)
    for _ in range(max(1, min(MOST_ROUNDS, WORK // max(1, len(jobs)) ** 2) - 1)):
        yield _drawn(jobs, nics, chance)


def _drawn(jobs: Sequence[Job], nics: int, chance: np.random.Generator) -> Order:
    stretch = chance.uniform(0.8, 1.25, len(jobs))
    place = {id(job): number for number, job in enumerate(jobs)}
    hosts = balanced(jobs, lambda job, host: job.options[host] * stretch[place[id(job)]], longest_first=True)
    scale = max((job.shortest for job in jobs), default=0.0)
    return dispatched(jobs, evened(jobs, hosts), nics, chance.uniform(0, 2 * scale, len(jobs)))
