"""Prove that a program is complete, that every message meets its other end, and that it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program

SHOWN = 8
"""So many faults of one kind are told; a program that is wrong throughout says so in a few lines."""

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def _where(mask: Mask) -> Iterator[tuple[int, int]]:
    yield from zip(*(places.tolist() for places in np.nonzero(mask)), strict=True)


def _first(faults: Iterable[str]) -> Iterator[str]:
    faults = iter(faults)
    yield from islice(faults, SHOWN)
    if next(faults, None):
        yield "... and more of this kind"


# ---- messages ----


class _Hops(NamedTuple):
    """All messages of one direction on their way from a stage to its neighbour, or to those that tensors skip to."""

    send_op: Op
    recv_op: Op
    source: Rows  # [hops] the stage that makes the tensor
    target: Rows  # [hops] the stage that takes it
    maker: Rows  # [hops, microbatches] the row of the computation that makes it
    taker: Rows  # [hops, microbatches]
    skipping: bool  # the ends name each other's stage

    def ends(self, hop: int, mb: int) -> tuple[Action, Action]:
        """The SEND and the RECV of a message."""
        source, target = int(self.source[hop]), int(self.target[hop])
        others = (target, source) if self.skipping else (-1, -1)
        return Action(self.send_op, source, mb, 0, others[0]), Action(self.recv_op, target, mb, 0, others[1])

    def rows(self, program: Program, op: Op) -> tuple[Rows, Rows]:
        """Of all actions of one kind, SEND or RECV, the rows; and the hop of each, -1 for none of these."""
        rows = np.flatnonzero((program.op == op) & ((program.other >= 0) == self.skipping))
        ends = (self.source, self.target) if op == self.send_op else (self.target, self.source)
        if not self.skipping:
            hop = program.stage[rows] - int(ends[0][0]) if len(ends[0]) else np.full(len(rows), -1)
            return rows, np.where((hop >= 0) & (hop < len(ends[0])), hop, -1)
        known = {pair: hop for hop, pair in enumerate(zip(*(end.tolist() for end in ends), strict=True))}
        pairs = zip(program.stage[rows].tolist(), program.other[rows].tolist(), strict=True)
        return rows, np.array([known.get(pair, -1) for pair in pairs], np.int64)


def _messages(program: Program) -> list[str]:
    """Every hop between ranks has one send, after its maker, and one receive, before its taker."""
    directions = [*_next_door(program), *_beyond(program)]
    faults = [fault for hops in directions for fault in _first(_unmatched(program, hops))]
    faults += _first(_nowhere(program, directions))
    return faults or [fault for hops in directions for fault in _first(_misplaced(program, hops))]


def _next_door(program: Program) -> list[_Hops]:
    table, stage = program.tables, np.arange(program.stages)
    return [
        _Hops(Op.SEND_F, Op.RECV_F, stage[:-1], stage[1:], table.forward[:-1], table.forward[1:], False),
        _Hops(Op.SEND_B, Op.RECV_B, stage[1:], stage[:-1], table.backward[1:], table.backward[:-1], False),
    ]


def _beyond(program: Program) -> list[_Hops]:
    """The skips of a program and their gradients."""
    if not program.skips.size and not (program.other >= 0).any():
        return []
    table, pairs = program.tables, np.array(program.beyond, np.int64).reshape(-1, 2)
    low, high = pairs.T
    return [
        _Hops(Op.SEND_F, Op.RECV_F, low, high, table.forward[low], table.forward[high], True),
        _Hops(Op.SEND_B, Op.RECV_B, high, low, table.backward[high], table.backward[low], True),
    ]


def _unmatched(program: Program, hops: _Hops) -> Iterator[str]:
    across = program.rank[hops.maker] != program.rank[hops.taker]
    sent, received = (_count_hops(program, hops, op) for op in (hops.send_op, hops.recv_op))
    for hop, mb in _where((sent != across) | (received != across)):
        send, recv = hops.ends(hop, mb)
        match bool(across[hop, mb]), int(sent[hop, mb]), int(received[hop, mb]):
            case False, sends, _:
                yield f"{send if sends else recv} is not needed: both stages lie on one rank; remove it"
            case True, 0, 0:
                yield (
                    f"the tensor from stage {send.stage} to stage {recv.stage} of microbatch {mb} is never sent; "
                    f"add {send} and {recv}"
                )
            case True, 1, 0:
                yield f"{send} is never received: its other end needs {recv}"
            case True, 0, 1:
                yield f"{recv} waits for ever: nobody runs {send}"
            case _, sends, recvs:
                yield f"there are {sends} of {send} and {recvs} of {recv}; keep one of each"


def _count_hops(program: Program, hops: _Hops, op: Op) -> Rows:
    """``[hops, microbatches]`` how often the SEND or RECV of each message stands."""
    rows, hop = hops.rows(program, op)
    place = (hop * program.microbatches + program.microbatch[rows])[hop >= 0]
    return np.bincount(place, minlength=hops.maker.size).reshape(hops.maker.shape)


def _nowhere(program: Program, directions: list[_Hops]) -> Iterator[str]:
    """The first stage takes no activation and sends no gradient, the last stage the other way round; and
    only what skips stages names the other one."""
    for hops in directions:
        for op in (hops.send_op, hops.recv_op) if hops.skipping else ():
            rows, hop = hops.rows(program, op)
            for row in rows[hop < 0].tolist():
                yield f"{program.row(row)} has no other end: no tensor skips between these stages; remove it"
    for ops, stage, beyond in (
        ((Op.RECV_F, Op.SEND_B), 0, "before the first stage"),
        ((Op.SEND_F, Op.RECV_B), program.stages - 1, "after the last stage"),
    ):
        ends = np.isin(program.op, ops) & (program.stage == stage) & (program.other < 0)
        for row in np.flatnonzero(ends).tolist():
            yield f"{program.row(row)} has no other end: there is nobody {beyond}; remove it"


def _misplaced(program: Program, hops: _Hops) -> Iterator[str]:
    """Ends of a message that stand on the wrong rank, name the wrong one, or stand on the wrong side."""
    send, recv = (_rows(program, hops, op) for op in (hops.send_op, hops.recv_op))
    rank, peer = program.rank, program.peer
    sender, receiver = rank[hops.maker], rank[hops.taker]
    across = sender != receiver
    for end, computed, other in ((send, hops.maker, receiver), (recv, hops.taker, sender)):
        for at in _where(across & (rank[end] != rank[computed])):
            row, made = end[at], computed[at]
            home = f"rank {rank[made]} beside {program.row(made)}"
            yield f"{program.row(row)} is on rank {rank[row]}; it belongs on {home}"
        for at in _where(across & (rank[end] == rank[computed]) & (peer[end] != other)):
            row = end[at]
            yield f"{program.row(row)} of rank {rank[row]} names rank {peer[row]}; its other end is on rank {other[at]}"
    for at in _where(across & (sender == rank[send]) & (send < hops.maker)):
        made = hops.maker[at]
        yield (
            f"rank {rank[made]} runs {program.row(send[at])} before {program.row(made)} has made the tensor; "
            "move it after"
        )
    for at in _where(across & (receiver == rank[recv]) & (recv > hops.taker)):
        taken = hops.taker[at]
        yield (
            f"rank {rank[taken]} runs {program.row(taken)} before {program.row(recv[at])}; move the receive before it"
        )


def _rows(program: Program, hops: _Hops, op: Op) -> Rows:
    """``[hops, microbatches]`` the row of the SEND or RECV of each message, -1 where there is none."""
    table = np.full(hops.maker.shape, -1, np.int64)
    rows, hop = hops.rows(program, op)
    table[hop, program.microbatch[rows]] = rows  # all are of a hop: the others are told before
    return table


def _channel_orders(program: Program) -> list[str]:
    """Per directed pair of ranks, receives stand in the order of the sends."""
    sends = np.flatnonzero(program.is_send)
    recvs = np.flatnonzero((program.op == Op.RECV_F) | (program.op == Op.RECV_B))
    ranks = np.int64(program.ranks)
    sent_on = program.rank[sends] * ranks + program.peer[sends]
    received_on = program.peer[recvs] * ranks + program.rank[recvs]
    sends = sends[np.argsort(sent_on, kind="stable")]
    recvs = recvs[np.argsort(received_on, kind="stable")]
    backward, skipping = program.op[sends] == Op.SEND_B, program.other[sends] >= 0
    expected = np.where(skipping, program.other[sends], program.stage[sends] + np.where(backward, -1, 1))
    matches = (
        (program.op[recvs] == np.where(backward, Op.RECV_B, Op.RECV_F))
        & (program.stage[recvs] == expected)
        & (program.microbatch[recvs] == program.microbatch[sends])
        & (program.other[recvs] == np.where(skipping, program.stage[sends], -1))
    )
    wrong = np.flatnonzero(~matches)[:1].tolist()
    return [
        f"rank {program.rank[sends[at]]} sends {program.row(sends[at])} to rank {program.peer[sends[at]]}, which "
        f"expects {program.row(recvs[at])} at that place; receives from one rank must stand in the order of its sends"
        for at in wrong
    ]
