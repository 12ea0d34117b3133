"""Checks of gathers: a rank that unshards stages must hold a stage unsharded to compute it, and reshard it in the step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.message_checks import first_problems, problem
from meshwave.engine.program.program import Program


def gather_problems(program: Program) -> list[Problem]:
    """Return the problems of UNSHARD and RESHARD actions; a rank without any of them has its weights at all times."""
    gathers = np.isin(program.op, (Op.UNSHARD, Op.RESHARD))
    ranks = np.unique(program.rank[gathers]).tolist()
    return [each for rank in ranks for each in first_problems(_rank_problems(program, rank))]


def _rank_problems(program: Program, rank: int) -> Iterator[Problem]:
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
