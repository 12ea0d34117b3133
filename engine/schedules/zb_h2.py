"""ZB-H2: zero bubble for twice the activations (Qi et al., Zero Bubble, arXiv:2401.10241, section 2.3)."""

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action
from meshwave.engine.schedules._base import Pipe, Schedule, schedules, too_few_microbatches
from meshwave.engine.schedules.zb_h1 import split_1f1b


@schedules.register("zb-h2")
class ZeroBubbleH2(Schedule):
    """Split the backward and fill the bubble with more warm-up forwards, at nearly twice the activations of 1F1B.

    If ranks run their optimizer steps without waiting for each other, no rank is idle between its first and last
    computation.
    """

    title: ClassVar = "ZB-H2"
    published: ClassVar = "2024-01"

    def refusal(self, pipe: Pipe) -> Problem | None:
        return too_few_microbatches(self.title, 2 * pipe.ranks - 1, pipe)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        return split_1f1b(rank, pipe.microbatches, ahead=2 * (pipe.ranks - rank) - 1, held_back=2 * rank)
