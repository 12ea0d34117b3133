"""Costs from one number: the seconds that a layer was timed at."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from meshwave.engine.costs import CostModel, cost_models, equal_split
from meshwave.engine.costs.boundary_transfers import boundary_seconds
from meshwave.engine.costs.cost_model import Floats
from meshwave.engine.costs.device_sizes import Sizes
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.document import Design
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import UnitTransferModel

FORWARDS = {Op.F: 1, Op.B: 2, Op.I: 1, Op.W: 1}  # that each computation takes as long as


@cost_models.register("per-layer")
class PerLayerCost(CostModel):
    """Seconds from the forward time of one layer."""

    title: ClassVar = "Per layer"

    kind: Literal["per-layer"] = "per-layer"
    """Seconds from the forward time of one layer."""
    layer_s: Annotated[float, Field(gt=0, le=1e6)] = 0.001
    """Forward of one microbatch through one layer."""
    transfer_model: UnitTransferModel = "latency"
    """latency: no transfer delays another; sender-blocking: a transfer occupies its sender."""

    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        return equal_split(design.model.layers, design.stages)

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        seconds = np.zeros(len(kinds))
        again = np.array([design.pipeline.recomputes(stage) for stage in range(program.stages)])
        for op, forwards in FORWARDS.items():
            rows = kinds.indices_of(op)
            stages = kinds.stage[rows]
            repeated = again[stages] * (op in (Op.B, Op.I))
            seconds[rows] = (forwards + repeated) * self.layer_s * np.array(layers)[stages]
        for row in kinds.sends.tolist():
            ends = int(kinds.rank[row]), int(kinds.peer[row])
            seconds[row] = boundary_seconds(design, *ends, int(kinds.tensors[row]))
        return seconds
