"""Add a SEND and a RECV wherever neighbouring stages lie on different ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.program.action import Op
from engine.program.program import Program

LOOKAHEAD = 2
"""A receive is posted this many computations ahead of the one that takes it (Hanayo, section 4:
the worker looks ahead to the next receive before it computes)."""

Rows = NDArray[np.int64]


def add_transfers(program: Program) -> Program:
    """A program of computations with its transfers.

    A SEND follows the slot of the computation that made the tensor. Receives of one sender are posted in the
    order of its sends, because NCCL matches messages by order alone, and before the sends of the
    same gap, because gloo carries both directions at once only then.
    """
    producer, consumer, op, stage = _messages(program)
    slot = _slots(program, producer, consumer)
    n = len(program)
    in_gap = np.bincount(slot, minlength=n)  # receives posted before each row
    after_recvs = np.cumsum(in_gap)
    after = producer + np.append(program.fused[1:], False)[producer]  # the last row of the slot that makes the tensor
    made = np.bincount(after, minlength=n)  # sends that follow each row: two of a fused slot at most
    sends_before = np.concatenate(([0], np.cumsum(made)))[:-1]
    rows = np.arange(n) + after_recvs + sends_before  # where each computation moves

    last = np.zeros(n, np.bool_)
    last[program.offsets[1:][np.diff(program.offsets) > 0] - 1] = True
    number = np.where(after == producer, made[after] - 1, 0)  # of the sends of its slot: the forward's first
    following = rows[np.minimum(after + 1, n - 1)] - made[after] + number
    sends = np.where(last[after], rows[after] + 1 + number, following)

    by_slot = np.argsort(slot, kind="stable")  # within a gap in the order of the senders
    gap = slot[by_slot]
    place = np.arange(len(gap)) - (after_recvs - in_gap)[gap]  # number within its gap
    closing = np.concatenate(([0], np.where(last, 0, made)))  # the sends that close the gap before a row
    recvs = np.empty_like(slot)
    recvs[by_slot] = rows[gap] - closing[gap] - in_gap[gap] + place

    total = n + 2 * len(producer)
    columns = {name: np.empty(total, np.int32) for name in ("op", "stage", "microbatch", "peer")}
    for name, column in columns.items():
        column[rows] = getattr(program, name)
    fused = np.zeros(total, np.bool_)
    fused[rows] = program.fused
    sender, receiver = program.rank[producer], program.rank[consumer]
    forward = op == Op.F
    for at, kinds, of_stage, peer in (
        (sends, (Op.SEND_F, Op.SEND_B), stage, receiver),
        (recvs, (Op.RECV_F, Op.RECV_B), program.stage[consumer], sender),
    ):
        columns["op"][at] = np.where(forward, *kinds)
        columns["stage"][at] = of_stage
        columns["microbatch"][at] = program.microbatch[producer]
        columns["peer"][at] = peer
    counts = np.bincount(np.concatenate([sender, receiver]), minlength=program.ranks)
    return Program(
        op=columns["op"].astype(np.int8),
        stage=columns["stage"],
        microbatch=columns["microbatch"],
        peer=columns["peer"],
        fused=fused,
        offsets=program.offsets + np.concatenate(([0], np.cumsum(counts))),
        placement=program.placement,
        replica=program.replica,
    )


def _messages(program: Program) -> tuple[Rows, Rows, NDArray[np.int8], NDArray[np.int32]]:
    """Every tensor that changes ranks: who makes it, who takes it; in the order of the makers."""
    table = program.tables
    producer = np.concatenate([table.forward[:-1].ravel(), table.backward[1:].ravel()])
    consumer = np.concatenate([table.forward[1:].ravel(), table.backward[:-1].ravel()])
    across = program.rank[producer] != program.rank[consumer]
    producer, consumer = producer[across], consumer[across]
    order = np.argsort(producer, kind="stable")
    producer, consumer = producer[order], consumer[order]
    return producer, consumer, program.op[producer], program.stage[producer]


def _slots(program: Program, producer: Rows, consumer: Rows) -> Rows:
    """The row before which each receive is posted.

    Going back through the messages of one sender, none is posted later than those sent after
    it; then all are moved ahead by the same number of computations, which keeps their order.
    """
    if not len(producer):
        return np.empty(0, np.int64)
    sender, receiver = program.rank[producer].astype(np.int64), program.rank[consumer]
    channel = sender * program.ranks + receiver
    order = np.argsort(channel, kind="stable")
    apart = channel[order] * len(program)  # keeps the channels apart in one running minimum
    latest = np.minimum.accumulate((consumer[order] + apart)[::-1])[::-1] - apart
    slot = np.empty_like(consumer)
    slot[order] = np.maximum(latest - LOOKAHEAD, program.offsets[receiver[order]])
    return program.slot[slot]
