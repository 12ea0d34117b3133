"""What every device of a design holds and sends: parameters, activations, messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cost import flops
from engine.cost.crossings import crossing_bytes
from engine.cost.expert_blocks import counts, expert_block, sparse
from engine.cost.flops import PRECISIONS, Workload
from engine.cost.kinds import Kinds
from engine.design import Design, Mesh
from engine.program.action import Op
from engine.program.program import Program

Floats = NDArray[np.float64]


class Sizes(NamedTuple):
    """Bytes on one device, and parameters."""

    parameters: Floats  # [ranks, stages] of one device; 0 where a rank does not hold the stage
    gates: Floats  # [ranks, stages] of them those of gates
    experts: Floats  # [ranks, stages] and those of experts
    static_bytes: Mapping[str, Floats]  # [ranks] weights, gradients, optimizer
    activation_bytes: Floats  # [stages] kept for one microbatch from its forward to its backward
    deferred_bytes: Floats  # [stages] kept for one microbatch between the halves of a split backward
    working_bytes: Floats  # [ranks] largest transient, and the buffers of messages on their way


def workload(design: Design, mesh: Mesh) -> Workload:
    """What one device of ``mesh`` does for one microbatch.

    A microbatch is ``micro_batch_size`` sequences on each data-parallel copy of the first mesh;
    a mesh of another ``dp`` cuts the same sequences otherwise.
    """
    return Workload.of(
        design.model,
        batch=design.training.micro_batch_size * design.meshes[0].dp / mesh.dp,
        tp=mesh.tp,
        precision=design.training.precision,
    )


def copies(program: Program) -> Iterator[tuple[int, int]]:
    """Each (rank, stage) such that the rank holds a copy of the stage."""
    for route in program.placement.tolist():
        yield from ((rank, stage) for stage, rank in enumerate(route))


def sizes(design: Design, program: Program, layers: Sequence[int]) -> Sizes:
    """What the devices hold.

    Weights, gradients and optimizer states are those of all stages of a rank, by precision
    (arXiv:1910.02054, section 3.1: 16 bytes a parameter with AdamW and fp32, 18 with mixed
    precision and fp32 gradients); data parallelism does not cut them. Where replicas of a stage
    lie on meshes of different shape, its activations are those of the larger device. A stage that
    is recomputed keeps its input, and its activations are part of the working set of its backward.
    """
    parameters, copied, gates, experts = np.zeros((4, program.ranks, program.stages))
    activations, deferred = np.zeros((2, program.stages))
    transients = np.zeros(program.ranks)
    loads = [workload(design, mesh) for mesh in design.meshes]
    blocks = [expert_block(design, mesh, load) for mesh, load in zip(design.meshes, loads, strict=True)]
    with_experts = counts(design, layers)
    for rank, stage in copies(program):
        load = loads[rank]
        block, count = blocks[rank], with_experts[stage]
        ends = {"first": stage == 0, "last": stage == program.stages - 1}
        of_stage: dict[str, Any] = {**ends, "sparse": sparse(block, count)}
        parameters[rank, stage] = flops.stage_parameters(load, layers[stage], **of_stage)
        copied[rank, stage] = flops.copied_parameters(load, layers[stage], **of_stage)
        if block is not None:
            gates[rank, stage] = count * block.gate_parameters
            experts[rank, stage] = count * block.expert_parameters
        kept = flops.activation_bytes(load, layers[stage], **of_stage)
        transient = flops.transient_bytes(load, **of_stage)
        if design.pipeline.recomputes(stage):
            kept, transient = flops.input_bytes(load, **ends), transient + kept
        activations[stage] = max(activations[stage], kept)
        deferred[stage] = max(deferred[stage], flops.deferred_bytes(load, layers[stage], **of_stage))
        transients[rank] = max(transients[rank], transient)
    training = design.training
    precision = PRECISIONS[training.precision]
    on_device = parameters.sum(axis=1)
    return Sizes(
        parameters=parameters,
        gates=gates,
        experts=experts,
        static_bytes={
            "weights": on_device * precision.weights + copied.sum(axis=1) * precision.copy,
            "gradients": on_device * precision.gradients,
            "optimizer": on_device * flops.optimizer_state_bytes(training.optimizer, training.precision),
        },
        activation_bytes=activations,
        deferred_bytes=deferred,
        working_bytes=transients + _buffers(program) * np.array([load.hidden_bytes for load in loads]),
    )


@lru_cache(maxsize=8)  # by the program alone: numbers of the design do not matter
def _buffers(program: Program) -> Floats:
    """[ranks] messages that a device holds at once: receives posted and not taken yet, and one that leaves."""
    receives = (program.op == Op.RECV_F) | (program.op == Op.RECV_B)
    sends = (program.op == Op.SEND_F) | (program.op == Op.SEND_B)
    waiting = most_alive(program, receives.astype(np.float64) - _takes_a_message(program))
    return waiting + np.minimum(np.bincount(program.rank[sends], minlength=program.ranks), 1)


def _takes_a_message(program: Program) -> NDArray[np.bool_]:
    """[rows] the computations whose input comes from another rank."""
    compute = np.flatnonzero(program.is_compute & (program.op != Op.W))
    stage, forward = program.stage[compute], program.op[compute] == Op.F
    source = np.where(forward, stage - 1, stage + 1)  # the neighbour that makes the input
    inside = (source >= 0) & (source < program.stages)
    maker = program.placement[program.replica[program.microbatch[compute]], np.where(inside, source, stage)]
    takes = np.zeros(len(program), np.bool_)
    takes[compute] = inside & (maker != program.rank[compute])
    return takes


def most_alive(program: Program, change: Floats) -> Floats:
    """[ranks] the highest that the running sum of ``change``, one a row, gets on each rank."""
    alive = np.concatenate(([0.0], np.cumsum(change)))
    highest = [alive[first : end + 1].max() for first, end in pairwise(program.offsets)]
    return np.array(highest) - alive[program.offsets[:-1]]


def bytes_of_kinds(design: Design, kinds: Kinds, held: Sizes) -> Floats:
    """[kinds] bytes that one device sends in a SEND, or reduces in a REDUCE_GRAD; 0 elsewhere.

    Of a SEND what moves in all, over the devices that send: with tensor parallelism each device of the
    receiver gets all of its copy's ``[b, s, h]``.
    """
    size = np.zeros(len(kinds))
    ends = zip(kinds.rank[kinds.sends].tolist(), kinds.peer[kinds.sends].tolist(), strict=True)
    size[kinds.sends] = [crossing_bytes(design, source, destination) for source, destination in ends]
    reduces = kinds.of(Op.REDUCE_GRAD)
    size[reduces] = gradient_bytes(design, held)[kinds.stage[reduces]]
    return size


def gradient_bytes(design: Design, held: Sizes) -> Floats:
    """[stages] bytes of a stage's gradients on one device."""
    return np.asarray(held.parameters.max(axis=0) * PRECISIONS[design.training.precision].gradients)
