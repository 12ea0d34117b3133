"""Hanayo: waves of stages down the ranks and back up (Liu et al., SC'23, arXiv:2308.15762)."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.frozen import option_labels
from meshwave.engine.program.action import Action, Op, backward, forward, input_gradient, weight_gradient
from meshwave.engine.schedules._base import BackwardForm, Count, Pipe, Schedule, order_by_slot, schedules, wave_path

Slots = NDArray[np.int64]


@schedules.register("hanayo")
class Hanayo(Schedule):
    """Run the stages down the ranks and back up in waves: each doubling of the waves halves the bubble.

    There is one copy of the weights. The split backward is an extension of the paper. If forward, input gradient and
    weight gradient have equal durations, a split backward leaves a bubble of P-1 forwards of one stage, a quarter of the
    bubble with a full backward. No order has a smaller bubble, because the last rank cannot start earlier. With
    grouping, a rank keeps the activations of at most P microbatches for its layers, as many as the last rank with a
    full backward.
    """

    title: ClassVar = "Hanayo"
    published: ClassVar = "2023-08"

    waves: Count = 1
    """Number of times that the path of stages runs down the meshes and back up."""
    grouping: Annotated[
        Literal["grouped", "ungrouped"], option_labels({"grouped": "Grouped", "ungrouped": "Ungrouped"})
    ] = "grouped"
    """Order if there are more microbatches than meshes. grouped: groups with as many microbatches as there are meshes
    run one after another, so that peak memory does not grow. ungrouped: there is no bubble between groups, but all
    activations are kept."""
    backward: BackwardForm = "whole"
    """Computation of a backward. whole: input and weight gradients run as one computation. split: the input gradient is
    sent first, and the weight gradient is delayed to a bubble, as far as memory allows."""

    def stage_count(self, ranks: int) -> int:
        return 2 * self.waves * ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [wave_path(pipe.ranks, self.waves)]

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        return self._grouped_orders(pipe) if self.grouping == "grouped" else super().orders(pipe)

    def _grouped_orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        """Return the order of the paper's figures 3 and 6, one group of microbatches after the other.

        The figures have as many microbatches as ranks; if there are fewer, the missing ones are left out.
        """
        p, stages = pipe.ranks, self.stage_count(pipe.ranks)
        s, mb = np.indices((stages, pipe.microbatches))
        start, i = 2 * stages * (mb // p), mb % p
        ramp = (mb < p) & (s + i <= p - 1)
        forward_slot = np.where(ramp, s + i, s + 2 * i + start)
        backward_slot = 2 * stages - 1 - s + 2 * i + start
        rank = np.broadcast_to(np.array(self.routes(pipe)[0])[:, None], s.shape)
        if self.backward == "whole":
            return order_by_slot(p, rank, {Op.F: forward_slot, Op.B: backward_slot})
        weight_slot = self._weight_slots(pipe)[s, i] + start
        return order_by_slot(p, rank, {Op.W: weight_slot, Op.F: forward_slot, Op.I: backward_slot})

    def _weight_slots(self, pipe: Pipe) -> Slots:
        """Return the slots of a group's weight gradients, ``[stages, ranks]``.

        They are the slots of the forwards that need their memory. One group fills a rank's memory. Each later forward
        takes the memory of the oldest weight gradient, which runs right before it; in the last group there are no next
        forwards, and the weight gradients run in the bubbles in their place.
        """
        p, stages = pipe.ranks, self.stage_count(pipe.ranks)
        s, i = np.indices((stages, p))
        rank = np.broadcast_to(np.array(self.routes(pipe)[0])[:, None], s.shape)
        forwards, inputs = s + 2 * i + 2 * stages, 2 * stages - 1 - s + 2 * i
        by_forward, by_input = (np.lexsort((slot.ravel(), rank.ravel())) for slot in (forwards, inputs))
        slots = np.empty(s.size, np.int64)
        slots[by_input] = forwards.ravel()[by_forward]
        return slots.reshape(s.shape)

    def rank_actions(self, pipe: Pipe, rank: int) -> Iterator[Action]:
        """Yield the ungrouped order.

        Every up-going forward is followed by the next down-going forward, or if there is none by the next up-going
        backward; for M = P this is the paper's order. Weight gradients of a split backward follow when those
        computations run out.
        """
        p, m, waves = pipe.ranks, pipe.microbatches, range(self.waves)
        down = [2 * w * p + rank for w in waves]
        up = [2 * (w + 1) * p - 1 - rank for w in waves]
        weights: deque[Action] = deque()

        def back(stage: int, mb: int) -> Action:
            if self.backward == "whole":
                return backward(stage, mb)
            weights.append(weight_gradient(stage, mb))
            return input_gradient(stage, mb)

        ramp = min(p - rank, m)
        down_forwards = (forward(down[w], mb) for w in waves for mb in range(m))
        up_backwards = (back(up[w], mb) for w in reversed(waves) for mb in range(m))
        for _ in range(ramp):
            yield next(down_forwards)
        fillers = chain(down_forwards, up_backwards)
        for w in waves:
            for mb in range(m):
                yield forward(up[w], mb)
                yield next(fillers)
        for w in reversed(waves):
            for mb in range(m):
                yield back(down[w], mb)
                yield from islice(chain(up_backwards, _pop_oldest(weights)), 1)
        yield from weights


def _pop_oldest(waiting: deque[Action]) -> Iterator[Action]:
    """Yield and remove the actions in order, oldest first."""
    while waiting:
        yield waiting.popleft()
