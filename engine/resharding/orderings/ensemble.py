"""Ensemble: the best result of several other orderings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.resharding.orderings._base import TOLERANCE, Answer, Ordering, orderings
from meshwave.engine.resharding.problem import Job, lower_bound, makespan, run_in_order

MEMBERS = ("load-balance", "naive", "randomized", "dfs")


@orderings.register("ensemble")
class Ensemble(Ordering):
    """Best result of the other orderings. Fast orderings are tried first; the search stops at a provably optimal result."""

    title: ClassVar = "Ensemble"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        bound = lower_bound(jobs, nics)
        best, shortest = Answer([]), float("inf")
        for name in MEMBERS:
            answer = orderings[name]().solve(jobs, nics)
            length = makespan(run_in_order(jobs, answer.order, nics))
            if length < shortest * (1 - TOLERANCE) or (answer.is_optimal and length <= shortest * (1 + TOLERANCE)):
                best, shortest = answer, length
            if shortest <= bound * (1 + TOLERANCE):
                return Answer(best.order, is_optimal=True)
        return best

    def candidates(self, jobs: Sequence[Job], nics: int = 1) -> Iterator[Answer]:
        """Yield the result of each other ordering."""
        others = (each for each in orderings.values() if not isinstance(self, each))
        yield from (each().solve(jobs, nics) for each in others)
