"""V-Half: half the memory of 1F1B (Qi et al., Controllable Memory, arXiv:2405.15362)."""

from typing import ClassVar

from meshwave.engine.schedules._base import schedules
from meshwave.engine.schedules._building_blocks import Block, BlockSchedule


@schedules.register("v-half")
class VHalf(BlockSchedule):
    """Keep half the activations of 1F1B, with about half its bubble, on stages in one wave over the ranks.

    A rank keeps the activations of at most floor(P/2) + 1 microbatches for its layers.
    """

    title: ClassVar = "V-Half"
    published: ClassVar = "2024-05"

    def block_slots(self, ranks: int, rank: int) -> Block:
        """Return slots in which forwards down and input gradients up take two slots per rank, the others one.

        The total time for which its two activations are kept is then equal on all ranks.
        """
        apart = 0 if ranks % 2 else 3  # keeps the four slots apart
        return Block(
            forward_down=2 * rank,
            forward_up=3 * ranks - rank - 2,
            input_up=3 * ranks + apart + 2 * rank - 1,
            input_down=6 * ranks + apart - rank - 2,
        )
