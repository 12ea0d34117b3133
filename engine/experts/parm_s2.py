"""Parm S2: the tensor-parallel devices split the slots after the gate (arXiv:2407.00599)."""

from __future__ import annotations

from typing import ClassVar

from meshwave.engine.experts._base import (
    ExpertSchedule,
    exchange,
    expert_schedules,
    experts,
    gate,
    order_tokens,
    restore_tokens,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp


@expert_schedules.register("parm-s2")
class ParmS2(ExpertSchedule):
    """Split the slots after the gate, exchange with all shards of all experts at once, and overlap the gather of the slots with the exchange.

    The gather of the slots overlaps with the exchange between nodes while results arrive.
    """

    title: ClassVar = "Parm S2"
    published: ClassVar = "2024-07"

    def steps(self, layer: Layer) -> list[Step]:
        slots, part = layer.capacity // layer.mp, layer.slots_bytes / layer.mp
        return [
            gate(layer, layer.tokens),
            order_tokens(layer, layer.capacity),
            Step(StepOp.SPLIT_SLOTS, "mp", part, hidden=True),
            Step(StepOp.DUMP, "esp", layer.esp * layer.slots_bytes / layer.mp),
            exchange(StepOp.DISPATCH, "ep_esp", layer, slots, layer.esp),
            experts(layer, layer.experts * slots * layer.esp),
            exchange(StepOp.COMBINE, "ep_esp", layer, slots, layer.esp),
            Step(StepOp.SUM, "esp", layer.esp * layer.slots_bytes / layer.mp),
            Step(StepOp.GATHER_SLOTS, "mp", part, hidden=True),
            restore_tokens(layer, layer.capacity),
        ]
