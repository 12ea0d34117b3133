"""Gradient reductions and optimizer steps: seconds of each rank's reductions from sizes and links."""

from __future__ import annotations

import numpy as np

from meshwave.engine.costs.alpha_beta import AllReduce, ring_all_reduce_seconds, small_all_reduce_seconds
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes, gradient_bytes, workload
from meshwave.engine.costs.expert_blocks import expert_sharing
from meshwave.engine.costs.operators import number_sizes
from meshwave.engine.costs.sharding import expert_reduction_seconds, reduction_rounds, weight_groups
from meshwave.engine.document import Design
from meshwave.engine.program.program import Program


def reduce_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """Return ``[stages]`` seconds to all-reduce a stage's gradients over the devices that hold the same weights.

    Sharded optimizer states need a reduce-scatter, which is half of it.
    """
    of_item = number_sizes(design.training).gradients
    gates, experts = (each.max(axis=0) * of_item for each in (held.gates, held.experts))
    seconds = _all_reduce_seconds(design, program, gradient_bytes(design, held), gates, experts, all_reduce)
    return seconds * reduction_rounds(design) / 2


def update_exchange_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """Return ``[ranks]`` the seconds of the collectives of an optimizer step besides that of the norm."""
    gathers = _weight_gather_seconds(design, program, held, all_reduce)
    return gathers + _tied_head_seconds(design, program, all_reduce)


def _weight_gather_seconds(design: Design, program: Program, held: Sizes, all_reduce: AllReduce) -> Floats:
    """Return ``[ranks]`` the seconds in which a step gathers the weights that other devices updated.

    An all-gather is half an all-reduce. Sharded parameters are gathered by the computations that need them.
    """
    if design.training.sharding not in ("optimizer", "gradients"):
        return np.zeros(design.ranks)
    sizes = number_sizes(design.training)
    gates, experts = (sizes.computed_bytes(each, each).max(axis=0) for each in (held.gates, held.experts))
    whole = _all_reduce_seconds(design, program, held.computed_bytes.max(axis=0), gates, experts, all_reduce)
    return np.array([sum(whole[stage] / 2 for stage in program.stages_of(rank)) for rank in range(program.ranks)])


def _tied_head_seconds(design: Design, program: Program, all_reduce: AllReduce) -> Floats:
    """Return ``[ranks]`` the seconds in which a step sums the gradients of a table on the first and the last stage."""
    seconds = np.zeros(program.ranks)
    if design.model.architecture.tied_embeddings and program.stages > 1:
        ranks = sorted({rank for stage in (0, program.stages - 1) for rank in program.ranks_of(stage)})
        meshes = [design.meshes[rank] for rank in ranks]
        load = workload(design, meshes[0])
        size = load.vocab / load.tp * load.hidden * load.precision.gradients
        seconds[ranks] = all_reduce(design.cluster, weight_groups(meshes), size)
    return seconds


def _all_reduce_seconds(
    design: Design, program: Program, size: Floats, gates: Floats, experts: Floats, all_reduce: AllReduce
) -> Floats:
    """Return ``[stages]`` seconds to all-reduce ``size`` bytes of each stage over the devices with the same weights.

    These are the data-parallel copies of all meshes that hold the stage; every tensor-parallel shard is reduced by its
    own group, all groups concurrently. Experts follow, each over the devices that hold it, then partial gates over all
    devices.
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
    everyone = [device for mesh in design.meshes for device in mesh.devices]
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)
