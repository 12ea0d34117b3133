"""DeepSpeed-MoE in the interpretation that gathers tokens before the gate."""

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


@expert_schedules.register("deepspeed-pregate")
class DeepSpeedPreGate(ExpertSchedule):
    """DeepSpeed-MoE with a gather before the gate, which then routes the tokens of all devices that share an expert."""

    title: ClassVar = "DeepSpeed-MoE, gather before the gate"
    published: ClassVar = "2022-01"
    is_listed: ClassVar = False

    def steps(self, layer: Layer) -> list[Step]:
        copies, slots = layer.esp, layer.esp * layer.capacity
        return [
            Step(StepOp.GATHER_INPUTS, "esp", layer.input_bytes),
            gate_step(layer, copies * layer.tokens),
            token_order_step(layer, slots),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots),
            experts_step(layer, layer.experts * slots),
            Step(StepOp.REDUCE_SHARDS, "esp", copies * layer.slots_bytes),
            exchange_step(StepOp.COMBINE, "ep", layer, slots),
            token_restore_step(layer, slots),
            Step(StepOp.KEEP_INPUT, "esp", layer.input_bytes),
        ]

    def token_copies(self, layer: Layer) -> int:
        return layer.mp
