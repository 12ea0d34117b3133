"""1F1B: one forward, one backward (PipeDream-Flush, arXiv:2006.09503; DAPPLE, arXiv:2007.01045)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules._base import Pipe, Schedule, order_by_slot, schedules


@schedules.register("1f1b")
class OneFOneB(Schedule):
    """Start each backward as early as possible.

    Rank r keeps at most P - r activations, where P is the number of ranks.
    """

    title: ClassVar = "1F1B"
    published: ClassVar = "2020-06"

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        rank, microbatch = np.indices((pipe.ranks, pipe.microbatches))
        warmup = pipe.ranks - 1 - rank
        forward_slot = microbatch + np.maximum(0, microbatch - warmup)
        backward_slot = microbatch + np.minimum(microbatch + warmup + 1, pipe.microbatches)
        return order_by_slot(pipe.ranks, rank, {Op.F: forward_slot, Op.B: backward_slot})
