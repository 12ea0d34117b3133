"""V schedules that repeat one building block (Qi et al., Controllable Memory, arXiv:2405.15362)."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.schedules._base import Pipe, Schedule, wave_path

PERIOD = 6
"""Number of slots per block: forward, input gradient and weight gradient of two chunks."""

Slots = NDArray[np.int64]
Rows = NDArray[np.int32]


class Block(NamedTuple):
    """Slots in which a rank computes microbatch 0; the slots of microbatch ``m`` follow ``m`` periods later."""

    forward_down: int
    forward_up: int
    input_up: int
    input_down: int

    def weights(self) -> tuple[int, int]:
        """Return the slots of the weight gradients of the down-going and the up-going chunk.

        They take the two free slots of the period, in the order that minimizes the total time for which the two
        activations are kept.
        """
        free = sorted(set(range(PERIOD)) - {slot % PERIOD for slot in self})
        choices = [
            tuple(after + 1 + (slot - after - 1) % PERIOD for after, slot in zip(self[2:], order, strict=True))
            for order in (free, free[::-1])
        ]
        up, down = min(choices, key=sum)
        return up, down


class BlockSchedule(Schedule):
    """Schedule of two chunks per rank on a wave, with one block per microbatch every six slots.

    A rank keeps as many activations as blocks overlap, so the block determines memory. Slots only order the
    computations, which run as early as possible ("squeezing" in the paper).
    """

    def stage_count(self, ranks: int) -> int:
        return 2 * ranks

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return [wave_path(pipe.ranks)]

    @abstractmethod
    def block_slots(self, ranks: int, rank: int) -> Block:
        """Return the slots of a rank's forwards and input gradients.

        The slots of all ranks leave one slot for every tensor dependency, and no two computations of a rank share a
        slot of the period.
        """

    def orders(self, pipe: Pipe) -> list[Rows]:
        blocks = [self.block_slots(pipe.ranks, rank) for rank in range(pipe.ranks)]
        down, up = [block.input_down for block in blocks], [block.input_up for block in blocks]
        first = np.array([*down, *reversed(up)])
        return _drain(
            [_repeat_block(block, rank, pipe) for rank, block in enumerate(blocks)],
            first[:, None] + PERIOD * np.arange(pipe.microbatches) + 1,
        )


def _repeat_block(block: Block, rank: int, pipe: Pipe) -> tuple[Slots, Rows]:
    """Return slots ``[actions]`` and rows ``[actions, 4]`` of a rank, in order."""
    down, up = rank, 2 * pipe.ranks - 1 - rank
    weight_up, weight_down = block.weights()
    computations = [
        (block.forward_down, Op.F, down),
        (block.forward_up, Op.F, up),
        (block.input_up, Op.I, up),
        (weight_up, Op.W, up),
        (block.input_down, Op.I, down),
        (weight_down, Op.W, down),
    ]
    microbatch = np.repeat(np.arange(pipe.microbatches), len(computations))
    first, op, stage = np.tile(np.array(computations).T, pipe.microbatches)
    slot = first + PERIOD * microbatch
    order = np.argsort(slot)
    rows = np.stack([op, stage, microbatch, np.zeros_like(op)], axis=1).astype(np.int32)
    return slot[order], rows[order]


class _Tail:
    """Computations of a rank after its last forward: input gradients as they arrive, weight gradients in idle slots."""

    def __init__(self, slots: Slots, rows: Rows) -> None:
        end = int(np.flatnonzero(rows[:, 0] == Op.F)[-1]) + 1
        rest = rows[end:].tolist()
        self.inputs = [(slot, row) for slot, row in zip(slots[end:].tolist(), rest, strict=True) if row[0] == Op.I]
        self._head, self._clock = rows[:end], int(slots[end - 1]) + 1
        self._weights = deque(row for row in rest if row[0] == Op.W)
        self._ahead = {(row[1], row[2]) for _, row in self.inputs}
        self._rows: list[list[int]] = []

    def wait(self, until: int) -> None:
        """Advance to slot ``until``, and fill the time with weight gradients whose input gradients have run."""
        while self._clock < until and self._weights and (self._weights[0][1], self._weights[0][2]) not in self._ahead:
            self._rows.append(self._weights.popleft())
            self._clock += 1
        self._clock = max(self._clock, until)

    def run(self, row: list[int]) -> int:
        """Run an input gradient in the current slot, and return the slot after it."""
        self._ahead.remove((row[1], row[2]))
        self._rows.append(row)
        self._clock += 1
        return self._clock

    def rank_order(self) -> Rows:
        """Return all computations of the rank, ``[actions, 4]``."""
        return np.concatenate([self._head, np.array([*self._rows, *self._weights], np.int32).reshape(-1, 4)])


def _drain(repeated: Sequence[tuple[Slots, Rows]], after: Slots) -> list[Rows]:
    """Return the order of each rank with its end compressed.

    Without compression, the last blocks would keep the slots of missing forwards. Memory only decreases in this part.

    Args:
        repeated: slots and rows of the blocks of each rank.
        after: ``[stages, microbatches]`` slot after each input gradient.
    """
    tails = [_Tail(*each) for each in repeated]
    ready = np.vstack([after, np.zeros_like(after[:1])])
    inputs = sorted((slot, rank, row) for rank, tail in enumerate(tails) for slot, row in tail.inputs)
    for _, rank, row in inputs:  # sorted by slot, so that each comes after its dependencies
        _, stage, microbatch, _ = row
        tails[rank].wait(int(ready[stage + 1, microbatch]))
        ready[stage, microbatch] = tails[rank].run(row)
    return [tail.rank_order() for tail in tails]
