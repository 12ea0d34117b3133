"""1F1B: one forward, one backward (PipeDream-Flush, arXiv:2006.09503; DAPPLE, arXiv:2007.01045)."""

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.program.action import Action, backward, forward
from meshwave.engine.schedules._base import Pipe, Schedule, schedules


@schedules.register("1f1b")
class OneFOneB(Schedule):
    """Start each backward as early as possible.

    Rank r keeps at most P - r activations, where P is the number of ranks.
    """

    title: ClassVar = "1F1B"
    published: ClassVar = "2020-06"

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        warmup = min(pipe.ranks - 1 - rank, pipe.microbatches)
        for mb in range(warmup):
            yield forward(rank, mb)
        for mb in range(warmup, pipe.microbatches):  # steady state
            yield forward(rank, mb)
            yield backward(rank, mb - warmup)
        for mb in range(pipe.microbatches - warmup, pipe.microbatches):  # cool-down
            yield backward(rank, mb)
