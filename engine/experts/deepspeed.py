"""DeepSpeed-MoE with model, expert and expert-sharding parallelism: the baseline of Parm (arXiv:2407.00599)."""

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


@expert_schedules.register("deepspeed")
class DeepSpeed(ExpertSchedule):
    """Gather the slots of the devices that share an expert, exchange, compute, reduce, exchange back.

    All tensor-parallel devices hold every token, so each token is sent and computed once per device.
    """

    title: ClassVar = "DeepSpeed-MoE"
    published: ClassVar = "2022-01"

    def steps(self, layer: Layer) -> list[Step]:
        slots, copies = layer.capacity, layer.esp
        return [
            gate_step(layer, layer.tokens),
            token_order_step(layer, slots),
            Step(StepOp.GATHER_SHARDS, "esp", layer.slots_bytes),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots, copies),
            experts_step(layer, layer.experts * slots * copies),
            Step(StepOp.REDUCE_SHARDS, "esp", copies * layer.slots_bytes),
            exchange_step(StepOp.COMBINE, "ep", layer, slots, copies),
            Step(StepOp.KEEP_SHARD, "esp", layer.slots_bytes),
            token_restore_step(layer, slots),
        ]

    def token_copies(self, layer: Layer) -> int:
        return layer.mp
