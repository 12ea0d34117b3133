"""Naive: the first owner of each slice sends it, in task order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from meshwave.engine.resharding.orderings._base import Answer, Ordering, orderings
from meshwave.engine.resharding.problem import Job


@orderings.register("naive")
class Naive(Ordering):
    """The first rank that owns a slice sends it, one slice after another."""

    title: ClassVar = "Naive"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        return Answer([(number, next(iter(job.options))) for number, job in enumerate(jobs)])
