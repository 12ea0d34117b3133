"""Messages that are issued together by ``torch.distributed.batch_isend_irecv``: the batches of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwave.engine.program.acknowledgements import find_messages
from meshwave.engine.program.action import Action, Op, message_key
from meshwave.engine.program.program import Program
from meshwave.engine.runtime.device.accelerator import record_event, use_stream


class MessageBatch:
    """Batch of sends and receives between this process and one other process.

    The last operation that is added issues the batch, which completes as a whole. The batch keeps the tensors alive
    until then.
    """

    def __init__(self, size: int, side: torch.Stream | None) -> None:
        """Create a batch of ``size`` operations. On a GPU the stream ``side`` records when the batch is complete."""
        self._size, self._side = size, side
        self._operations: list[dist.P2POp] = []
        self._works: list[Any] = []
        self._is_issued = False
        self.arrival: torch.Event | None = None

    def add(self, operation: dist.P2POp) -> None:
        """Add a send or a receive; issue the batch when all operations are added."""
        self._operations.append(operation)
        if len(self._operations) == self._size:
            self._works, self._is_issued = dist.batch_isend_irecv(self._operations), True
            if self._side is not None:
                self._record_arrival(self._side)

    @property
    def is_issued(self) -> bool:
        """True if all operations are added, so that the batch is issued."""
        return self._is_issued

    def wait(self) -> None:
        """Make the host (with gloo) or the current stream (with NCCL) wait for all operations."""
        assert self._is_issued, "a rank issues all sends of a batch before it waits for a message of the batch"
        for work in self._works:
            work.wait()
        if self._side is None:
            self._works, self._operations = [], []  # gloo allows one wait for a message

    def is_complete(self) -> bool:
        """Return True if all operations are known to be complete, without waiting for them."""
        return self._is_issued and all(work.is_completed() for work in self._works)

    def _record_arrival(self, side: torch.Stream) -> None:
        with use_stream(side):
            for work in self._works:
                work.wait()
            self.arrival = record_event()


class MessageBatches:
    """The message batches of a rank, by number; each batch is issued once per step."""

    def __init__(self, program: Program, rank: int) -> None:
        self._batch_of = dict(_batched_messages(program, rank))
        self._sizes = Counter(self._batch_of.values())
        self._open: dict[int, MessageBatch] = {}

    def __contains__(self, producer: Action) -> bool:
        """Return True if the message that carries the tensor of ``producer`` is part of a batch."""
        return producer in self._batch_of

    def add(self, producer: Action, operation: dist.P2POp, side: torch.Stream | None = None) -> MessageBatch:
        """Add an operation to the batch of its message and return the batch. The last operation issues the batch."""
        number = self._batch_of[producer]
        batch = self._open.pop(number, None) or MessageBatch(self._sizes[number], side)
        batch.add(operation)
        if not batch.is_issued:
            self._open[number] = batch
        return batch


def message_producer(message: Action) -> tuple[Action, int]:
    """Return the action that produces the tensor of a SEND or RECV, and the stage that consumes it.

    If the tensor skips stages, the action names the consumer as its ``other`` stage.
    """
    is_forward, source, target, mb = message_key(message)
    return Action(Op.F if is_forward else Op.B, source, mb, 0, target if message.other >= 0 else -1), target


def batched_pairs(program: Program) -> Sequence[tuple[int, int]]:
    """Return the pairs (lower, higher) of ranks that exchange batches, in ascending order."""
    sends = np.flatnonzero(program.batch >= 0) if program.batched else np.empty(0, np.int64)
    ends = zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)
    return sorted({(min(pair), max(pair)) for pair in ends})


def _batched_messages(program: Program, rank: int) -> Iterator[tuple[Action, int]]:
    """Yield the producer and the batch number of each batched message that a rank sends or receives."""
    if not program.batched:
        return
    send, maker, taker = find_messages(program)
    here = (program.rank[maker] == rank) | (program.rank[taker] == rank)
    for row in send[here & (program.batch[send] >= 0)].tolist():
        yield message_producer(program.row(row))[0], int(program.batch[row])
