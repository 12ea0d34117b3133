"""Verification of a program: complete computations, matching messages, consistent updates and no deadlock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.deadlock import deadlock_problems
from meshwave.engine.program.message_checks import (
    Mask,
    Rows,
    channel_problems,
    first_problems,
    message_problems,
    problem,
    true_entries,
)
from meshwave.engine.program.program import Program


def verify(program: Program) -> list[Problem]:
    """Return all problems of a program; empty if it is valid.

    In a valid program every computation occurs once, on the rank of its stage; every tensor that changes ranks is sent
    after it is produced and received before it is consumed; per pair of ranks, receives are posted in the order of the
    sends (NCCL has no tags); weights are unsharded while they are needed; gradients are reduced and weights updated when they are complete, by all replicas in the
    same order; and there is no deadlock.
    """
    return computation_problems(program, program.microbatches) or communication_problems(program)


def communication_problems(program: Program) -> list[Problem]:
    """Return all problems of messages, updates and gathers, and a deadlock, in a program with valid computations."""
    return (
        message_problems(program)
        or channel_problems(program) + _update_problems(program) + gather_problems(program)
        or deadlock_problems(program)
    )


# ---- computations ----


def computation_problems(program: Program, microbatches: int) -> list[Problem]:
    """Return a problem for every computation that does not occur exactly once, on the rank that holds its stage."""
    if not program.stages:
        return [problem("no_computations")]
    if found := list(first_problems(_range_problems(program, microbatches))):
        return found
    forward, backward, inputs, weights = counts = [
        _count_actions(program, op, microbatches) for op in (Op.F, Op.B, Op.I, Op.W)
    ]
    kinds = [
        _slot_problems(program),
        _missing_actions(Op.F, forward == 0),
        _missing_actions(Op.B, (backward + inputs + weights) == 0),
        *(_repeated_actions(program, op, count) for op, count in zip((Op.F, Op.B, Op.I, Op.W), counts, strict=True)),
        _half_backward_problems(backward, inputs, weights),
    ]
    return [each for kind in kinds for each in first_problems(kind)] or list(first_problems(_rank_problems(program)))


def _range_problems(program: Program, microbatches: int) -> Iterator[Problem]:
    """Yield a problem for every action of a stage or microbatch that does not exist."""
    has_stage, has_microbatch = program.op != Op.STEP, program.op < Op.REDUCE_GRAD
    for row in np.flatnonzero(has_stage & ((program.stage < 0) | (program.stage >= program.stages))).tolist():
        action = program.row(row)
        yield problem("unknown_stage", action=action, stage=action.stage, stages=program.stages)
    outside = (program.microbatch < 0) | (program.microbatch >= microbatches)
    for row in np.flatnonzero(has_microbatch & outside).tolist():
        action = program.row(row)
        yield problem("unknown_microbatch", action=action, microbatch=action.microbatch, microbatches=microbatches)


def _slot_problems(program: Program) -> Iterator[Problem]:
    """Yield a problem for every shared slot that is not a forward and a backward of different stages or microbatches."""
    for row in np.flatnonzero(program.fused).tolist():
        second = program.row(row)
        if row in program.offsets or program.op[row - 1] != Op.F or second.op not in (Op.B, Op.I):
            yield problem("slot_without_forward", action=second)
        elif program.row(row - 1)[1:3] == second[1:3]:
            yield problem("slot_of_one_microbatch", action=program.row(row - 1), backward=second)


def _count_actions(program: Program, op: Op, microbatches: int) -> Rows:
    """Return the number of occurrences of each action ``op``, ``[stages, microbatches]``."""
    shape, rows = (program.stages, microbatches), program.op == op
    place = program.stage[rows].astype(np.int64) * microbatches + program.microbatch[rows]
    return np.bincount(place, minlength=math.prod(shape)).reshape(shape)


def _missing_actions(op: Op, absent: Mask) -> Iterator[Problem]:
    for stage, mb in true_entries(absent):
        yield problem("missing_action", action=Action(op, stage, mb))


def _repeated_actions(program: Program, op: Op, count: Rows) -> Iterator[Problem]:
    for stage, mb in true_entries(count > 1):
        rows = np.flatnonzero((program.op == op) & (program.stage == stage) & (program.microbatch == mb))
        ranks = np.unique(program.rank[rows]).tolist()
        yield problem("repeated_action", action=Action(op, stage, mb), count=len(rows), ranks=ranks)


def _half_backward_problems(backward: Rows, inputs: Rows, weights: Rows) -> Iterator[Problem]:
    for stage, mb in true_entries((backward > 0) & (inputs + weights > 0)):
        half = Action(Op.I if inputs[stage, mb] else Op.W, stage, mb)
        yield problem("backward_and_half", action=Action(Op.B, stage, mb), half=half, stage=stage)
    for stage, mb in true_entries((backward == 0) & (inputs != weights) & (inputs * weights == 0)):
        present, missing = (Op.I, Op.W) if inputs[stage, mb] else (Op.W, Op.I)
        yield problem("missing_half", action=Action(missing, stage, mb), half=Action(present, stage, mb))


def _rank_problems(program: Program) -> Iterator[Problem]:
    """Yield a problem for every computation on a rank without its stage, and for every rank without computations."""
    compute = np.flatnonzero(program.is_compute)
    home = program.placement[program.replica[program.microbatch[compute]], program.stage[compute]]
    for at in np.flatnonzero(home != program.rank[compute]).tolist():
        action, rank = program.row(compute[at]), int(program.rank[compute[at]])
        place = {"stage": action.stage, "microbatch": action.microbatch}
        yield problem("wrong_rank", action=action, rank=rank, home=int(home[at]), **place)
    for rank in np.flatnonzero(np.bincount(program.rank[compute], minlength=program.ranks) == 0).tolist():
        yield problem("idle_rank", rank=rank)


# ---- updates ----


class Reduction(NamedTuple):
    """Reduction of the gradients of a stage, or of one of its buckets; -1 for the whole stage."""

    stage: int
    bucket: int


def _update_problems(program: Program) -> list[Problem]:
    """Return the problems of reductions and optimizer steps, which must occur once, when their gradients are complete.

    A program without reductions and steps has no updates yet and passes.
    """
    if not np.isin(program.op, (Op.REDUCE_GRAD, Op.STEP)).any():
        return []
    ranks = range(program.ranks)
    reduces: list[list[Reduction]] = [[] for _ in ranks]
    for row in np.flatnonzero(program.op == Op.REDUCE_GRAD).tolist():
        reduces[program.rank[row]].append(Reduction(int(program.stage[row]), int(program.microbatch[row])))
    return (
        [each for rank in ranks for each in (*_step_problems(program, rank), *_reduction_problems(program, rank))]
        or list(_missing_reductions(program, reduces))
        or _reduction_orders(program, reduces)
    )


def _step_problems(program: Program, rank: int) -> Iterator[Problem]:
    rows = program.rows(rank)
    steps = np.flatnonzero(program.op[rows] == Op.STEP) + rows.start
    if len(steps) != 1:
        yield problem("step_count", rank=rank, count=len(steps))
    elif steps[0] != rows.stop - 1:
        yield problem("early_step", rank=rank, action=program.row(rows.stop - 1))


def _reduction_problems(program: Program, rank: int) -> Iterator[Problem]:
    """Yield the problems of a rank's reductions: each stage once, on a rank that holds it, after its last backward.

    A stage is reduced as a whole or in buckets, each of them once.
    """
    rows, stages, seen = program.rows(rank), program.stages_of(rank), set[Reduction]()
    for row in np.flatnonzero(program.op[rows] == Op.REDUCE_GRAD) + rows.start:
        reduce, later = program.row(row), slice(row, rows.stop)
        late = np.flatnonzero(program.is_compute[later] & (program.stage[later] == reduce.stage))
        if reduce.stage not in stages:
            yield problem("unknown_reduction", rank=rank, action=reduce, stage=reduce.stage)
        elif _is_repeated(Reduction(reduce.stage, reduce.microbatch), seen):
            yield problem("repeated_reduction", rank=rank, action=reduce)
        elif len(late):
            yield problem("early_reduction", rank=rank, action=reduce, computation=program.row(row + late[-1]))
        seen.add(Reduction(reduce.stage, reduce.microbatch))


def _is_repeated(reduce: Reduction, seen: set[Reduction]) -> bool:
    """Return True if an earlier reduction reduces the same gradients."""
    stage, bucket = reduce
    of_stage = {each.bucket for each in seen if each.stage == stage}
    return bool(of_stage) if bucket < 0 else not of_stage.isdisjoint((bucket, -1))


def _missing_reductions(program: Program, reduces: list[list[Reduction]]) -> Iterator[Problem]:
    """Yield a problem for every rank that does not reduce all gradients of a stage that another rank reduces or holds.

    The copies would diverge.
    """
    for stage in range(program.stages):
        holders = program.ranks_of(stage)
        last = max((each.bucket for rank in holders for each in reduces[rank] if each.stage == stage), default=-1)
        buckets = range(last + 1) if last >= 0 else [-1] if len(holders) > 1 else []
        for rank, bucket in product(holders, buckets):
            if Reduction(stage, bucket) not in reduces[rank]:
                reduce = Action(Op.REDUCE_GRAD, stage, bucket)
                yield problem("missing_reduction", rank=rank, action=reduce, stage=stage, ranks=list(holders))


def _reduction_orders(program: Program, reduces: list[list[Reduction]]) -> list[Problem]:
    """Return a problem if no common order of shared reductions fits every rank, so that ranks would deadlock."""
    shared = {stage for stage in range(program.stages) if len(program.ranks_of(stage)) > 1}
    sorter: TopologicalSorter[Reduction] = TopologicalSorter()
    orders = [[each for each in found if each.stage in shared] for found in reduces]
    for order in orders:
        for before, after in pairwise(order):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        before, after = error.args[1][:2]
        rank = next(rank for rank, order in enumerate(orders) if (before, after) in pairwise(order))
        actions = {name: Action(Op.REDUCE_GRAD, *each) for name, each in (("before", before), ("after", after))}
        return [problem("reduction_order", rank=rank, **actions)]
    return []


def gather_problems(program: Program) -> list[Problem]:
    """Return the problems of UNSHARD and RESHARD actions; a rank without any of them has its weights at all times."""
    gathers = np.isin(program.op, (Op.UNSHARD, Op.RESHARD))
    ranks = np.unique(program.rank[gathers]).tolist()
    return [each for rank in ranks for each in first_problems(_rank_gather_problems(program, rank))]


def _rank_gather_problems(program: Program, rank: int) -> Iterator[Problem]:
    """Yield a problem for each UNSHARD or RESHARD out of turn, and for each computation of a stage that is not unsharded."""
    held: set[int] = set()
    for action in program.actions(rank):
        params = {"rank": rank, "action": action, "stage": action.stage}
        if action.op.is_compute and action.stage not in held:
            yield problem("missing_unshard", **params, unshard=Action(Op.UNSHARD, action.stage))
        elif action.op == Op.UNSHARD:
            if action.stage in held:
                yield problem("repeated_unshard", **params)
            held.add(action.stage)
        elif action.op == Op.RESHARD:
            if action.stage not in held:
                yield problem("repeated_reshard", **params)
            held.discard(action.stage)
    for stage in sorted(held):
        yield problem("missing_reshard", rank=rank, action=Action(Op.RESHARD, stage), stage=stage)
