"""GPipe: fill the pipeline with all forwards, then drain it (arXiv:1811.06965)."""

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.program.action import Action, backward, forward
from meshwave.engine.schedules._base import Pipe, Schedule, schedules


@schedules.register("gpipe")
class GPipe(Schedule):
    """Run all forwards, then all backwards: simple, but the activations of every microbatch are kept at once."""

    title: ClassVar = "GPipe"
    published: ClassVar = "2018-11"

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        for mb in range(pipe.microbatches):
            yield forward(rank, mb)
        for mb in range(pipe.microbatches):
            yield backward(rank, mb)
