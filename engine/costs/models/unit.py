"""Unit costs: every stage costs its share of one number, for teaching and to compare with papers."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np

from meshwave.engine.costs.cost_model import CostModel, Floats, Slots, Unit, cost_models
from meshwave.engine.costs.device_sizes import Sizes
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.network import serial_network
from meshwave.engine.costs.stage_balance import equal_split
from meshwave.engine.document import Design
from meshwave.engine.document.cost import UnitCost
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network


@cost_models.register("unit")
class UnitModel(CostModel):
    """``forward`` and ``backward`` are one microbatch through the whole model over the number of
    meshes, the ``T_F`` and ``T_B`` of the Hanayo paper (arXiv:2308.15762): a stage that is ``1/k``
    of that share costs ``1/k``. Stages whose layers are given cost in proportion to them; stages that
    nobody cut are priced at equal shares, as papers do, also where the layers do not divide over them
    (:func:`meshwave.engine.predict.prediction.check` says so). One that is recomputed runs its forward once more before its
    backward. A message takes ``transfer`` for each tensor that it holds; where tensors differ in size, one as
    large as the largest that a stage hands to the next takes so long. Reductions and steps are free."""

    unit: ClassVar[Unit] = "units"

    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        return equal_split(design.model.layers, design.stages)

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        share = _share_of_a_mesh(design, layers)
        cost = cast(UnitCost, design.cost)
        weight = cost.backward / 2 if cost.weight is None else cost.weight
        whole = np.zeros(len(Op))
        whole[[Op.F, Op.B, Op.I, Op.W]] = cost.forward, cost.backward, cost.backward - weight, weight
        seconds = whole[kinds.op] * share[kinds.stage]
        again = np.array([design.pipeline.recomputes(stage) for stage in range(program.stages)])
        backward = kinds.of(Op.B, Op.I)
        seconds[backward] += (again * share)[kinds.stage[backward]] * cost.forward
        seconds[kinds.sends] = cost.transfer * kinds.tensors[kinds.sends] / program.onward.max(initial=1)
        return seconds

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        return serial_network(design, program, kinds, seconds), seconds

    def slot_seconds(self, design: Design, first: Slots, second: Slots) -> Floats:
        cost = cast(UnitCost, design.cost)
        both = cost.forward + cost.backward
        ratio = 1.0 if cost.fused is None or not both else cost.fused / both
        return ratio * (first.seconds + second.seconds)


def _share_of_a_mesh(design: Design, layers: tuple[int, ...]) -> Floats:
    """[stages] how much of one mesh's share of the model each stage is."""
    if cast(Any, design.pipeline).stages is None:  # all the same, also where the layers do not divide
        return np.full(design.stages, design.ranks / design.stages)
    return np.array(layers) * design.ranks / sum(layers)
