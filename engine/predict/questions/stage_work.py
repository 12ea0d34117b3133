"""FLOPs of each stage on a device that holds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.costs.device_sizes import device_workload, skip_joins_per_stage
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.costs.transformer_layers import end_operators, join_operators, layer_operators
from meshwave.engine.document import Design
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Floats


@dataclass(frozen=True, eq=False)
class Work:
    """FLOPs of one microbatch through each replica of a stage, on one device."""

    placement: NDArray[np.int32]  # [replicas, stages] rank of the replica
    flops: Floats  # [F B I W, replicas, stages] FLOPs; recomputation adds the forward to B and I


def stage_flops(design: Design, program: Program, costs: Costs) -> Work | None:
    """Return the FLOPs of the computations of a design; None for unit costs, which define no FLOPs."""
    if costs.unit != "s":
        return None

    @cache  # most stages and meshes are equal
    def count_flops(load: Workload, layers: int, joins: int, first: bool, last: bool) -> Floats:
        return (
            layers * _direction_flops(layer_operators(load))
            + joins * _direction_flops(join_operators(load))
            + _direction_flops(end_operators(load, first=first, last=last))
        )

    joins = skip_joins_per_stage(design, costs.layers)
    found = np.zeros((Op.W + 1, program.replicas, program.stages))
    for (replica, stage), rank in np.ndenumerate(program.placement):
        load = device_workload(design, design.meshes[rank])
        ends_here = stage == 0, stage == program.stages - 1
        forward, back, weight = count_flops(load, costs.layers[stage], joins[stage], *ends_here)
        again = forward if design.pipeline.recomputes(stage) else 0.0
        found[:, replica, stage] = forward, again + back + weight, again + back, weight
    return Work(program.placement, found)


def _direction_flops(operators: Iterable[Operator]) -> Floats:
    """Return the FLOPs of a forward, and of both halves of its backward."""
    parts = [(each.forward.flops, each.input_gradient.flops, each.weight_gradient.flops) for each in operators]
    return np.asarray(np.array(parts, float).reshape(-1, 3).sum(axis=0))
