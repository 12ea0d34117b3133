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
        stages, microbatches = stage.max(initial=-1) + 1, microbatch.max(initial=-1) + 1
        if stages > program.stages or microbatches > program.microbatches or microbatch.min(initial=0) < 0:
            known = (stage < program.stages) & (microbatch < program.microbatches) & (microbatch >= 0)
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
    units = np.zeros((len(Op), program.stages + 1), np.int32)  # of messages between adjacent stages; 0 for stage -1
    units[[Op.SEND_F, Op.RECV_B], : len(program.onward_units)] = program.onward_units
    units[[Op.SEND_B, Op.RECV_F], 1 : len(program.onward_units) + 1] = program.onward_units
    for source, target, tensors in program.skips.tolist():
        if target == source + 1:
            units[[Op.SEND_F, Op.RECV_B], source] += tensors
            units[[Op.SEND_B, Op.RECV_F], target] += tensors
    held = np.asarray(units[program.op, np.minimum(program.stage, program.stages)])
    rows = np.flatnonzero(program.other >= 0)
    ends = np.sort((program.stage[rows], program.other[rows]), axis=0)
    held[rows] = 0
    for source, target, tensors in program.skips.tolist():
        held[rows] += tensors * ((ends[0] == source) & (ends[1] == target))
    return held
