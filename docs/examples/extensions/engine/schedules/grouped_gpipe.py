"""GPipe in groups: fill and drain the pipeline once for every few microbatches."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic import PositiveInt

from meshwave.engine.program.action import Action, backward, forward
from meshwave.engine.schedules import Pipe, Schedule, schedules


@schedules.register("grouped-gpipe")
class GroupedGPipe(Schedule):
    """GPipe for one group of microbatches after the other: less memory, more bubbles."""

    title: ClassVar = "Grouped GPipe"

    group: PositiveInt = 2
    """Microbatches that are kept alive at once."""

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        for first in range(0, pipe.microbatches, self.group):
            group = range(first, min(first + self.group, pipe.microbatches))
            yield from (forward(rank, mb) for mb in group)
            yield from (backward(rank, mb) for mb in group)
