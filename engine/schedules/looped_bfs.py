"""Looped BFS: breadth-first order through the chunks of a loop (Lamy-Poirier, arXiv:2211.05953)."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.program.action import Action, backward, forward
from meshwave.engine.schedules._base import Count, Pipe, Schedule, schedules


@schedules.register("looped-bfs")
class LoopedBFS(Schedule):
    """Run all microbatches through one chunk before the next; it has the bubble of interleaving and needs more memory.

    Each stage's weights are gathered once per direction, and every activation is kept.
    """

    title: ClassVar = "Looped BFS"
    published: ClassVar = "2022-11"

    chunks: Count = 2
    """Stages (chunks) per rank."""

    def stage_count(self, ranks: int) -> int:
        return ranks * self.chunks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [[*range(pipe.ranks)] * self.chunks]

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the order of a rank; backwards run in descending order, as in torch's ``ScheduleLoopedBFS``."""
        stages = range(rank, self.stage_count(pipe.ranks), pipe.ranks)
        for stage in stages:
            for mb in range(pipe.microbatches):
                yield forward(stage, mb)
        for stage in reversed(stages):
            for mb in reversed(range(pipe.microbatches)):
                yield backward(stage, mb)
