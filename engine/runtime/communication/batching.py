"""Messages that are issued together: the batches of a program, by ``torch.distributed.batch_isend_irecv``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwave.engine.program.acknowledgements import messages_of
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program
from meshwave.engine.runtime.device.accelerator import record_event, use_stream


class Batch:
    """Sends and receives between this process and one other. It is issued with the last of them, and complete as a
    whole; it holds their tensors until then."""

    def __init__(self, size: int, side: torch.Stream | None) -> None:
        """``side`` notes on a GPU when the batch is complete."""
        self._size, self._side = size, side
        self._operations: list[dist.P2POp] = []
        self._works: list[Any] = []
        self._is_issued = False
        self.arrived: torch.Event | None = None

    def add(self, operation: dist.P2POp) -> None:
        self._operations.append(operation)
        if len(self._operations) == self._size:
            self._works, self._is_issued = dist.batch_isend_irecv(self._operations), True
            if self._side is not None:
                self._note_arrival(self._side)

    @property
    def is_issued(self) -> bool:
        return self._is_issued

    def wait(self) -> None:
        """Wait for all of its operations: the host with gloo, the current stream with NCCL."""
        assert self._is_issued, "a computation takes nothing of a batch before the sends of its rank"
        for work in self._works:
            work.wait()
        if self._side is None:
            self._works, self._operations = [], []  # gloo waits for a message once

    def is_gone(self) -> bool:
        return self._is_issued and all(work.is_completed() for work in self._works)

    def _note_arrival(self, side: torch.Stream) -> None:
        with use_stream(side):
            for work in self._works:
                work.wait()
            self.arrived = record_event()


class Batches:
    """The batches that a rank takes part in, each once a step."""

    def __init__(self, program: Program, rank: int) -> None:
        self._batch_of = dict(_messages_in_batches(program, rank))
        self._sizes = Counter(self._batch_of.values())
        self._open: dict[int, Batch] = {}

    def __contains__(self, made: Action) -> bool:
        """Whether the message of what was made is in a batch."""
        return made in self._batch_of

    def join(self, made: Action, operation: dist.P2POp, side: torch.Stream | None = None) -> Batch:
        """Add an operation to the batch of its message and return that; the last one issues it."""
        number = self._batch_of[made]
        batch = self._open.pop(number, None) or Batch(self._sizes[number], side)
        batch.add(operation)
        if not batch.is_issued:
            self._open[number] = batch
        return batch


def made_by(send: Action) -> Action:
    """What a SEND carries, by the action that made it."""
    return send._replace(op=Op.F if send.op == Op.SEND_F else Op.B, fused=0)


def batched_pairs(program: Program) -> Sequence[tuple[int, int]]:
    """Every two ranks (lower, higher) that issue batches, ascending."""
    sends = np.flatnonzero(program.batch >= 0) if program.batched else np.empty(0, np.int64)
    ends = zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)
    return sorted({(min(pair), max(pair)) for pair in ends})


def _messages_in_batches(program: Program, rank: int) -> Iterator[tuple[Action, int]]:
    """The messages in batches that a rank sends or receives, by what they carry, with the number of the batch."""
    if not program.batched:
        return
    send, maker, taker = messages_of(program)
    here = (program.rank[maker] == rank) | (program.rank[taker] == rank)
    for row in send[here & (program.batch[send] >= 0)].tolist():
        yield made_by(program.row(row)), int(program.batch[row])
