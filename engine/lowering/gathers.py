"""Gathers of sharded weights: UNSHARD ahead of the computations of a stage, and RESHARD after them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.lowering.insertion import Insertion, insert_actions
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


def unsharded_stage_counts(design: Design) -> tuple[int, ...]:
    """Return the number of stages whose weights each mesh holds unsharded at once, ``[ranks]``.

    It is 0 for a mesh whose devices have no weights to gather from each other.
    """
    return tuple(design.unsharded_stages if mesh.dp > 1 else 0 for mesh in design.meshes)


def add_gathers(program: Program, limits: Sequence[int]) -> Program:
    """Add an UNSHARD before the computations that need a stage, and a RESHARD after them.

    A rank holds the stages of its next computations unsharded, so that a stage is gathered while earlier ones compute.
    Before a slot, it reshards the stages that are not among them and unshards those that are new, in the order in which
    they are needed. This is the placement of torch.distributed.pipelining.

    Args:
        program: the program with transfers.
        limits: maximum number of unsharded stages of each rank; see :func:`unsharded_stage_counts`.
    """
    insertions = [each for rank, limit in enumerate(limits) if limit for each in _rank_gathers(program, rank, limit)]
    return insert_actions(program, insertions) if insertions else program


def _rank_gathers(program: Program, rank: int, limit: int) -> Iterator[Insertion]:
    """Yield the insertions of a rank in order."""
    rows = program.rows(rank)
    slots = np.flatnonzero(program.is_compute[rows] & ~program.fused[rows]) + rows.start
    stages = [program.stage[row : row + 1 + program.next_is_fused[row]].tolist() for row in slots.tolist()]
    held: list[int] = []
    for row, needed in zip([*slots.tolist(), rows.stop], [*upcoming_stages(stages, limit), []], strict=True):
        yield from (Insertion(rank, row, Op.RESHARD, stage) for stage in held if stage not in needed)
        yield from (Insertion(rank, row, Op.UNSHARD, stage) for stage in needed if stage not in held)
        held = needed


def upcoming_stages(slots: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """Return for each slot the stages that it and the following slots compute, nearest first.

    Args:
        slots: stages of each slot.
        limit: maximum number of stages; a shared slot has at least these.
    """
    found: list[list[int]] = []
    nearest: list[int] = []
    for needed in reversed(slots):
        nearest = list(dict.fromkeys([*needed, *nearest]))
        found.append(nearest[: max(limit, len(set(needed)))])
    return found[::-1]
