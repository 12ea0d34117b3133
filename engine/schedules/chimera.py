"""Chimera: replicas of the model run in opposite directions through the ranks (Li and Hoefler, arXiv:2107.06925)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine import messages
from meshwave.engine.findings import Problem, set_key_fix
from meshwave.engine.frozen import option_labels
from meshwave.engine.program.action import Op
from meshwave.engine.schedules._base import (
    Count,
    Pipe,
    Schedule,
    indivisible_microbatches,
    odd_mesh_count,
    order_by_slot,
    schedules,
)

messages.add_messages(
    indivisible_replicas=(
        "Chimera needs an even number of replicas that divides the {ranks} meshes, not {replicas}; use {supported:or}"
    )
)


@schedules.register("chimera")
class Chimera(Schedule):
    """Run half of the model replicas down the ranks and half up, so that they fill each other's bubbles.

    Every replica has its own copy of the weights. For two replicas and as many microbatches as ranks, the order is that
    of the paper's figure. With more replicas, those of one direction are rotated by equal numbers of ranks, also as in
    the paper. The paper does not give the time slots of more than two replicas or of other concatenations; Meshwave
    derives them by the same rule.
    """

    title: ClassVar = "Chimera"
    published: ClassVar = "2021-07"

    replicas: Count = 2
    """Copies of the model: half of them run down the meshes, half run up."""
    concatenation: Annotated[
        Literal["direct", "forward-doubling", "backward-halving"],
        option_labels(
            {"direct": "Direct", "forward-doubling": "Forward doubling", "backward-halving": "Backward halving"}
        ),
    ] = "direct"
    """Rule that joins consecutive groups of microbatches. direct: one bubble per group if a backward takes longer than a
    forward. forward-doubling: no bubble if a backward takes twice as long as a forward, but twice the activations.
    backward-halving: the order of forward doubling for microbatches of half the size."""

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        """Return the routes of the down-going replicas, rotated by equal numbers of ranks, then their mirror images."""
        turns = range(0, pipe.ranks, max(1, 2 * pipe.ranks // self.replicas))
        down = [[(stage + turn) % pipe.ranks for stage in range(pipe.ranks)] for turn in turns]
        return [*down, *([pipe.ranks - 1 - rank for rank in route] for route in down)]

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        """Return the replica of each microbatch, ``[microbatches]``; in every group, the replicas take turns."""
        group = self._group_size(pipe)
        return [mb % group * self.replicas // group for mb in range(pipe.microbatches)]

    def refusal(self, pipe: Pipe) -> Problem | None:
        if pipe.ranks % 2:
            return odd_mesh_count(self.title, pipe)
        if pipe.ranks % self.replicas or self.replicas % 2:
            supported = [count for count in range(2, pipe.ranks + 1, 2) if pipe.ranks % count == 0]
            params = {"replicas": self.replicas, "ranks": pipe.ranks, "supported": supported}
            fixes = [set_key_fix("replicas", count) for count in supported]
            return Problem("replicas", "indivisible_replicas", params, fixes=fixes)
        if pipe.microbatches % self._group_size(pipe) and self.concatenation != "direct":
            return indivisible_microbatches(f"{self.title} ({self.concatenation})", self._group_size(pipe), pipe)
        return None

    @property
    def _forwards_per_slot(self) -> int:
        """Number of microbatches in one slot of a forward."""
        return 1 if self.concatenation == "direct" else 2

    def _group_size(self, pipe: Pipe) -> int:
        """Return the number of microbatches that are ordered together: one forward slot for every rank."""
        return self._forwards_per_slot * pipe.ranks

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """Return the order drawn in the paper, on a clock where all forwards of a slot take as long as one backward.

        Forwards are consecutive in the first ramp; later ones leave every second slot to the other direction. No two
        slots of a rank coincide, and there is no empty slot between consecutive groups.
        """
        d, share = pipe.ranks, pipe.ranks // self.replicas  # number of forward slots per replica in a group
        s, mb = np.indices((d, pipe.microbatches))
        group, place = np.divmod(mb, self._group_size(pipe))
        turn = place % (share * self._forwards_per_slot)  # index among the microbatches of one replica
        i, start = turn // self._forwards_per_slot, (1 + self._forwards_per_slot) * d * group
        ramp = (group == 0) & (s + i <= share - 1)
        rank = np.array(self.routes(pipe))[np.array(self.replica_of(pipe))].T
        slots = {
            Op.F: np.where(ramp, s + i, s + 2 * i + start),
            Op.B: 2 * d - 1 - s + 2 * (turn % share) + d * (turn // share) + start,
        }
        return order_by_slot(d, rank, slots)
