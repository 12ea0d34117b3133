"""Gradient reductions and optimizer steps: seconds of each rank's reductions from sizes and links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwave.engine.costs.alpha_beta import ring_all_reduce_seconds, small_all_reduce_seconds
from meshwave.engine.costs.collective_flows import weight_groups
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes, gradient_bytes
from meshwave.engine.costs.expert_blocks import Sharing, expert_sharing
from meshwave.engine.costs.operators import PRECISIONS
from meshwave.engine.costs.stage_prices import AllReduce
from meshwave.engine.document import Cluster, Design
from meshwave.engine.program.program import Program


def reduce_seconds(
    design: Design, program: Program, held: Sizes, all_reduce: AllReduce = ring_all_reduce_seconds
) -> Floats:
    """Return ``[stages]`` seconds to all-reduce a stage's gradients over the devices that hold the same weights.

    These are the data-parallel copies of all meshes that hold the stage; every tensor-parallel shard is reduced by its
    own group, all groups concurrently. Experts follow, each over the devices that hold it, then partial gates over all
    devices.
    """
    size, of_item = gradient_bytes(design, held), PRECISIONS[design.training.precision].gradients
    gates, experts = (each.max(axis=0) * of_item for each in (held.gates, held.experts))
    seconds = np.zeros(program.stages)
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        shared = float(size[stage] - experts[stage])
        if experts[stage]:
            parts, partial = expert_sharing(design, meshes)
            shared -= float(gates[stage]) if partial else 0.0
            seconds[stage] += _expert_reduction_seconds(design.cluster, parts, float(experts[stage]), all_reduce)
            everyone = [device for mesh in meshes for device in mesh.devices]
            seconds[stage] += all_reduce(design.cluster, [everyone], float(gates[stage])) if partial else 0.0
        seconds[stage] += all_reduce(design.cluster, weight_groups(meshes), shared)
    return seconds


def _expert_reduction_seconds(cluster: Cluster, parts: Sequence[Sharing], size: float, all_reduce: AllReduce) -> float:
    """Return the seconds of all expert reductions; those without a common device run concurrently."""
    rounds: list[list[Sharing]] = []
    for part in parts:
        busy = set(part.devices)
        free = (each for each in rounds if all(busy.isdisjoint(other.devices) for other in each))
        found = next(free, None)
        if found is None:
            rounds.append(found := [])
        found.append(part)
    return sum(
        all_reduce(cluster, [part.devices for part in each], size * max(part.share for part in each)) for each in rounds
    )


def norm_seconds(design: Design) -> float:
    """Return the seconds to all-reduce the gradient norm, one number, over all devices; 0 without clipping."""
    if design.training.clip_norm is None:
        return 0.0
    everyone = [device for mesh in design.meshes for device in mesh.devices]
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)
