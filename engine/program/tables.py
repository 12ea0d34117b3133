"""Tables of a program: the row of each computation and of each message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op

Rows = NDArray[np.int64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Columns(Protocol):
    """Columns of a :class:`~meshwave.engine.program.program.Program` that its tables and its graph read.

    This protocol avoids an import cycle between the program and its tables.
    """

    def __len__(self) -> int: ...
    def ranks_of(self, stage: int) -> list[int]: ...
    @property
    def op(self) -> NDArray[np.int8]: ...
    @property
    def stage(self) -> Ints: ...
    @property
    def microbatch(self) -> Ints: ...
    @property
    def other(self) -> Ints: ...
    @property
    def fused(self) -> Bools: ...
    @property
    def next_is_fused(self) -> Bools: ...
    @property
    def is_compute(self) -> Bools: ...
    @property
    def rank(self) -> Ints: ...
    @property
    def slot(self) -> Rows: ...
    @property
    def offsets(self) -> Rows: ...
    @property
    def onward_units(self) -> Ints: ...
    @property
    def skips(self) -> Ints: ...
    @property
    def clips(self) -> bool: ...
    @property
    def ranks(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def tables(self) -> Tables: ...
    @property
    def skip_messages(self) -> Messages: ...


@dataclass(frozen=True)
class Tables:
    """Row of each computation and message, ``[stages, microbatches]``; -1 for none."""

    forward: Rows
    backward: Rows  # B, or I if the backward is split
    weight: Rows  # B, or W if the backward is split
    send_forward: Rows
    send_backward: Rows


class Messages(NamedTuple):
    """Rows of messages, each ``[messages]``: the SEND, and the computations that produce and consume the tensor."""

    send: Rows
    maker: Rows
    taker: Rows


def find_tables(program: Columns) -> Tables:
    """Return the row of each computation and of each message of a program."""
    next_door = None if not len(program.skips) and (program.other < 0).all() else program.other < 0

    def rows_of(*ops: Op) -> Rows:
        table = np.full((program.stages, program.microbatches), -1, np.int64)
        chosen = reduce(np.logical_or, [program.op == op for op in ops])
        rows = np.flatnonzero(chosen if next_door is None else chosen & next_door)
        stage, microbatch = program.stage[rows], program.microbatch[rows]
        known = (stage < program.stages) & (microbatch < program.microbatches) & (microbatch >= 0)
        if not known.all():
            rows, stage, microbatch = rows[known], stage[known], microbatch[known]
        table[stage, microbatch] = rows
        return table

    splits = ((program.op == Op.I) | (program.op == Op.W)).any()
    backward = rows_of(Op.B, Op.I) if splits else rows_of(Op.B)
    return Tables(
        forward=rows_of(Op.F),
        backward=backward,
        weight=rows_of(Op.B, Op.W) if splits else backward,
        send_forward=rows_of(Op.SEND_F),
        send_backward=rows_of(Op.SEND_B),
    )


def find_skip_messages(program: Columns) -> Messages:
    """Return the messages that skip stages and have both ends.

    :mod:`meshwave.engine.program.verification` reports the others.
    """
    table, rows = program.tables, np.flatnonzero(program.other >= 0)
    stage, other, mb = program.stage[rows], program.other[rows], program.microbatch[rows]
    rows = rows[(np.maximum(stage, other) < program.stages) & (mb >= 0) & (mb < program.microbatches)]
    found = []
    for op, made in ((Op.SEND_F, table.forward), (Op.SEND_B, table.backward)):
        send = rows[program.op[rows] == op]
        mb = program.microbatch[send]
        found.append((send, made[program.stage[send], mb], made[program.other[send], mb]))
    send, maker, taker = (np.concatenate(column) for column in zip(*found, strict=True))
    both = (maker >= 0) & (taker >= 0)
    return Messages(send[both], maker[both], taker[both])


def message_units(program: Columns) -> NDArray[np.int32]:
    """Return the number of units in each message, ``[rows]``; 0 for other rows."""
    held = np.zeros(len(program), np.int32)
    for sent, received, towards in ((Op.SEND_F, Op.RECV_B, 1), (Op.SEND_B, Op.RECV_F, -1)):
        rows = np.flatnonzero((program.op == sent) | (program.op == received))
        stage, other = program.stage[rows], program.other[rows]
        end = np.where(other >= 0, other, stage + towards)
        lower, upper = (stage, end) if towards > 0 else (end, stage)
        handed = np.append(
            program.onward_units, 0
        )  # index -1 is 0: the first stage receives nothing, and the last sends nothing
        held[rows] = np.where(other < 0, handed[np.clip(lower, -1, len(handed) - 1)], 0)
        for source, target, tensors in program.skips.tolist():
            held[rows] += tensors * ((lower == source) & (upper == target))
    return held
