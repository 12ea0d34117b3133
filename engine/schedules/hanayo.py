"""Hanayo: waves of stages down the ranks and back up (Liu et al., SC'23, arXiv:2308.15762)."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from engine.program.action import Action, backward, forward
from engine.schedules._base import Count, Pipe, Schedule, by_slot, schedules


@schedules.register("hanayo")
class Hanayo(Schedule):
    """Fold the stages into waves over the ranks: each doubling of the waves halves the bubble,
    with one copy of the weights."""

    title: ClassVar = "Hanayo"

    waves: Count = 1
    """Times the path of stages goes down the meshes and back up."""
    grouping: Literal["grouped", "ungrouped"] = "grouped"
    """With more microbatches than meshes: grouped runs one group of as many microbatches as
    meshes after the other and keeps the memory; ungrouped adds no bubble a group and keeps all alive."""

    def stage_count(self, ranks: int) -> int:
        return 2 * self.waves * ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        fold = [*range(pipe.ranks), *reversed(range(pipe.ranks))]
        return [fold * self.waves]

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        return self._grouped(pipe) if self.grouping == "grouped" else super().orders(pipe)

    def _grouped(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """The order of the paper's figures 3 and 6 (drawn for as many microbatches as ranks), one
        group after the other; fewer microbatches leave out the missing ones."""
        p, stages = pipe.ranks, self.stage_count(pipe.ranks)
        s, mb = np.indices((stages, pipe.microbatches))
        group, i = mb // p, mb % p
        ramp = (group == 0) & (s + i <= p - 1)
        forward_slot = np.where(ramp, s + i, s + 2 * i + 2 * stages * group)
        backward_slot = 2 * stages - 1 - s + 2 * i + 2 * stages * group
        rank = np.broadcast_to(np.array(self.routes(pipe)[0])[:, None], s.shape)
        return by_slot(p, rank, forward_slot, backward_slot)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Ungrouped: every up-going forward is followed by the next down-going one, and when those
        run out by the next up-going backward; equal to the paper's order for M = P."""
        p, m, waves = pipe.ranks, pipe.microbatches, range(self.waves)
        down = [2 * w * p + rank for w in waves]
        up = [2 * (w + 1) * p - 1 - rank for w in waves]
        ramp = min(p - rank, m)
        down_forwards = (forward(down[w], mb) for w in waves for mb in range(m))
        up_backwards = (backward(up[w], mb) for w in reversed(waves) for mb in range(m))
        for _ in range(ramp):
            yield next(down_forwards)
        fillers = chain(down_forwards, up_backwards)
        for w in waves:
            for mb in range(m):
                yield forward(up[w], mb)
                yield next(fillers)
        for w in reversed(waves):
            for mb in range(m):
                yield backward(down[w], mb)
                yield from (x for x in [next(up_backwards, None)] if x)
