"""ZB-H1: 1F1B with a split backward (Qi et al., Zero Bubble, arXiv:2401.10241, section 2.3)."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import ClassVar

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, forward, input_gradient, weight_gradient
from meshwave.engine.schedules._base import Pipe, Schedule, schedules, too_few_microbatches


@schedules.register("zb-h1")
class ZeroBubbleH1(Schedule):
    """Split the backward and let weight gradients fill two thirds of the bubble of 1F1B.

    Every rank keeps as many activations as there are ranks.
    """

    title: ClassVar = "ZB-H1"
    published: ClassVar = "2024-01"

    def refusal(self, pipe: Pipe) -> Problem | None:
        return too_few_microbatches(self.title, pipe.ranks, pipe)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        return split_1f1b(rank, pipe.microbatches, ahead=pipe.ranks - rank, held_back=rank)


def split_1f1b(rank: int, microbatches: int, ahead: int, held_back: int) -> Iterator[Action]:
    """Yield one forward, one input gradient and one weight gradient in turn.

    The orders of the first and the last rank are those of the paper's figure 3; the others are derived.

    Args:
        rank: the rank, which is also its stage.
        microbatches: microbatches in one step; at least ``ahead + held_back``.
        ahead: number of forwards before the first input gradient.
        held_back: number of input gradients before the first weight gradient, in addition to the first one.
    """
    mbs = range(microbatches)
    for mb in mbs[:ahead]:
        yield forward(rank, mb)
    yield input_gradient(rank, 0)
    for back, mb in zip(mbs[1:], mbs[ahead : ahead + held_back], strict=False):
        yield forward(rank, mb)
        yield input_gradient(rank, back)
    for weight, mb, back in zip_longest(mbs, mbs[ahead + held_back :], mbs[1 + held_back :]):
        yield weight_gradient(rank, weight)
        if mb is not None:
            yield forward(rank, mb)
        if back is not None:
            yield input_gradient(rank, back)
