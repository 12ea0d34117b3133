"""Prove that a program is complete, that every message meets its other end, and that it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.program.action import Action, Op
from engine.program.graph import Tables
from engine.program.program import Program

SHOWN = 8
"""So many faults of one kind are told; a program that is wrong throughout says so in a few lines."""


def verify(program: Program) -> list[str]:
    """Everything that is wrong with a program, in sentences; an empty list for a sound one.

    Checked: every computation stands once, on its stage's rank; every tensor that changes ranks
    is sent after it is made and received before it is taken; per pair of ranks receives are posted
    in the order of the sends (NCCL knows no tags); ranks that reduce gradients together do so in the
    same order; and no rank waits for ever.
    """
    return (
        complete(program, program.microbatches)
        or _messages(program)
        or _channel_orders(program) + _collective_orders(program)
        or _deadlock(program)
    )


def verify_compute(program: Program, microbatches: int) -> list[str]:
    """The same for the computations alone, before transfers are added."""
    return complete(program, microbatches) or _deadlock(program)


def complete(program: Program, microbatches: int) -> list[str]:
    """Is every computation there, once, on its stage's rank? What adding transfers relies on."""
    compute = program.is_compute
    stages = program.stages
    if not stages:
        return ["there is not a single computation; give every mesh its actions, such as 0F0 0B0"]
    op, stage, mb, rank = (c[compute] for c in (program.op, program.stage, program.microbatch, program.rank))
    counts = _counts((4, stages, microbatches), op, stage, mb)
    forwards, backwards, inputs, weights = counts
    faults = list(_first(_missing(Op.F, forwards == 0), SHOWN))
    faults += _first(_missing(Op.B, (backwards + inputs + weights) == 0), SHOWN)
    for kind, count in zip((Op.F, Op.B, Op.I, Op.W), counts, strict=True):
        faults += _first((f"{_name(kind, s, m)} stands {count[s, m]} times; keep one" for s, m in _where(count > 1)), SHOWN)
    faults += _first(_split_backwards(backwards, inputs, weights), SHOWN)
    if faults:
        return faults
    home = program.placement[program.replica[mb], stage]
    for at in np.flatnonzero(home != rank)[:SHOWN].tolist():
        faults.append(
            f"{_name(op[at], stage[at], mb[at])} is on rank {rank[at]}, but rank {home[at]} "
            f"holds stage {stage[at]} of microbatch {mb[at]}; a stage's forward and backward belong on one rank"
        )
    return faults


def _counts(shape: tuple[int, ...], *index: NDArray[Any]) -> NDArray[np.int64]:
    """How often each place of ``shape`` is named."""
    flat = np.ravel_multi_index([column.astype(np.intp) for column in index], shape)
    return np.bincount(flat, minlength=math.prod(shape)).reshape(shape)


def _missing(op: Op, absent: NDArray[np.bool_]) -> Iterator[str]:
    for stage, microbatch in _where(absent):
        yield f"{_name(op, stage, microbatch)} is missing; every stage runs every microbatch forward and backward"


def _split_backwards(backwards: NDArray[np.int64], inputs: NDArray[np.int64], weights: NDArray[np.int64]) -> Iterator[str]:
    for s, m in _where((backwards > 0) & (inputs + weights > 0)):
        yield f"stage {s} runs {s}B{m} and also a half of it; use either B, or I and W"
    for s, m in _where((backwards == 0) & (inputs != weights)):
        there, missing = (Op.I, Op.W) if inputs[s, m] else (Op.W, Op.I)
        yield f"{_name(missing, s, m)} is missing; {_name(there, s, m)} is only half of the backward"


def _where(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    for s, m in zip(*(i.tolist() for i in np.nonzero(mask)), strict=True):
        yield s, m


def _name(op: int, stage: int, microbatch: int) -> str:
    return str(Action(Op(int(op)), int(stage), int(microbatch)))


def _first(faults: Iterator[str], limit: int) -> Iterator[str]:
    for number, fault in enumerate(faults):
        if number == limit:
            yield "... and more of this kind"
            return
        yield fault


def _messages(program: Program) -> list[str]:
    """Every hop between ranks has one send, after its maker, and one receive, before its taker."""
    table = program.tables
    faults: list[str] = []
    shape = (program.stages, program.microbatches)
    sends, recvs = (
        [_counts(shape, program.stage[rows], program.microbatch[rows]) for op in ops for rows in [np.flatnonzero(program.op == op)]]
        for ops in ((Op.SEND_F, Op.SEND_B), (Op.RECV_F, Op.RECV_B))
    )
    recv_rows = _recv_rows(program)
    for direction, (maker, taker, send, recv) in enumerate(_hops(table, recv_rows)):
        send_op, recv_op = ((Op.SEND_F, Op.RECV_F), (Op.SEND_B, Op.RECV_B))[direction]
        step = 1 if direction == 0 else -1
        across = program.rank[maker] != program.rank[taker]
        from_stage = np.arange(program.stages - 1) + (direction == 1)
        sent, received = sends[direction][from_stage], recvs[direction][from_stage + step]
        for s, m in _first_pairs((sent != across) | (received != across)):
            stage = int(from_stage[s])
            faults.append(_unmatched(program, stage, stage + step, m, int(sent[s, m]), int(received[s, m]), bool(across[s, m]), send_op, recv_op))
        if faults:
            continue
        late = across & ((send < maker) | (recv > taker))
        wrong_peer = across & ((program.peer[send] != program.rank[taker]) | (program.peer[recv] != program.rank[maker]))
        for s, m in _first_pairs(late):
            faults.append(_out_of_place(program, int(send[s, m]), int(maker[s, m]), int(recv[s, m]), int(taker[s, m])))
        for s, m in _first_pairs(wrong_peer):
            faults.append(
                f"{program.row(int(send[s, m]))} goes to rank {program.peer[send[s, m]]} and {program.row(int(recv[s, m]))} "
                f"expects rank {program.peer[recv[s, m]]}; the tensor goes from rank {program.rank[maker[s, m]]} to rank {program.rank[taker[s, m]]}"
            )
    used = sends[0][-1].any() or sends[1][0].any() or recvs[0][0].any() or recvs[1][-1].any()
    if used:
        faults.append("the first stage receives no activation and the last no gradient; remove that send or receive")
    return faults


def _first_pairs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    return list(_where(mask))[:SHOWN] if mask.any() else []


def _recv_rows(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found = []
    for op in (Op.RECV_F, Op.RECV_B):
        table = np.full((program.stages, program.microbatches), -1, np.int64)
        rows = np.flatnonzero(program.op == op)
        table[program.stage[rows], program.microbatch[rows]] = rows
        found.append(table)
    return found[0], found[1]


def _hops(table: Tables, recv: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Iterator[tuple[NDArray[np.int64], ...]]:
    yield table.forward[:-1], table.forward[1:], table.send_forward[:-1], recv[0][1:]
    yield table.backward[1:], table.backward[:-1], table.send_backward[1:], recv[1][:-1]


def _unmatched(
    program: Program, source: int, target: int, mb: int, sent: int, received: int, across: bool, send: Op, recv: Op
) -> str:
    sending, receiving = Action(send, source, mb), Action(recv, target, mb)
    if not across:
        return f"{sending} or {receiving} is not needed: both stages lie on one rank; remove it"
    if sent == 1 and received == 0:
        return f"{sending} is never received: its other end needs {receiving}"
    if sent == 0 and received == 1:
        return f"{receiving} waits for ever: nobody runs {sending}"
    if sent == received == 0:
        return f"the tensor from stage {source} to stage {target} of microbatch {mb} is never sent; add {sending} and {receiving}"
    return f"{sending} stands {sent} times and {receiving} {received} times; each stands once"


def _out_of_place(program: Program, send: int, maker: int, recv: int, taker: int) -> str:
    if send < maker:
        return f"rank {program.rank[send]} runs {program.row(send)} before {program.row(maker)} has made the tensor; move it after"
    return f"rank {program.rank[recv]} runs {program.row(taker)} before {program.row(recv)}; move the receive before it"


def _channel_orders(program: Program) -> list[str]:
    """Per directed pair of ranks, receives stand in the order of the sends."""
    sends = np.flatnonzero((program.op == Op.SEND_F) | (program.op == Op.SEND_B))
    recvs = np.flatnonzero((program.op == Op.RECV_F) | (program.op == Op.RECV_B))
    ranks = np.int64(program.ranks)
    sent_on = program.rank[sends] * ranks + program.peer[sends]
    received_on = program.peer[recvs] * ranks + program.rank[recvs]
    sends = sends[np.argsort(sent_on, kind="stable")]
    recvs = recvs[np.argsort(received_on, kind="stable")]
    backward = program.op[sends] == Op.SEND_B
    expected = program.stage[sends] + np.where(backward, -1, 1)
    matches = (
        (program.op[recvs] == np.where(backward, Op.RECV_B, Op.RECV_F))
        & (program.stage[recvs] == expected)
        & (program.microbatch[recvs] == program.microbatch[sends])
    )
    wrong = np.flatnonzero(~matches)[:1].tolist()
    return [
        f"rank {program.rank[sends[at]]} sends {program.row(sends[at])} to rank {program.peer[sends[at]]}, which expects "
        f"{program.row(recvs[at])} at that place; receives from one rank must stand in the order of its sends"
        for at in wrong
    ]


def _collective_orders(program: Program) -> list[str]:
    """Ranks that share two reductions run them in the same order."""
    faults = []
    order: dict[int, list[int]] = {}
    for row in np.flatnonzero(program.op == Op.REDUCE_GRAD).tolist():
        order.setdefault(int(program.rank[row]), []).append(int(program.stage[row]))
    sharing = {stage: program.ranks_of(stage) for stages in order.values() for stage in stages}
    for rank, stages in order.items():
        for other in {peer for stage in stages for peer in sharing[stage] if peer > rank}:
            both = set(stages) & set(order.get(other, ()))
            mine, theirs = ([s for s in held if s in both] for held in (stages, order.get(other, [])))
            lacking = [s for s in stages if other in sharing[s] and s not in both]
            if lacking:
                faults.append(f"rank {rank} reduces the gradients of stage {lacking[0]} with rank {other}, which never does")
            elif mine != theirs:
                faults.append(f"ranks {rank} and {other} reduce stages {mine} and {theirs} together; use one order on both")
    return faults


def _deadlock(program: Program) -> list[str]:
    """The shortest ring of ranks that wait for each other, told from one of them."""
    graph = program.graph
    if not len(graph.stuck):
        return []
    stuck = np.zeros(len(program), np.bool_)
    stuck[graph.stuck] = True
    head: dict[int, int] = {}  # the action that each rank waits at
    for row in graph.stuck.tolist():
        if program.is_compute[row]:
            head.setdefault(int(program.rank[row]), row)
    source, target = graph.waits
    needs: dict[int, int] = {}  # what it waits for: not the action before it, which is done
    at_heads = np.isin(target, list(head.values())) & stuck[source]
    for before, row in zip(source[at_heads].tolist(), target[at_heads].tolist(), strict=True):
        needs[row] = before
    ring = min((_ring(program, rank, head, needs) for rank in head), key=len)
    return [_told(program, ring)]


Ring = list[tuple[int, int, int]]  # (rank, the action it waits at, the action it needs)


def _ring(program: Program, rank: int, head: dict[int, int], needs: dict[int, int]) -> Ring:
    seen: dict[int, int] = {}
    walked: Ring = []
    while rank not in seen:
        seen[rank] = len(walked)
        row = head[rank]
        walked.append((rank, row, needs[row]))
        rank = int(program.rank[needs[row]])
    return walked[seen[rank] :]


def _told(program: Program, ring: Ring) -> str:
    rank, row, needed = ring[0]
    owner = int(program.rank[needed])
    told = f"rank {rank} waits for ever at {program.row(row)}: it needs {program.row(needed)} first"
    if owner == rank:
        return f"{told}, which stands later on the same rank; move {program.row(row)} after it"
    for number, (at, blocked, _) in enumerate(ring[1:], start=1):
        wanted = program.row(ring[number - 1][2])
        lead = f", which rank {at} runs only after" if ring[number - 1][2] != blocked else f"; rank {at} itself waits at"
        told += f"{lead} {program.row(blocked)}" if ring[number - 1][2] != blocked else f"{lead} {wanted}"
        told += f", and that needs {program.row(ring[number][2])}"
    last = ring[-1][2]
    closing = f", which rank {rank} runs only after {program.row(row)}" if last != row else ""
    return f"{told}{closing}. Move {program.row(row)} after {_following(program, rank, row, last)}"


def _following(program: Program, rank: int, row: int, last: int) -> str:
    """What has to run before the blocked action so that the ring opens."""
    return str(program.row(last)) if last != row else "what it waits for"
