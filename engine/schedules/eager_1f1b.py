"""Eager 1F1B: 1F1B with a warm-up twice as deep (policy B of DAPPLE, arXiv:2007.01045; alpa's "overlap friendly")."""

from collections.abc import Iterator
from typing import ClassVar

from engine.program.action import Action, backward, forward
from engine.schedules._base import Pipe, Schedule, schedules


@schedules.register("eager-1f1b")
class EagerOneFOneB(Schedule):
    """Run forwards ahead so that transfers hide behind them: the steady state waits for none, at
    the price of nearly twice the activations of 1F1B."""

    title: ClassVar = "Eager 1F1B"
    published: ClassVar = "2020-07"

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        ahead = min(2 * (pipe.ranks - rank) - 1, pipe.microbatches)
        for mb in range(ahead):
            yield forward(rank, mb)
        for mb in range(ahead, pipe.microbatches):  # steady state
            yield backward(rank, mb - ahead)
            yield forward(rank, mb)
        for mb in range(pipe.microbatches - ahead, pipe.microbatches):  # cool-down
            yield backward(rank, mb)
