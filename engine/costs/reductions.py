"""Gradient reductions and optimizer steps: the devices that share state, and the seconds of their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwave.engine.costs.alpha_beta import CollectivePrice, collective_seconds, small_all_reduce_seconds
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes, device_workload, gradient_bytes
from meshwave.engine.costs.expert_blocks import Sharing, expert_sharing
from meshwave.engine.costs.operators import element_sizes
from meshwave.engine.costs.sharding import expert_reduction_seconds, reduction_rounds, weight_groups
from meshwave.engine.document import Design
from meshwave.engine.program.program import Program


def reduce_seconds(
    design: Design, program: Program, held: Sizes, collective: CollectivePrice = collective_seconds
) -> Floats:
    """Return the seconds to all-reduce the gradients of each stage over replicas of its weights, ``[stages]``.

    With sharded optimizer states this is a reduce-scatter.
    """
    rounds = reduction_rounds(design)
    return _replica_seconds(design, program, reduced_gradients(design, held), collective, rounds)


def update_exchange_seconds(
    design: Design, program: Program, held: Sizes, collective: CollectivePrice = collective_seconds
) -> Floats:
    """Return the seconds of the collectives of an optimizer step, except that of the gradient norm, ``[ranks]``."""
    gathers = _weight_gather_seconds(design, program, held, collective)
    return gathers + _tied_head_seconds(design, program, collective)


def _weight_gather_seconds(design: Design, program: Program, held: Sizes, collective: CollectivePrice) -> Floats:
    """Return the seconds of an optimizer step to gather weights that other devices updated, ``[ranks]``."""
    weights = updated_weights(design, held)
    if weights is None:
        return np.zeros(design.ranks)
    gathers = _replica_seconds(design, program, weights, collective, rounds=1)
    return np.array([sum(gathers[stage] for stage in program.stages_of(rank)) for rank in range(program.ranks)])


def _tied_head_seconds(design: Design, program: Program, collective: CollectivePrice) -> Floats:
    """Return the seconds per step to sum the gradients of an embedding table that two stages share, ``[ranks]``."""
    seconds, (ranks, groups, size) = np.zeros(program.ranks), tied_table_groups(design, program)
    seconds[ranks] = collective(design.cluster, groups, size) if groups else 0.0
    return seconds


def tied_table_groups(design: Design, program: Program) -> tuple[list[int], list[list[int]], float]:
    """Return the groups of devices that sum the gradients of an embedding table that two stages share.

    If the state is sharded, the two devices that own the same part of the table and of its copy sum its gradients. Such a
    design runs only if both stages have equal numbers of copies and shards.

    Returns:
        The ranks that hold the table, the groups of their devices, and the bytes of one device; no groups if no device
        shares the table with another one.
    """
    if not design.model.architecture.copies_embedding or program.stages == 1:
        return [], [], 0.0
    first, last = (program.ranks_of(stage) for stage in (0, program.stages - 1))
    ranks = sorted({*first, *last})
    meshes = [design.meshes[rank] for rank in ranks]
    load = device_workload(design, meshes[0])
    size = load.table_parameters * load.precision.gradients
    groups = weight_groups(meshes)
    if design.training.sharding != "none":
        ends = [weight_groups([design.meshes[rank] for rank in each]) for each in (first, last)]
        size /= len(ends[0][0])
        groups = [sorted({*pair}) for both in zip(*ends, strict=False) for pair in zip(*both, strict=False)]
    return ranks, [[*group] for group in groups] if len(groups[0]) > 1 else [], size


class ReplicatedBytes(NamedTuple):
    """Bytes of a device that other devices hold too, ``[stages]`` each: all, and parts with groups of their own."""

    total: Floats
    partial: Floats  # of parameters whose gradients each device has for its own tokens only
    gates: Floats
    experts: Floats


def reduced_gradients(design: Design, held: Sizes) -> ReplicatedBytes:
    """Return the bytes of the gradients that REDUCE_GRAD sums."""
    of_item = element_sizes(design.training).gradients
    parts = (each.max(axis=0) * of_item for each in (held.partial, held.gates, held.experts))
    return ReplicatedBytes(gradient_bytes(design, held), *parts)


def updated_weights(design: Design, held: Sizes) -> ReplicatedBytes | None:
    """Return the bytes of the weights that an optimizer step gathers, because other devices updated them; None for none.

    Sharded parameters are gathered by the computations that need them instead.
    """
    if design.training.sharding not in ("optimizer", "gradients"):
        return None
    sizes = element_sizes(design.training)
    parts = (sizes.computed_bytes(each, each).max(axis=0) for each in (held.partial, held.gates, held.experts))
    return ReplicatedBytes(held.computed_bytes.max(axis=0), *parts)


class StageReplicas(NamedTuple):
    """Groups of devices that hold the same parts of a stage, and the bytes that one device shares with each group."""

    expert_groups: Sequence[Sharing]
    experts: float  # bytes of experts
    everyone: Sequence[int]  # all devices of the stage
    of_everyone: float  # bytes that they all hold
    groups: Sequence[Sequence[int]]  # one for each tensor-parallel shard
    shared: float  # bytes of a shard


def stage_replicas(design: Design, program: Program, stage: int, held: ReplicatedBytes) -> StageReplicas:
    """Return the devices that hold the same parts of a stage: those of all meshes that hold the stage.

    Each tensor-parallel shard has its own group. Each expert has the group of the devices that hold it. All devices
    share partial gates and other partial weights.
    """
    meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
    total, partial, gates, experts = (float(each[stage]) for each in held)
    sharing: Sequence[Sharing] = []
    if experts:
        sharing, gates_are_partial = expert_sharing(design, meshes)
        partial += gates if gates_are_partial else 0.0
    everyone = [device for mesh in meshes for device in mesh.devices]
    return StageReplicas(sharing, experts, everyone, partial, weight_groups(meshes), total - experts - partial)


def _replica_seconds(
    design: Design, program: Program, held: ReplicatedBytes, collective: CollectivePrice, rounds: int
) -> Floats:
    """Return the seconds of a collective of the replicated bytes of each stage, ``[stages]``.

    All tensor-parallel shards run concurrently. The experts, and the parts that all devices share, follow one another.
    """
    seconds = np.zeros(program.stages)
    for stage in range(program.stages):
        found = stage_replicas(design, program, stage, held)
        if found.experts:
            groups = found.expert_groups
            seconds[stage] += expert_reduction_seconds(design.cluster, groups, found.experts, collective, rounds)
        if found.of_everyone:
            seconds[stage] += collective(design.cluster, [found.everyone], found.of_everyone, rounds)
        seconds[stage] += collective(design.cluster, found.groups, found.shared, rounds)
    return seconds


def norm_seconds(design: Design) -> float:
    """Return the seconds to all-reduce the gradient norm, one number, over all devices; 0 without clipping."""
    if design.training.clip_norm is None:
        return 0.0
    everyone = design.process_devices
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)
