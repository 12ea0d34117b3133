"""Eager 1F1B: 1F1B with twice as many warm-up forwards.

This is policy B of DAPPLE (arXiv:2007.01045) and Alpa's "overlap friendly" schedule (Zhuang et al., arXiv:2211.05322,
section 4).
"""

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.program.action import Action, backward, forward, input_gradient, weight_gradient
from meshwave.engine.schedules._base import BackwardForm, Pipe, Schedule, schedules


@schedules.register("eager-1f1b")
class EagerOneFOneB(Schedule):
    """Run forwards ahead so that transfers hide behind them, at the price of nearly twice the activations of 1F1B.

    No transfer delays the steady state. If a forward takes f and a backward b, transfers of up to (f+b)/2 are hidden;
    with a split backward, whose weight gradient takes w, transfers of up to (f+b+w)/2.
    """

    title: ClassVar = "Eager 1F1B"
    published: ClassVar = "2020-07"

    backward: BackwardForm = "whole"
    """Computation of a backward. whole: input and weight gradients run as one computation. split: the input gradient is
    sent first, and the weight gradient is computed during the transfer."""

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        ahead = min(2 * (pipe.ranks - rank) - 1, pipe.microbatches)
        for mb in range(ahead):
            yield forward(rank, mb)
        for mb in range(ahead, pipe.microbatches):  # steady state
            yield from self._backward_actions(rank, mb - ahead)
            yield forward(rank, mb)
        for mb in range(pipe.microbatches - ahead, pipe.microbatches):  # cool-down
            yield from self._backward_actions(rank, mb)

    def _backward_actions(self, stage: int, mb: int) -> Iterator[Action]:
        if self.backward == "whole":
            yield backward(stage, mb)
            return
        yield input_gradient(stage, mb)
        yield weight_gradient(stage, mb)
