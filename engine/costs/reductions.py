"""Gradient reductions and optimizer steps: seconds of the reductions of each rank, from sizes and links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwave.engine.costs.alpha_beta import CollectivePrice, collective_seconds, small_all_reduce_seconds
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes, device_workload, gradient_bytes
from meshwave.engine.costs.expert_blocks import expert_sharing
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
    of_item = element_sizes(design.training).gradients
    parts = _Parts(*(each.max(axis=0) * of_item for each in (held.partial, held.gates, held.experts)))
    size, rounds = gradient_bytes(design, held), reduction_rounds(design)
    return _replica_seconds(design, program, size, parts, collective, rounds)


def update_exchange_seconds(
    design: Design, program: Program, held: Sizes, collective: CollectivePrice = collective_seconds
) -> Floats:
    """Return the seconds of the collectives of an optimizer step, except that of the gradient norm, ``[ranks]``."""
    gathers = _weight_gather_seconds(design, program, held, collective)
    return gathers + _tied_head_seconds(design, program, collective)


def _weight_gather_seconds(design: Design, program: Program, held: Sizes, collective: CollectivePrice) -> Floats:
    """Return the seconds of an optimizer step to gather weights that other devices updated, ``[ranks]``.

    Sharded parameters are gathered by the computations that need them instead.
    """
    if design.training.sharding not in ("optimizer", "gradients"):
        return np.zeros(design.ranks)
    sizes = element_sizes(design.training)
    own = (held.partial, held.gates, held.experts)
    parts = _Parts(*(sizes.computed_bytes(each, each).max(axis=0) for each in own))
    gathers = _replica_seconds(design, program, held.computed_bytes.max(axis=0), parts, collective, rounds=1)
    return np.array([sum(gathers[stage] for stage in program.stages_of(rank)) for rank in range(program.ranks)])


def _tied_head_seconds(design: Design, program: Program, collective: CollectivePrice) -> Floats:
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
        size = load.table_parameters * load.precision.gradients
        groups = weight_groups(meshes)
        if design.training.sharding != "none":
            ends = [weight_groups([design.meshes[rank] for rank in each]) for each in (first, last)]
            size /= len(ends[0][0])
            groups = [sorted({*pair}) for both in zip(*ends, strict=False) for pair in zip(*both, strict=False)]
        seconds[ranks] = collective(design.cluster, groups, size) if len(groups[0]) > 1 else 0.0
    return seconds


class _Parts(NamedTuple):
    """Parts of the state of each stage that other devices share than the rest, in bytes, ``[stages]`` each."""

    partial: Floats
    gates: Floats
    experts: Floats


def _replica_seconds(
    design: Design, program: Program, size: Floats, parts: _Parts, collective: CollectivePrice, rounds: int
) -> Floats:
    """Return the seconds of a collective of ``size`` bytes of each stage over replicas of its weights, ``[stages]``.

    These devices are the data-parallel replicas on all meshes that hold the stage. Each tensor-parallel shard is
    reduced by its own group, all groups concurrently. Then each expert is reduced over the devices that hold it, and
    partial gates and other partial weights over all devices.
    """
    seconds = np.zeros(program.stages)
    for stage in range(program.stages):
        meshes = [design.meshes[rank] for rank in program.ranks_of(stage)]
        partial, gates, experts = (float(part[stage]) for part in parts)
        whole, shared = partial, float(size[stage]) - experts - partial
        if experts:
            sharing, gates_are_partial = expert_sharing(design, meshes)
            whole, shared = (whole + gates, shared - gates) if gates_are_partial else (whole, shared)
            seconds[stage] += expert_reduction_seconds(design.cluster, sharing, experts, collective, rounds)
        everyone = [device for mesh in meshes for device in mesh.devices]
        seconds[stage] += collective(design.cluster, [everyone], whole, rounds) if whole else 0.0
        seconds[stage] += collective(design.cluster, weight_groups(meshes), shared, rounds)
    return seconds


def norm_seconds(design: Design) -> float:
    """Return the seconds to all-reduce the gradient norm, one number, over all devices; 0 without clipping."""
    if design.training.clip_norm is None:
        return 0.0
    everyone = design.process_devices
    return small_all_reduce_seconds(design.cluster, everyone, 4.0)
