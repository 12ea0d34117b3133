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
    """Sends and receives between this process and one other.

    The last of them issues the batch, which completes as a whole. It keeps the tensors alive until then.
    """

    def __init__(self, size: int, side: torch.Stream | None) -> None:
        """Make a batch of ``size`` operations; on a GPU the stream ``side`` records when it is complete."""
        self._size, self._side = size, side
        self._operations: list[dist.P2POp] = []
        self._works: list[Any] = []
        self._is_issued = False
        self.arrival: torch.Event | None = None

    def add(self, operation: dist.P2POp) -> None:
        """Add a send or a receive, and issue the batch if it is the last one."""
        self._operations.append(operation)
        if len(self._operations) == self._size:
            self._works, self._is_issued = dist.batch_isend_irecv(self._operations), True
            if self._side is not None:
                self._record_arrival(self._side)

    @property
    def is_issued(self) -> bool:
        """True if all operations were added."""
        return self._is_issued

    def wait(self) -> None:
        """Wait for all operations: the host with gloo, the current stream with NCCL."""
        assert self._is_issued, "a rank issues all sends of a batch before it waits for a message of the batch"
        for work in self._works:
            work.wait()
        if self._side is None:
            self._works, self._operations = [], []  # gloo allows one wait for a message

    def is_complete(self) -> bool:
        """Return whether all operations are known, without waiting, to be complete."""
        return self._is_issued and all(work.is_completed() for work in self._works)

    def _record_arrival(self, side: torch.Stream) -> None:
        with use_stream(side):
            for work in self._works:
                work.wait()
            self.arrival = record_event()


class MessageBatches:
    """The batches that a rank takes part in, each once a step."""

    def __init__(self, program: Program, rank: int) -> None:
        self._batch_of = dict(_batched_messages(program, rank))
        self._sizes = Counter(self._batch_of.values())
        self._open: dict[int, MessageBatch] = {}

    def __contains__(self, producer: Action) -> bool:
        """Return whether the message of an action's tensor is in a batch."""
        return producer in self._batch_of

    def add(self, producer: Action, operation: dist.P2POp, side: torch.Stream | None = None) -> MessageBatch:
        """Add an operation to the batch of its message and return the batch; the last operation issues it."""
        number = self._batch_of[producer]
        batch = self._open.pop(number, None) or MessageBatch(self._sizes[number], side)
        batch.add(operation)
        if not batch.is_issued:
            self._open[number] = batch
        return batch


def message_producer(message: Action) -> tuple[Action, int]:
    """Return the action that produces the tensor of a SEND or RECV, and the stage that consumes it.

    The action names the consumer as its ``other`` stage where the tensor skips stages.
    """
    is_forward, source, target, mb = message_key(message)
    return Action(Op.F if is_forward else Op.B, source, mb, 0, target if message.other >= 0 else -1), target


def batched_pairs(program: Program) -> Sequence[tuple[int, int]]:
    """Return all pairs of ranks (lower, higher) that issue batches, ascending."""
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
