"""Gradient reductions and optimizer steps: seconds of the reductions of each rank, from sizes and links."""

from __future__ import annotations

import numpy as np

from meshwave.engine.costs.alpha_beta import AllReduce, ring_all_reduce_seconds, small_all_reduce_seconds
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes, device_workload, gradient_bytes
from meshwave.engine.costs.expert_blocks import expert_sharing
from meshwave.engine.costs.operators import number_sizes
from meshwave.engine.costs.sharding import expert_reduction_seconds, reduction_rounds, weight_groups
from meshwave.engine.document import Design
from meshwave.engine.program.program import Program


def reduce_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """Return the seconds to all-reduce the gradients of each stage over replicas of its weights, ``[stages]``.

    With sharded optimizer states this is a reduce-scatter, which takes half as long.
    """
    of_item = number_sizes(design.training).gradients
    gates, experts = (each.max(axis=0) * of_item for each in (held.gates, held.experts))
    seconds = _all_reduce_seconds(design, program, gradient_bytes(design, held), gates, experts, all_reduce)
    return seconds * reduction_rounds(design) / 2


def update_exchange_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """Return the seconds of the collectives of an optimizer step, except that of the gradient norm, ``[ranks]``."""
    gathers = _weight_gather_seconds(design, program, held, all_reduce)
    return gathers + _tied_head_seconds(design, program, all_reduce)


def _weight_gather_seconds(design: Design, program: Program, held: Sizes, all_reduce: AllReduce) -> Floats:
    """Return the seconds of an optimizer step to gather weights that other devices updated, ``[ranks]``.

    An all-gather is half an all-reduce. Sharded parameters are gathered by the computations that need them instead.
    """
    if design.training.sharding not in ("optimizer", "gradients"):
        return np.zeros(design.ranks)
    sizes = number_sizes(design.training)
    gates, experts = (sizes.computed_bytes(each, each).max(axis=0) for each in (held.gates, held.experts))
    whole = _all_reduce_seconds(design, program, held.computed_bytes.max(axis=0), gates, experts, all_reduce)
    return np.array([sum(whole[stage] / 2 for stage in program.stages_of(rank)) for rank in range(program.ranks)])


def _tied_head_seconds(design: Design, program: Program, all_reduce: AllReduce) -> Floats:
    """Return the seconds per step to sum the gradients of an embedding table that two stages share, ``[ranks]``.

    If the state is sharded, the two devices that own the same part of the table and of its copy sum its gradients. Such a
    design runs only if both stages have equal numbers of copies and shards.
    """
    seconds = np.zeros(program.ranks)
    if design.model.architecture.copies_embedding and program.stages > 1:
        first, last = (program.ranks_of(stage) for stage in (0, program.stages - 1))
        ranks = sorted({*first, *last})
        meshes = [design.meshes[rank] for rank in ranks]
        load = device_workload(design, meshes[0])
        size = load.vocab / load.tp * load.hidden * load.precision.gradients
        groups = weight_groups(meshes)
        if design.training.sharding != "none":
            ends = [weight_groups([design.meshes[rank] for rank in each]) for each in (first, last)]
            size /= len(ends[0][0])
            groups = [sorted({*pair}) for both in zip(*ends, strict=False) for pair in zip(*both, strict=False)]
        seconds[ranks] = all_reduce(design.cluster, groups, size) if len(groups[0]) > 1 else 0.0
    return seconds


def _all_reduce_seconds(
    design: Design, program: Program, size: Floats, gates: Floats, experts: Floats, all_reduce: AllReduce
) -> Floats:
    """Return the seconds to all-reduce ``size`` bytes of each stage over replicas of its weights, ``[stages]``.

    These devices are the data-parallel replicas on all meshes that hold the stage. Each tensor-parallel shard is
    reduced by its own group, all groups concurrently. Then each expert is reduced over the devices that hold it, and
    partial gates over all devices.
    """
    seconds = np.zeros(program.stages)
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        shared = float(size[stage] - experts[stage])
        if experts[stage]:
            parts, partial = expert_sharing(design, meshes)
            shared -= float(gates[stage]) if partial else 0.0
            seconds[stage] += expert_reduction_seconds(design.cluster, parts, float(experts[stage]), all_reduce)
            everyone = [device for mesh in meshes for device in mesh.devices]
            seconds[stage] += all_reduce(design.cluster, [everyone], float(gates[stage])) if partial else 0.0
        seconds[stage] += all_reduce(design.cluster, weight_groups(meshes), shared)
    return seconds


def norm_seconds(design: Design) -> float:
    """Return the seconds to all-reduce the gradient norm, one number, over all devices; 0 without clipping."""
    if design.training.clip_norm is None:
        return 0.0
    everyone = design.process_devices
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)
