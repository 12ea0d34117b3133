"""Small moves that mend an order: a job elsewhere in it, or sent by another host, kept where the end comes no later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwave.engine.resharding.orderings._base import CLOSE, Order
from meshwave.engine.resharding.problem import Job, Lanes

WORK = 40_000
"""Moves times jobs: each move plays the whole order."""


def climbed(jobs: Sequence[Job], order: Order, nics: int, bound: float) -> Order:
    """The best order that is met on the way, or that which was given."""
    places = [place for place, (number, _) in enumerate(order) if jobs[number].receivers]
    if len(places) < 2:
        return list(order)
    chance = np.random.default_rng(1)
    here, least = list(order), _ends(jobs, order, nics)
    for _ in range(WORK // len(order)):
        if least[0] <= bound * (1 + CLOSE):
            break
        there = _moved(jobs, here, places, chance)
        ends = _ends(jobs, there, nics)
        if ends <= least:
            here, least = there, ends
    return here


def _moved(jobs: Sequence[Job], order: Order, places: Sequence[int], chance: np.random.Generator) -> Order:
    """One job put somewhere else, and in one case of three sent by whichever host may."""
    one, other = (places[at] for at in chance.integers(len(places), size=2).tolist())
    moved = list(order)
    number, host = moved.pop(one)
    options = list(jobs[number].options)
    if len(options) > 1 and chance.integers(3) == 0:
        host = options[int(chance.integers(len(options)))]
    moved.insert(other, (number, host))
    return moved


def _ends(jobs: Sequence[Job], order: Order, nics: int) -> tuple[float, float]:
    """When the last job ends, and the squares of all ends together: of two orders that end at once the one whose
    jobs end earlier leaves more room to go on from."""
    lanes, last, total = Lanes(nics), 0.0, 0.0
    for number, host in order:
        job = jobs[number]
        if job.receivers:
            end = lanes.earliest(host, job.receivers) + job.options[host]
            lanes.take(host, job.receivers, end)
            last = max(last, end)
            total += end * end
    return last, total
