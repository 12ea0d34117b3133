"""Load balance: each slice is sent by the host with the fewest bytes sent so far, in task order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from meshwave.engine.resharding.orderings._base import Answer, Ordering, balance_senders, orderings
from meshwave.engine.resharding.problem import Job


@orderings.register("load-balance")
class LoadBalance(Ordering):
    """Each slice is sent by the host with the fewest bytes so far, regardless of the receivers."""

    title: ClassVar = "Load balance"

    def solve(self, jobs: Sequence[Job], nics: int = 1) -> Answer:
        hosts = balance_senders(jobs, lambda job, host: float(job.bytes), longest_first=False)
        return Answer(list(enumerate(hosts)))
