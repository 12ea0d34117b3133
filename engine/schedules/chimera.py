"""Chimera: two replicas of the model run through the ranks in opposite directions (arXiv:2107.06925)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from engine.schedules._base import Pipe, Schedule, by_slot, schedules


@schedules.register("chimera")
class Chimera(Schedule):
    """Two copies of the model, one down and one up the ranks, fill each other's bubbles at the
    price of twice the weights."""

    title: ClassVar = "Chimera"

    replicas: Literal[2] = 2
    """Copies of the model: one goes down the meshes, one up."""

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [range(pipe.ranks), range(pipe.ranks - 1, -1, -1)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        """In every group of as many microbatches as ranks, the first half goes down."""
        return [int(mb % pipe.ranks >= pipe.ranks // 2) for mb in range(pipe.microbatches)]

    def refuses(self, pipe: Pipe) -> str | None:
        if pipe.ranks % 2:
            return f"Chimera pairs meshes from both ends and needs an even number of them, not {pipe.ranks}; use {pipe.ranks + 1}"
        return None

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """The drawn order on a clock where forward and backward take one slot each: forwards run
        densely in the first ramp, later ones leave every second slot to a backward; groups of
        D microbatches are concatenated directly."""
        d = pipe.ranks
        s, mb = np.indices((d, pipe.microbatches))
        group, place = mb // d, mb % d
        i = place % (d // 2)  # the place among those of one direction
        down = place < d // 2
        ramp = (group == 0) & (s + i <= d // 2 - 1)
        forward_slot = np.where(ramp, s + i, s + 2 * i + 2 * d * group)
        backward_slot = 2 * d - 1 - s + 2 * i + 2 * d * group
        return by_slot(d, np.where(down, s, d - 1 - s), forward_slot, backward_slot)
