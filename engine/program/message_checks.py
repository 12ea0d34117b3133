"""Checks that every message of a program has a SEND and a RECV, each at a valid position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program

MAX_LISTED = 8
"""Maximum number of problems of one kind that are listed."""

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def true_entries(mask: Mask) -> Iterator[tuple[int, int]]:
    """Yield the row and column of every True entry."""
    places = np.unravel_index(np.flatnonzero(mask), mask.shape)  # much faster than np.nonzero of a table
    yield from zip(*(each.tolist() for each in places), strict=True)


def problem(code: str, **params: Any) -> Problem:
    """Return a problem of a program; actions among its parameters are converted to text."""
    texts = {name: str(value) if isinstance(value, Action) else value for name, value in params.items()}
    return Problem("", code, texts)


def first_problems(found: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the first problems of one kind, then a problem that states the number of the others."""
    found = iter(found)
    yield from islice(found, MAX_LISTED)
    if next(found, None):
        yield Problem("", "unlisted_problems", {})


# ---- messages ----


@dataclass(frozen=True, eq=False)
class _Hops:
    """All messages of one direction, between adjacent stages or along skip connections."""

    program: Program
    send_op: Op
    recv_op: Op
    source: Rows  # [hops] stage that produces the tensor
    target: Rows  # [hops] stage that receives the tensor
    producer: Rows  # [hops, microbatches] row of the computation that produces the tensor
    consumer: Rows  # [hops, microbatches]
    is_skip: bool  # True if each end names the stage of the other

    def ends(self, hop: int, mb: int) -> tuple[Action, Action]:
        """Return the SEND and the RECV of the message of a hop and a microbatch."""
        source, target = int(self.source[hop]), int(self.target[hop])
        others = (target, source) if self.is_skip else (-1, -1)
        return Action(self.send_op, source, mb, 0, others[0]), Action(self.recv_op, target, mb, 0, others[1])

    @cached_property
    def rows(self) -> Mapping[Op, tuple[Rows, Rows]]:
        """Rows of all SENDs and of all RECVs, and the hop of each; -1 for messages in other directions."""
        return {
            self.send_op: self._find_rows(self.send_op, self.source, self.target),
            self.recv_op: self._find_rows(self.recv_op, self.target, self.source),
        }

    @cached_property
    def tables(self) -> Mapping[Op, Rows]:
        """Row of the SEND and of the RECV of each message, ``[hops, microbatches]``; -1 if it is missing."""
        found = {}
        for op, (rows, hop) in self.rows.items():
            rows, hop = rows[hop >= 0], hop[hop >= 0]
            table = found[op] = np.full(self.producer.shape, -1, np.int64)
            table[hop, self.program.microbatch[rows]] = rows
        return found

    def _find_rows(self, op: Op, here: Rows, there: Rows) -> tuple[Rows, Rows]:
        """Return the rows of one end of the messages, and the hop of each.

        ``here`` and ``there`` are the stages of the ends, ``[hops]``.
        """
        program = self.program
        rows = np.flatnonzero(program.op == op)
        rows = rows[np.flatnonzero((program.other[rows] >= 0) == self.is_skip)]
        if not self.is_skip:
            hop = program.stage[rows] - int(here[0]) if len(here) else np.full(len(rows), -1)
            return rows, np.where((hop >= 0) & (hop < len(here)), hop, -1)
        known = {pair: hop for hop, pair in enumerate(zip(here.tolist(), there.tolist(), strict=True))}
        pairs = zip(program.stage[rows].tolist(), program.other[rows].tolist(), strict=True)
        return rows, np.array([known.get(pair, -1) for pair in pairs], np.int64)


def message_problems(program: Program) -> list[Problem]:
    """Return a problem for every message between ranks without exactly one SEND and one RECV at valid positions.

    The SEND must follow the producer of the tensor, and the RECV must precede its consumer.
    """
    directions = [*_neighbour_hops(program), *_skip_hops(program)]
    found = [each for hops in directions for each in first_problems(_unmatched_messages(program, hops))]
    found += first_problems(_dangling_messages(program, directions))
    return found or [each for hops in directions for each in first_problems(_misplaced_messages(program, hops))]


def _neighbour_hops(program: Program) -> list[_Hops]:
    table, stage = program.tables, np.arange(program.stages)
    return [
        _Hops(program, Op.SEND_F, Op.RECV_F, stage[:-1], stage[1:], table.forward[:-1], table.forward[1:], False),
        _Hops(program, Op.SEND_B, Op.RECV_B, stage[1:], stage[:-1], table.backward[1:], table.backward[:-1], False),
    ]


def _skip_hops(program: Program) -> list[_Hops]:
    """Return the hops of tensors that skip stages, and of their gradients."""
    if not program.skips.size and not (program.other >= 0).any():
        return []
    table, pairs = program.tables, np.array(program.distant_skips, np.int64).reshape(-1, 2)
    low, high = pairs.T
    return [
        _Hops(program, Op.SEND_F, Op.RECV_F, low, high, table.forward[low], table.forward[high], True),
        _Hops(program, Op.SEND_B, Op.RECV_B, high, low, table.backward[high], table.backward[low], True),
    ]


def _unmatched_messages(program: Program, hops: _Hops) -> Iterator[Problem]:
    across = program.rank[hops.producer] != program.rank[hops.consumer]
    if all(len(rows) == np.count_nonzero(across) for rows, _ in hops.rows.values()) and all(
        np.array_equal(table >= 0, across) for table in hops.tables.values()
    ):
        return  # each message has both ends once
    sent, received = (_count_occurrences(program, hops, op) for op in (hops.send_op, hops.recv_op))
    for hop, mb in true_entries((sent != across) | (received != across)):
        send, recv = hops.ends(hop, mb)
        match bool(across[hop, mb]), int(sent[hop, mb]), int(received[hop, mb]):
            case False, sends, _:
                yield problem("unnecessary_message", action=send if sends else recv)
            case True, 0, 0:
                ends = {"source": send.stage, "target": recv.stage, "microbatch": mb}
                yield problem("missing_message", action=send, receive=recv, **ends)
            case True, 1, 0:
                yield problem("missing_receive", action=send, receive=recv)
            case True, 0, 1:
                yield problem("missing_send", action=recv, send=send)
            case _, sends, receives:
                yield problem("repeated_message", action=send, sends=sends, receive=recv, receives=receives)


def _count_occurrences(program: Program, hops: _Hops, op: Op) -> Rows:
    """Return the number of occurrences of the SEND or RECV of each message, ``[hops, microbatches]``."""
    rows, hop = hops.rows[op]
    place = (hop * program.microbatches + program.microbatch[rows])[hop >= 0]
    return np.bincount(place, minlength=hops.producer.size).reshape(hops.producer.shape)


def _dangling_messages(program: Program, directions: list[_Hops]) -> Iterator[Problem]:
    """Yield messages to stages that do not exist, and messages along skip connections that the program does not have."""
    for hops in directions:
        for op in (hops.send_op, hops.recv_op) if hops.is_skip else ():
            rows, hop = hops.rows[op]
            for row in rows[hop < 0].tolist():
                yield problem("unknown_skip", action=program.row(row))
    for ops, stage, code in (
        ((Op.RECV_F, Op.SEND_B), 0, "message_of_first_stage"),
        ((Op.SEND_F, Op.RECV_B), program.stages - 1, "message_of_last_stage"),
    ):
        ends = np.flatnonzero((program.stage == stage) & (program.other < 0))
        for row in ends[np.isin(program.op[ends], ops)].tolist():
            yield problem(code, action=program.row(row))


def _misplaced_messages(program: Program, hops: _Hops) -> Iterator[Problem]:
    """Yield ends of messages that are on the wrong rank, name the wrong peer, or are on the wrong side.

    A SEND must follow the computation that produces its tensor, and a RECV must precede the one that consumes it.
    """
    send, recv = hops.tables[hops.send_op], hops.tables[hops.recv_op]
    rank, peer = program.rank, program.peer
    sender, receiver = rank[hops.producer], rank[hops.consumer]
    across = sender != receiver
    for end, computed, other in ((send, hops.producer, receiver), (recv, hops.consumer, sender)):
        for at in true_entries(across & (rank[end] != rank[computed])):
            action, computation = program.row(end[at]), program.row(computed[at])
            ranks = {"rank": int(rank[end[at]]), "home": int(rank[computed[at]])}
            yield problem("message_on_wrong_rank", action=action, computation=computation, **ranks)
        for at in true_entries(across & (rank[end] == rank[computed]) & (peer[end] != other)):
            row = end[at]
            ranks = {"rank": int(rank[row]), "peer": int(peer[row]), "expected": int(other[at])}
            yield problem("wrong_peer", action=program.row(row), **ranks)
    for code, end, computed, wrong in (
        ("early_send", send, hops.producer, across & (sender == rank[send]) & (send < hops.producer)),
        ("late_receive", recv, hops.consumer, across & (receiver == rank[recv]) & (recv > hops.consumer)),
    ):
        for at in true_entries(wrong):
            action, computation = program.row(end[at]), program.row(computed[at])
            yield problem(code, rank=int(rank[computed[at]]), action=action, computation=computation)


def channel_problems(program: Program) -> list[Problem]:
    """Return a problem for every directed pair of ranks whose receives are not in the order of the sends."""
    sends = np.flatnonzero(program.is_send)
    recvs = np.flatnonzero((program.op == Op.RECV_F) | (program.op == Op.RECV_B))
    ranks = np.int64(program.ranks)
    sent_on = program.rank[sends] * ranks + program.peer[sends]
    received_on = program.peer[recvs] * ranks + program.rank[recvs]
    sends = sends[np.argsort(sent_on, kind="stable")]
    recvs = recvs[np.argsort(received_on, kind="stable")]
    op, stage, other = program.op[sends], program.stage[sends], program.other[sends]
    skipping = other >= 0
    towards = np.where(op == Op.SEND_F, np.int32(1), np.int32(-1))
    matches = (
        (program.op[recvs] == op + np.int8(Op.RECV_F - Op.SEND_F))
        & (program.stage[recvs] == np.where(skipping, other, stage + towards))
        & (program.microbatch[recvs] == program.microbatch[sends])
        & (program.other[recvs] == np.where(skipping, stage, np.int32(-1)))
    )
    return [
        problem(
            "receive_order",
            action=program.row(sends[at]),
            receive=program.row(recvs[at]),
            rank=int(program.rank[sends[at]]),
            peer=int(program.peer[sends[at]]),
        )
        for at in np.flatnonzero(~matches)[:1].tolist()
    ]
