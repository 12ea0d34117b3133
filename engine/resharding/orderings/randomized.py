"""Randomized: the best of many randomized greedy orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

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
from meshwave.engine.resharding.orderings._climb import improve_transfer_order
from meshwave.engine.resharding.orderings._colouring import colour_rounds
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

WORK_LIMIT = 400_000
"""Maximum number of decisions in all rounds; each decision scans all jobs, so large problems have few rounds."""
MAX_ROUNDS = 60


@orderings.register("randomized")
class Randomized(Ordering):
    """Randomized greedy orders with balanced senders, the best of which is improved by local search.

    Whenever a host is free, the job whose host has the most remaining work is next. Choice of senders and order are
    repeated with random perturbations from a fixed seed.
    """

    title: ClassVar = "Randomized"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        bound = lower_bound(jobs, nics)
        best, shortest = Answer([]), np.inf
        for order in _candidate_orders(jobs, nics):
            length = makespan(run_in_order(jobs, order, nics))
            if length < shortest:
                best, shortest = Answer(order, length <= bound * (1 + TOLERANCE)), length
            if best.is_optimal:
                return best
        order = improve_transfer_order(jobs, best.order, nics, bound)
        length = makespan(run_in_order(jobs, order, nics))
        return Answer(order, length <= bound * (1 + TOLERANCE)) if length < shortest else best


def _candidate_orders(jobs: Sequence[Job], nics: int) -> Iterator[Order]:
    """Yield the greedy order, the order of an edge colouring, then randomized orders."""
    hosts = relieve_busiest(jobs, balance_senders(jobs, lambda job, host: job.options[host], longest_first=True))
    yield dispatch_order(jobs, hosts, nics)
    if order := colour_rounds(jobs, hosts):
        yield order
    chance = np.random.default_rng(0)
    for _ in range(max(1, min(MAX_ROUNDS, WORK_LIMIT // max(1, len(jobs)) ** 2) - 1)):
        yield _random_order(jobs, nics, chance)


def _random_order(jobs: Sequence[Job], nics: int, chance: np.random.Generator) -> Order:
    stretch = chance.uniform(0.8, 1.25, len(jobs))
    place = {id(job): number for number, job in enumerate(jobs)}
    hosts = balance_senders(jobs, lambda job, host: job.options[host] * stretch[place[id(job)]], longest_first=True)
    scale = max((job.shortest_s for job in jobs), default=0.0)
    return dispatch_order(jobs, relieve_busiest(jobs, hosts), nics, chance.uniform(0, 2 * scale, len(jobs)))
