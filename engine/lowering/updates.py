"""Updates at the end of a step: gradient reductions over the copies of a stage, then optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.costs.gradient_buckets import gradient_buckets, uses_buckets
from meshwave.engine.document import Design
from meshwave.engine.document.expert_layers import COMMON
from meshwave.engine.experts import expert_schedules
from meshwave.engine.lowering.insertion import Insertion, insert_actions
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


def weight_sharer_counts(design: Design) -> tuple[int, ...]:
    """Return the number of devices of each mesh that share weights, ``[ranks]``.

    These are the data-parallel copies, or all devices if expert layers share a gate or an expert across tensor
    parallelism, or if norms compute a share of the tokens. The number is 1 if the backward of every microbatch shards
    its gradients, because then no reduction is left for the program.
    """
    if design.training.scatters_blocks:
        return (1,) * design.ranks
    if design.training.sequence_parallel:
        return tuple(len(mesh.devices) for mesh in design.meshes)
    if design.model.moe is None:
        return tuple(mesh.dp for mesh in design.meshes)
    replicated = any(
        design.experts.section_of_layer(number).has_replicas for number in (COMMON, *design.experts.own_layers)
    )
    across = replicated or may_have_partial_gate_gradient(design.experts.member)
    return tuple(len(mesh.devices) if across else mesh.dp for mesh in design.meshes)


def bucket_counts(design: Design) -> tuple[int, ...]:
    """Return the number of buckets of gradients of each stage, ``[stages]``; empty if stages are reduced as a whole.

    Raises:
        InputError: there are more stages than layers, or the calibration profile is missing.
    """
    if not uses_buckets(design):
        return ()
    return tuple(map(len, gradient_buckets(design, layers_per_stage(design))))


def may_have_partial_gate_gradient(name: str) -> bool:
    """Return True if a schedule, or one that it may choose, sums the gate's gradient over tensor parallelism."""
    schedule = expert_schedules[name]
    return schedule.gate_is_partial or schedule.chooses


def add_updates(
    program: Program, copies: tuple[int, ...], buckets: Sequence[int] = (), *, clips: bool = False
) -> Program:
    """Add a reduction for each stage with copies, or for each of its buckets, and an optimizer step per rank.

    A stage of a single replica is reduced when its last backward is done and sent, so that the reduction overlaps the
    rest of the step. A bucket starts as soon as its gradients are final, inside that backward. With several replicas, the
    reductions of a rank are in ascending order of stages; a bucket starts inside the last backward if no earlier
    reduction is missing.

    Args:
        program: the program with transfers.
        copies: number of devices that share weights, for each rank; see :func:`weight_sharer_counts`.
        buckets: [stages] number of buckets of gradients, which are reduced one after the other; empty to reduce each stage
            as a whole, after its last backward.
        clips: True if a step needs the norm of all gradients, so that all ranks step together.
    """
    insertions: list[Insertion] = []
    backward = (program.op == Op.B) | (program.op == Op.W) | (program.op == Op.SEND_B)
    for rank in range(program.ranks):
        rows = program.rows(rank)
        held = [s for s in program.stages_of(rank) if program.replicas > 1 or copies[rank] > 1]
        last = np.full(program.stages, rows.stop, np.int64)
        done = np.flatnonzero(backward[rows]) + rows.start
        last[program.stage[done]] = done + 1  # rows ascend: the last assignment wins
        if program.replicas > 1:
            last[:] = rows.stop
        for stage in sorted(held, key=lambda s: (last[s], s)):
            for bucket in range(buckets[stage]) if buckets else [-1]:
                insertions.append(Insertion(rank, int(last[stage]), Op.REDUCE_GRAD, stage, bucket))
        insertions.append(Insertion(rank, rows.stop, Op.STEP))
    return replace(insert_actions(program, insertions), clips=clips)
