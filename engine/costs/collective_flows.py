"""Collectives of a design as messages: gradient reductions, and exchanges inside stages.

The cost model determines the seconds of collectives; this module returns messages and their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import transformer_layers as flops
from meshwave.engine.costs.alpha_beta import collective_seconds
from meshwave.engine.costs.block_models import BlockModel
from meshwave.engine.costs.context_exchange import ContextCost, ContextCosts, Exposed
from meshwave.engine.costs.device_sizes import Sizes, device_workload, skip_joins_per_stage
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.expert_blocks import (
    EXPERTS,
    ExpertCounts,
    Sharing,
    expert_block,
    expert_blocks,
    expert_counts,
    expert_sharing,
)
from meshwave.engine.costs.fabric import Fabric, equal_ring_messages, ring_messages
from meshwave.engine.costs.kernels import recomputed_share, recomputes_experts
from meshwave.engine.costs.network import NetworkBuilder, exchange_usage
from meshwave.engine.costs.operators import Operator, attention_product, element_sizes
from meshwave.engine.costs.port_usage import Messages, Usage, sum_usages
from meshwave.engine.costs.reductions import (
    ReplicatedBytes,
    reduced_gradients,
    stage_replicas,
    tied_table_groups,
    updated_weights,
)
from meshwave.engine.costs.sharding import reduction_rounds, weight_groups
from meshwave.engine.document import Design, Mesh
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program


def reduction_rings(design: Design, program: Program, held: Sizes) -> list[list[Sharing]]:
    """Return the rings of devices that reduce gradients together, by stage; their ``share`` is in bytes."""
    return _replica_rings(design, program, reduced_gradients(design, held))


def _replica_rings(design: Design, program: Program, held: ReplicatedBytes) -> list[list[Sharing]]:
    """Return the rings of devices that share state, by stage, in the order of their collectives."""
    found = []
    for stage in range(program.stages):
        each = stage_replicas(design, program, stage, held)
        rings = [Sharing(part.devices, part.share * each.experts) for part in each.expert_groups]
        rings += [Sharing(tuple(each.everyone), each.of_everyone)] if each.of_everyone else []
        found.append(rings + [Sharing(tuple(group), each.shared) for group in each.groups])
    return found


def reduction_messages(design: Design, program: Program, held: Sizes) -> Mapping[int, Messages]:
    """Return the messages of the rings that reduce the gradients of each stage."""
    return dict(enumerate(_ring_messages(reduction_rings(design, program, held), reduction_rounds(design))))


def _ring_messages(stages: Sequence[Sequence[Sharing]], rounds: int) -> list[Messages]:
    """Return the messages of the rings of each stage."""
    return [Messages.join([ring_messages(ring.devices, ring.share, rounds) for ring in rings]) for rings in stages]


def step_rings(design: Design, program: Program, held: Sizes) -> list[list[tuple[Sharing, int]]]:
    """Return the rings of devices in the optimizer step of each rank, and the rounds of each ring, ``[ranks]``.

    A rank takes part in gathers of the weights of its stages, and in the sum of the gradients of a tied table. The
    ``share`` of a ring is in bytes.
    """
    weights = updated_weights(design, held)
    gathers = _replica_rings(design, program, weights) if weights else [[] for _ in range(program.stages)]
    found = [
        [(ring, 1) for stage in program.stages_of(rank) for ring in gathers[stage]] for rank in range(program.ranks)
    ]
    ranks, groups, size = tied_table_groups(design, program)
    for rank in ranks:
        found[rank] += [(Sharing(tuple(group), size), 2) for group in groups]
    return found


def step_messages(design: Design, program: Program, held: Sizes) -> list[Messages]:
    """Return the messages that the devices of each rank send in its optimizer step, ``[ranks]``."""
    return [
        Messages.join([ring_messages(ring.devices, ring.share, rounds) for ring, rounds in rings]).sent_by(mesh.devices)
        for rings, mesh in zip(step_rings(design, program, held), design.meshes, strict=True)
    ]


def gather_rings(design: Design, program: Program, held: Sizes) -> list[list[Sharing]]:
    """Return the rings of devices that gather sharded weights together, by stage; their ``share`` is in bytes."""
    of_experts, found = element_sizes(design.training).computed_bytes(held.experts, held.experts), []
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        experts = float(of_experts[:, stage].max())
        shared = float(held.computed_bytes[:, stage].max()) - experts
        parts = expert_sharing(design, meshes)[0] if experts else []
        rings = [Sharing(tuple(group), shared) for group in weight_groups(meshes)]
        found.append(rings + [Sharing(part.devices, part.share * experts) for part in parts])
    return found


def gather_messages(design: Design, program: Program, held: Sizes) -> Mapping[int, Messages]:
    """Return the messages of the rings that gather the sharded weights of each stage."""
    return dict(enumerate(_ring_messages(gather_rings(design, program, held), rounds=1)))


def add_exchanges(
    builder: NetworkBuilder,
    design: Design,
    kinds: Kinds,
    layers: Sequence[int],
    waits: NDArray[np.float64],
    *,
    measured: bool = False,
) -> None:
    """Add the collectives inside computations to a network; they alternate with computation once per layer.

    Args:
        builder: the network builder that receives the exchanges.
        design: the design.
        kinds: distinct actions of the program.
        layers: layers of each stage.
        waits: [kinds] seconds for which each computation waits for exchanges.
        measured: True if the seconds of collectives are from a calibration.
    """
    if isinstance(design.model, BlockModel):  # skip meshes whose devices exchange nothing inside a stage
        return
    stages = blocks_of_stages(design, layers)
    usage_of = cache(lambda rank, stage: exchange_usages(builder.fabric, design, design.meshes[rank], stages[stage]))
    for row in np.flatnonzero(waits > 0).tolist():
        stage = int(kinds.stage[row])
        forward, backward = usage_of(int(kinds.rank[row]), stage)
        again = [forward] if design.pipeline.recomputes(stage) else []
        usage = forward if kinds.op[row] == Op.F else sum_usages([*again, backward])
        builder.add_exchange(row, usage, float(waits[row]), layers[stage], measured=measured)


@dataclass(frozen=True, eq=False)
class StateFlows:
    """Collectives by which devices share training state beside the computations of a stage."""

    messages: Mapping[int, Messages]  # by stage
    seconds: NDArray[np.float64]  # [ranks, stages] without contention


def add_state_flows(
    builder: NetworkBuilder,
    design: Design,
    kinds: Kinds,
    layers: Sequence[int],
    gathers: StateFlows,
    scatters: StateFlows,
    *,
    measured: bool,
) -> None:
    """Add the gathers of sharded weights and the scatters of their gradients, which run beside computations.

    Args:
        builder: the network builder that receives the flows.
        design: the design.
        kinds: distinct actions of the program.
        layers: layers of each stage.
        gathers: the gathers of each stage in a forward, and in each half of a backward.
        scatters: the scatters of each stage in a full backward, or in a weight gradient.
        measured: True if their seconds are from a calibration.
    """

    @cache
    def usage_of(flows: StateFlows, rank: int, stage: int) -> Usage:
        return builder.fabric.usage(flows.messages[stage].sent_by(design.meshes[rank].devices))

    for row in kinds.indices_of(Op.F, Op.B, Op.I, Op.W).tolist():
        op, rank, stage = Op(int(kinds.op[row])), int(kinds.rank[row]), int(kinds.stage[row])
        counts = zip((gathers, scatters), state_collective_counts(design, op, stage), strict=True)
        used = [(flows, count) for flows, count in counts if count * flows.seconds[rank, stage] > 0]
        if used:
            usage = sum_usages(usage_of(flows, rank, stage).scale(count) for flows, count in used)
            seconds = sum(count * float(flows.seconds[rank, stage]) for flows, count in used)
            builder.add_beside(row, usage, seconds, layers[stage], measured=measured)


def state_collective_counts(design: Design, op: Op, stage: int) -> tuple[int, int]:
    """Return how often a computation gathers the sharded weights of its stage, and how often it scatters gradients."""
    again = design.pipeline.recomputes(stage) and op in (Op.B, Op.I)
    scatters = design.training.scatters_blocks and op in (Op.B, Op.W)
    return (1 + again if design.gathers_blocks else 0), int(scatters)


def add_step_exchanges(
    builder: NetworkBuilder, kinds: Kinds, sent: Sequence[Messages], waits: NDArray[np.float64], *, measured: bool
) -> None:
    """Add the collectives of optimizer steps to a network.

    Args:
        builder: the network builder that receives the exchanges.
        kinds: distinct actions of the program.
        sent: [ranks] messages that the devices of each rank send in its step.
        waits: [ranks] seconds of the collectives of each rank.
        measured: True if these seconds are from a calibration.
    """
    for row in kinds.indices_of(Op.STEP).tolist():
        rank = int(kinds.rank[row])
        builder.add_exchange(row, builder.fabric.usage(sent[rank]), float(waits[rank]), 1, measured=measured)


class StageBlocks(NamedTuple):
    """Number and kinds of the blocks of a stage."""

    layers: int
    experts: ExpertCounts  # layers with experts
    joins: int  # layers in which a skip connection ends
    first: bool
    last: bool


def blocks_of_stages(design: Design, layers: Sequence[int]) -> list[StageBlocks]:
    """Return the blocks of each stage of a transformer model, ``[stages]``."""
    columns = zip(layers, expert_counts(design, layers), skip_joins_per_stage(design, layers), strict=True)
    last = len(layers) - 1
    return [StageBlocks(*column, stage == 0, stage == last) for stage, column in enumerate(columns)]


def reduced_bytes(design: Design, mesh: Mesh, stage: StageBlocks) -> tuple[float, float]:
    """Return the bytes that each tensor-parallel group all-reduces in a forward and in a backward of a stage.

    The bytes of an all-gather or reduce-scatter count half. A backward includes the operators that it recomputes, unless
    the whole stage is recomputed.
    """
    load = device_workload(design, mesh)
    block, with_experts = expert_block(design, mesh, load), sum(stage.experts.values())
    around = [operator for operator in block.operators if operator.name != EXPERTS] if block else []
    counted: tuple[tuple[Iterable[Operator], int], ...] = (
        (flops.layer_operators(load), stage.layers - with_experts - stage.joins),
        (flops.joining_layer_operators(load) if stage.joins else (), stage.joins),
        (around, with_experts),
        (flops.end_operators(load, first=stage.first, last=stage.last), 1),
    )
    forward = backward = 0.0
    for operators, count in counted:
        for each in operators:
            size = sum(each.forward_reduced) + sum(each.forward_gathered) / 2
            again = size * recomputed_share(each, load.kernels.recomputes)
            forward += count * size
            backward += count * (again + sum(each.backward_reduced) + sum(each.backward_gathered) / 2)
    return forward, backward


def context_costs(design: Design, mesh: Mesh) -> ContextCosts:
    """Return the part of the context-parallel exchange of a layer that no computation hides.

    A backward includes the attention that it recomputes, unless the whole stage is recomputed.
    """
    load = device_workload(design, mesh)
    attention = attention_product(load)
    forward, backward = ContextCost(design.cluster, mesh, load, collective_seconds).exposed_parts(attention)
    again = recomputed_share(attention, load.kernels.recomputes)
    pairs = zip(forward.messages, backward.messages, strict=True)
    messages = (later._replace(bytes=again * earlier.bytes + later.bytes) for earlier, later in pairs)
    return ContextCosts(forward, Exposed(again * forward.seconds + backward.seconds, tuple(messages)))


def exchange_usages(fabric: Fabric, design: Design, mesh: Mesh, stage: StageBlocks) -> tuple[Usage, Usage]:
    """Return the bytes that a forward and a backward of a stage send through each port.

    They come from tensor-parallel reductions, from expert exchanges, and from the part of context-parallel exchanges
    that no computation hides. A backward includes what it recomputes, unless the whole stage is recomputed.
    """
    load = device_workload(design, mesh)
    blocks, contexts = expert_blocks(design, mesh, load), context_costs(design, mesh)
    of_backward = ["forward", "backward"] if recomputes_experts(load.kernels.recomputes) else ["backward"]
    found = []
    for size, context, ways in zip(
        reduced_bytes(design, mesh, stage), contexts, (["forward"], of_backward), strict=True
    ):
        usage = [
            fabric.usage(equal_ring_messages(mesh.groups("tp"), size)),
            fabric.usage(context.messages).scale(stage.layers),
        ]
        for number, count in stage.experts.items():
            for way in ways:
                layer_usage = exchange_usage(fabric, mesh.ordered_devices, getattr(blocks[number], f"{way}_sent"))
                usage.append(layer_usage.scale(count))
        total = sum_usages(usage)
        found.append(total.select(total.sizes > 0))
    return found[0], found[1]
