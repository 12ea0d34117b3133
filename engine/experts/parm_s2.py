"""Parm S2: the tensor-parallel devices split the slots after the gate (arXiv:2407.00599)."""

from __future__ import annotations

from typing import ClassVar

from meshwave.engine.experts._base import (
    ExpertSchedule,
    exchange_step,
    expert_schedules,
    experts_step,
    gate_step,
    token_order_step,
    token_restore_step,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp


@expert_schedules.register("parm-s2")
class ParmS2(ExpertSchedule):
    """Split the slots after the gate, exchange with all shards of all experts, and gather results during the exchange.

    The gather of the slots overlaps the exchange between nodes while results arrive.
    """

    title: ClassVar = "Parm S2"
    published: ClassVar = "2024-07"

    def steps(self, layer: Layer) -> list[Step]:
        slots, part = layer.capacity // layer.mp, layer.slots_bytes / layer.mp
        return [
            gate_step(layer, layer.tokens),
            token_order_step(layer, layer.capacity),
            Step(StepOp.SPLIT_SLOTS, "mp", part, hidden=True),
            Step(StepOp.DUMP, "esp", layer.esp * layer.slots_bytes / layer.mp),
            exchange_step(StepOp.DISPATCH, "ep_esp", layer, slots, layer.esp),
            experts_step(layer, layer.experts * slots * layer.esp),
            exchange_step(StepOp.COMBINE, "ep_esp", layer, slots, layer.esp),
            Step(StepOp.SUM, "esp", layer.esp * layer.slots_bytes / layer.mp),
            Step(StepOp.GATHER_SLOTS, "mp", part, hidden=True),
            token_restore_step(layer, layer.capacity),
        ]
