"""DeepSpeed-MoE in the reading that gathers tokens before the gate."""

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


@expert_schedules.register("deepspeed-pregate")
class BeforeTheGate(ExpertSchedule):
    """DeepSpeed-MoE with a gather before the gate, which then sees the tokens of all devices that share an expert."""

    title: ClassVar = "DeepSpeed-MoE, gather before the gate"
    published: ClassVar = "2022-01"
    is_listed: ClassVar = False

    def steps(self, layer: Layer) -> list[Step]:
        copies, slots = layer.esp, layer.esp * layer.capacity
        return [
            Step(StepOp.GATHER_INPUTS, "esp", layer.input_bytes),
            gate(layer, copies * layer.tokens),
            order_tokens(layer, slots),
            exchange(StepOp.DISPATCH, "ep", layer, slots),
            experts(layer, layer.experts * slots),
            Step(StepOp.REDUCE_SHARDS, "esp", copies * layer.slots_bytes),
            exchange(StepOp.COMBINE, "ep", layer, slots),
            restore_tokens(layer, slots),
            Step(StepOp.KEEP_INPUT, "esp", layer.input_bytes),
        ]

    def token_copies(self, layer: Layer) -> int:
        return layer.mp
