"""Largest first: the slices with the most bytes start before the others."""

from collections.abc import Sequence
from typing import ClassVar

from meshwave.engine.resharding import Job
from meshwave.engine.resharding.orderings import Answer, Ordering, orderings


@orderings.register("largest-first")
class LargestFirst(Ordering):
    """The first rank that owns a slice sends it, the largest slices first."""

    title: ClassVar = "Largest first"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        numbers = sorted(range(len(jobs)), key=lambda number: -jobs[number].bytes)
        return Answer([(number, next(iter(jobs[number].options))) for number in numbers])
