"""Local search on an order: move a job or change its sender, and keep the change unless the makespan increases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwave.engine.resharding.orderings._base import TOLERANCE, Order
from meshwave.engine.resharding.problem import FreeTimes, Job

WORK_LIMIT = 40_000
"""Maximum product of moves and jobs, since each move simulates the whole order."""


def improve_transfer_order(jobs: Sequence[Job], order: Order, nics: int, bound: float) -> Order:
    """Return the best order that the local search finds, or the given one."""
    places = [place for place, (number, _) in enumerate(order) if jobs[number].receivers]
    if len(places) < 2:
        return list(order)
    chance = np.random.default_rng(1)
    here, least = list(order), _makespan_and_spread(jobs, order, nics)
    for _ in range(WORK_LIMIT // len(order)):
        if least[0] <= bound * (1 + TOLERANCE):
            break
        there = _move_job(jobs, here, places, chance)
        ends = _makespan_and_spread(jobs, there, nics)
        if ends <= least:
            here, least = there, ends
    return here


def _move_job(jobs: Sequence[Job], order: Order, places: Sequence[int], chance: np.random.Generator) -> Order:
    """Return the order with one job moved and, with probability 1/3, a random sender for it."""
    one, other = (places[at] for at in chance.integers(len(places), size=2).tolist())
    moved = list(order)
    number, host = moved.pop(one)
    options = list(jobs[number].options)
    if len(options) > 1 and chance.integers(3) == 0:
        host = options[int(chance.integers(len(options)))]
    moved.insert(other, (number, host))
    return moved


def _makespan_and_spread(jobs: Sequence[Job], order: Order, nics: int) -> tuple[float, float]:
    """Return the end of the last job and the sum of squares of all ends.

    The sum breaks ties: earlier ends leave more room for improvement.
    """
    lanes, last, total = FreeTimes(nics), 0.0, 0.0
    for number, host in order:
        job = jobs[number]
        if job.receivers:
            end = lanes.earliest_start(host, job.receivers) + job.options[host]
            lanes.occupy(host, job.receivers, end)
            last = max(last, end)
            total += end * end
    return last, total
