"""GEMS: two replicas of the model take turns, one microbatch at a time (Jain et al., SC'20)."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.program.action import Action, backward, forward
from meshwave.engine.schedules._base import Pipe, Schedule, schedules


@schedules.register("gems")
class Gems(Schedule):
    """Keep one activation per rank: each microbatch completes its backward before the forward of the next one.

    Consecutive microbatches run in opposite directions through two copies of the model.
    """

    title: ClassVar = "GEMS"
    published: ClassVar = "2020-11"

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [range(pipe.ranks), range(pipe.ranks - 1, -1, -1)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        return [mb % 2 for mb in range(pipe.microbatches)]

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the order of a rank.

        The paper describes the idea only. That every rank processes microbatches in order is derived, and reproduces
        the makespans that the Hanayo paper prints for GEMS.
        """
        stages = rank, pipe.ranks - 1 - rank
        for mb in range(pipe.microbatches):
            yield forward(stages[mb % 2], mb)
            yield backward(stages[mb % 2], mb)
