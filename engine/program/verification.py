"""Prove that a program is complete, that every message meets its other end, and that it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from meshwave.engine.program._messages import Mask, Rows, _channel_orders, _first, _messages, _where
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.deadlock import _deadlock
from meshwave.engine.program.program import Program


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
