"""V-Min: the lowest memory of the V schedules (Qi et al., Controllable Memory, arXiv:2405.15362)."""

from typing import ClassVar

from meshwave.engine.schedules._base import schedules
from meshwave.engine.schedules._building_blocks import Block, BlockSchedule


@schedules.register("v-min")
class VMin(BlockSchedule):
    """Keep a third of the activations of 1F1B, with about two thirds of its bubble.

    This holds if forward, input gradient and weight gradient have equal durations and transfers take no time; otherwise
    the bubble grows with the microbatches. A rank keeps the activations of at most floor((P + 4) / 3)
    microbatches for its layers.
    """

    title: ClassVar = "V-Min"
    published: ClassVar = "2024-05"

    def block_slots(self, ranks: int, rank: int) -> Block:
        """Return slots in which each computation takes one slot per rank; no schedule on one wave needs less memory."""
        apart = 0 if ranks % 3 else 2  # keeps the four slots apart
        return Block(
            forward_down=rank,
            forward_up=2 * ranks - rank - 1,
            input_up=2 * ranks + apart + rank,
            input_down=4 * ranks + apart - rank - 1,
        )
