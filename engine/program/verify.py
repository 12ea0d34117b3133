"""Prove that a program is complete, that every message meets its other end, and that it ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.program.action import Action, Op
from engine.program.program import Program

SHOWN = 8
"""So many faults of one kind are told; a program that is wrong throughout says so in a few lines."""

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


def verify(program: Program) -> list[str]:
    """Everything that is wrong with a program, in sentences; an empty list for a sound one.

    Checked: every computation stands once, on its stage's rank; every tensor that changes ranks
    is sent after it is made and received before it is taken; per pair of ranks receives are posted
    in the order of the sends (NCCL knows no tags); gradients are reduced and weights updated once
    they are complete, replicas in one order; and no rank waits for ever.
    """
    return (
        complete(program, program.microbatches)
        or _messages(program)
        or _channel_orders(program) + _updates(program)
        or _deadlock(program)
    )


# ---- computations ----


def complete(program: Program, microbatches: int) -> list[str]:
    """Is every computation there, once, on its stage's rank? What adding transfers relies on."""
    if not program.stages:
        return ["there is not a single computation; give every mesh its actions, such as 0F0 0B0"]
    if faults := list(_first(_outside(program, microbatches))):
        return faults
    forward, backward, inputs, weights = counts = [_count(program, op, microbatches) for op in (Op.F, Op.B, Op.I, Op.W)]
    kinds = [
        _slots(program),
        _missing(Op.F, forward == 0),
        _missing(Op.B, (backward + inputs + weights) == 0),
        *(_repeated(program, op, count) for op, count in zip((Op.F, Op.B, Op.I, Op.W), counts, strict=True)),
        _halves(backward, inputs, weights),
    ]
    return [fault for kind in kinds for fault in _first(kind)] or list(_first(_homes(program)))


def _outside(program: Program, microbatches: int) -> Iterator[str]:
    """Actions of a stage or a microbatch that is not there."""
    of_stage, of_microbatch = program.op != Op.STEP, program.op < Op.REDUCE_GRAD
    for row in np.flatnonzero(of_stage & ((program.stage < 0) | (program.stage >= program.stages))).tolist():
        yield f"{program.row(row)} is of no stage: there are {program.stages} (0 to {program.stages - 1}); remove it"
    beyond = (program.microbatch < 0) | (program.microbatch >= microbatches)
    for row in np.flatnonzero(of_microbatch & beyond).tolist():
        yield f"{program.row(row)} is of no microbatch: there are {microbatches} (0 to {microbatches - 1}); remove it"


def _slots(program: Program) -> Iterator[str]:
    """A slot of two is a forward and a backward of one rank, and not of the same microbatch in the same stage."""
    for row in np.flatnonzero(program.fused).tolist():
        second = program.row(row)
        if row in program.offsets or program.op[row - 1] != Op.F or second.op not in (Op.B, Op.I):
            yield f"{second} overlaps with no forward before it; a slot holds a forward, then a backward"
        elif program.row(row - 1)[1:3] == second[1:3]:
            yield f"{program.row(row - 1)} and {second} cannot overlap: the backward needs that forward; part them"


def _count(program: Program, op: Op, microbatches: int) -> Rows:
    """``[stages, microbatches]`` how often each action of one kind stands."""
    shape, rows = (program.stages, microbatches), program.op == op
    place = program.stage[rows].astype(np.int64) * microbatches + program.microbatch[rows]
    return np.bincount(place, minlength=math.prod(shape)).reshape(shape)


def _missing(op: Op, absent: Mask) -> Iterator[str]:
    for stage, mb in _where(absent):
        yield f"{Action(op, stage, mb)} is missing; every stage runs every microbatch forward and backward"


def _repeated(program: Program, op: Op, count: Rows) -> Iterator[str]:
    for stage, mb in _where(count > 1):
        rows = np.flatnonzero((program.op == op) & (program.stage == stage) & (program.microbatch == mb))
        ranks = np.unique(program.rank[rows]).tolist()
        where = f" ({_ranks(ranks)})" if len(ranks) > 1 else ""
        yield f"{Action(op, stage, mb)} stands {len(rows)} times{where}; keep one"


def _ranks(ranks: list[int]) -> str:
    """``ranks 0, 1 and 3``"""
    *before, last = ranks
    return f"ranks {', '.join(map(str, before))} and {last}"


def _halves(backward: Rows, inputs: Rows, weights: Rows) -> Iterator[str]:
    for s, mb in _where((backward > 0) & (inputs + weights > 0)):
        yield f"stage {s} runs {s}B{mb} and also a half of it; use either B, or I and W"
    for s, mb in _where((backward == 0) & (inputs != weights) & (inputs * weights == 0)):
        there, missing = (Op.I, Op.W) if inputs[s, mb] else (Op.W, Op.I)
        yield f"{Action(missing, s, mb)} is missing; {Action(there, s, mb)} is only half of the backward"


def _homes(program: Program) -> Iterator[str]:
    compute = np.flatnonzero(program.is_compute)
    home = program.placement[program.replica[program.microbatch[compute]], program.stage[compute]]
    for at in np.flatnonzero(home != program.rank[compute]).tolist():
        row = compute[at]
        yield (
            f"{program.row(row)} is on rank {program.rank[row]}, but rank {home[at]} holds stage {program.stage[row]} "
            f"of microbatch {program.microbatch[row]}; a stage's forward and backward belong on one rank"
        )
    for rank in np.flatnonzero(np.bincount(program.rank[compute], minlength=program.ranks) == 0).tolist():
        yield f"rank {rank} computes nothing; give it actions such as 0F0 0B0, or take its mesh away"


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


# ---- updates ----


def _updates(program: Program) -> list[str]:
    """Gradients are reduced and weights updated once, when they are complete.

    A program without any of these is not that far yet: nothing is said of it.
    """
    if not (program.op >= Op.REDUCE_GRAD).any():
        return []
    rows = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    reduces = [program.stage[rows[program.rank[rows] == rank]].tolist() for rank in range(program.ranks)]
    return (
        [fault for rank in range(program.ranks) for fault in (*_steps(program, rank), *_reduces(program, rank))]
        or list(_replicas(program, reduces))
        or _reduction_orders(program, reduces)
    )


def _steps(program: Program, rank: int) -> Iterator[str]:
    rows = program.rows(rank)
    steps = np.flatnonzero(program.op[rows] == Op.STEP) + rows.start
    if len(steps) != 1:
        yield f"rank {rank} has {len(steps) or 'no'} STEP{'s' if len(steps) else ''}; it needs one, at its end"
    elif steps[0] != rows.stop - 1:
        yield f"rank {rank} runs STEP before {program.row(rows.stop - 1)}; move STEP to its end"


def _reduces(program: Program, rank: int) -> Iterator[str]:
    """A stage's gradients are reduced after its last backward, on a rank that holds it, once."""
    rows, held, seen = program.rows(rank), program.stages_of(rank), set()
    for row in np.flatnonzero(program.op[rows] == Op.REDUCE_GRAD) + rows.start:
        reduce, later = program.row(row), slice(row, rows.stop)
        late = np.flatnonzero(program.is_compute[later] & (program.stage[later] == reduce.stage))
        if reduce.stage not in held:
            yield f"rank {rank} runs {reduce}, but holds no copy of stage {reduce.stage}; remove it"
        elif reduce.stage in seen:
            yield f"rank {rank} runs {reduce} more than once; keep one"
        elif len(late):
            yield f"rank {rank} runs {reduce} before {program.row(row + late[-1])}; move it after"
        seen.add(reduce.stage)


def _replicas(program: Program, reduces: list[list[int]]) -> Iterator[str]:
    """All ranks that hold a copy of a stage reduce its gradients, or the copies drift apart."""
    for stage in range(program.stages):
        holders = program.ranks_of(stage)
        for rank in holders:
            if len(holders) > 1 and stage not in reduces[rank]:
                yield (
                    f"rank {rank} never runs {Action(Op.REDUCE_GRAD, stage)}, and stage {stage} has copies on "
                    f"{_ranks(holders)}; add it after the stage's last backward"
                )


def _reduction_orders(program: Program, reduces: list[list[int]]) -> list[str]:
    """There is one order of all shared reductions that every rank follows, so that nobody waits in a ring."""
    shared = {stage for stage in range(program.stages) if len(program.ranks_of(stage)) > 1}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    orders = [[stage for stage in stages if stage in shared] for stages in reduces]
    for stages in orders:
        for before, after in pairwise(stages):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        before, after = error.args[1][:2]
        rank = next(rank for rank, stages in enumerate(orders) if (before, after) in pairwise(stages))
        return [
            f"rank {rank} reduces stage {before} before stage {after}, and ranks that it shares them with wait for "
            "each other in another order; reduce shared stages in ascending order on every rank"
        ]
    return []


# ---- deadlock ----


class _Wait(NamedTuple):
    """A rank that stands still for ever."""

    rank: int
    at: int  # the row that it stands at
    needs: int  # a row that has to run before that one, and cannot


class Standstill(NamedTuple):
    """A rank that waits for ever: the action that it stands at, and one that has to run before."""

    rank: int
    at: Action
    needs: Action  # of this rank, or of the next one of the ring


def ring(program: Program) -> list[Standstill]:
    """The shortest ring of ranks that wait for each other, as :func:`verify` tells it; empty where none is.

    Each rank needs what the next one runs only after the action that it stands at itself.
    """
    return [Standstill(wait.rank, program.row(wait.at), program.row(wait.needs)) for wait in _ring(program)]


def _deadlock(program: Program) -> list[str]:
    """The shortest ring of ranks that wait for each other, and the move that opens it."""
    found = _ring(program)
    return [_told(program, found)] if found else []


def _ring(program: Program) -> list[_Wait]:
    waits = _waits(program)
    rings = [ring for rank in waits if (ring := _shortest_ring(program, waits, rank))]
    return _from_the_move(program, min(rings, key=len)) if rings else []


def _waits(program: Program) -> dict[int, list[_Wait]]:
    """For each rank that stands still, the action it stands at and each that this one needs."""
    graph = program.graph
    stuck = np.zeros(len(program), np.bool_)
    stuck[graph.stuck] = True
    rows = np.flatnonzero(stuck & program.is_compute)
    ranks, first = np.unique(program.rank[rows], return_index=True)
    is_head = np.zeros(len(program), np.bool_)
    is_head[rows[first]] = True
    waits: dict[int, list[_Wait]] = {rank: [] for rank in ranks.tolist()}
    source, target = graph.waits
    blocking = stuck[source] & is_head[target]  # what came before a head on its rank has run
    for needed, row in zip(source[blocking].tolist(), target[blocking].tolist(), strict=True):
        rank = int(program.rank[row])
        waits[rank].append(_Wait(rank, row, needed))
    return waits


def _shortest_ring(program: Program, waits: dict[int, list[_Wait]], start: int) -> list[_Wait]:
    """From ``start`` over the ranks that each one waits for back to it; empty if no way leads back."""
    paths = deque([[wait] for wait in waits[start]])
    seen = set()
    while paths:
        path = paths.popleft()
        rank = int(program.rank[path[-1].needs])
        if rank == start:
            return path
        if rank not in seen:
            seen.add(rank)
            paths.extend([*path, wait] for wait in waits[rank])
    return []


def _from_the_move(program: Program, ring: list[_Wait]) -> list[_Wait]:
    """The ring told from a rank that can run what the others wait for before what it stands at; if
    slots of two are in it, from one of those, which is to be parted.

    Of single actions there always is one: every action comes later in the step than those it needs, so that round the
    ring not every rank can stand at something earlier than what is needed of it. As each such move
    lets an earlier action go first, taking the advice again and again ends with a sound program.
    """
    for first, wait in enumerate(ring):
        if program.doubled[wait.at] or program.doubled[ring[first - 1].needs]:
            return ring[first:] + ring[:first]
    for first, wait in enumerate(ring):
        if _depth(program, ring[first - 1].needs) < _depth(program, wait.at):
            return ring[first:] + ring[:first]
    raise AssertionError("what a computation needs comes before it")


def _depth(program: Program, row: int) -> tuple[int, int]:
    """How far down the step an action is: stages up, stages down, then microbatches; inputs come earlier."""
    op, stage, mb, *_ = program.row(row)
    last = 2 * program.stages
    return {Op.F: stage, Op.W: last}.get(op, last - 1 - stage), mb


def _told(program: Program, ring: list[_Wait]) -> str:
    def name(row: int) -> str:
        return " with ".join(str(program.row(each)) for each in range(row, row + 1 + program.doubled[row]))

    first, last = ring[0], ring[-1]
    told = f"rank {first.rank} waits for ever at {name(first.at)}: it needs {name(first.needs)} first"
    for before, wait in pairwise(ring):
        if before.needs != wait.at:
            told += f", which rank {wait.rank} runs only after {name(wait.at)}"
        told += f", and that needs {name(wait.needs)}"
    if last.needs != first.at:
        told += f", which rank {first.rank} runs only after {name(first.at)}"
    for row in (first.at, last.needs):
        if program.doubled[row]:
            return f"{told}. Part {name(row)} into two"
    return f"{told}. Move {name(first.at)} after {name(last.needs)}"
