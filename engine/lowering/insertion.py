"""Insertion of actions on weights and gradients into a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


class Insertion(NamedTuple):
    """Action to insert into the order of a rank, and the row before which it runs; see :class:`Action` for the rest."""

    rank: int
    row: int
    op: Op
    stage: int = -1
    microbatch: int = -1


def insert_actions(program: Program, insertions: Sequence[Insertion]) -> Program:
    """Return the program with actions inserted; those before the same row of a rank keep their order."""
    ranks, at, ops, stages, microbatches = np.array(insertions, np.int64).reshape(-1, len(Insertion._fields)).T
    added = np.bincount(ranks, minlength=program.ranks)
    return replace(
        program,
        op=np.insert(program.op, at, ops.astype(np.int8)),
        stage=np.insert(program.stage, at, stages.astype(np.int32)),
        microbatch=np.insert(program.microbatch, at, microbatches.astype(np.int32)),
        peer=np.insert(program.peer, at, np.int32(-1)),
        fused=np.insert(program.fused, at, False),
        other=np.insert(program.other, at, np.int32(-1)),
        offsets=program.offsets + np.concatenate(([0], np.cumsum(added))),
    )
