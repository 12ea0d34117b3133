"""All-to-all without duplicates, then all-gather: the order of Megatron-Core, and of DeepSpeed since 2024."""

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


@expert_schedules.register("a2a-allgather")
class AllToAllThenAllGather(ExpertSchedule):
    """Exchange each tensor-parallel device's slots once, then gather them on the devices that share an expert.

    The gather uses the faster links within a node.
    """

    title: ClassVar = "All-to-all + all-gather"
    published: ClassVar = "2023-03"

    def steps(self, layer: Layer) -> list[Step]:
        slots = layer.capacity // layer.mp
        part = layer.slots_bytes / layer.mp
        return [
            gate_step(layer, layer.tokens),
            token_order_step(layer, layer.capacity),
            Step(StepOp.SPLIT_SLOTS, "mp", part),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots),
            Step(StepOp.GATHER_SHARDS, "esp", part),
            experts_step(layer, layer.experts * slots * layer.esp),
            Step(StepOp.SCATTER_SHARDS, "esp", part),
            exchange_step(StepOp.COMBINE, "ep", layer, slots),
            Step(StepOp.GATHER_SLOTS, "mp", part),
            token_restore_step(layer, layer.capacity),
        ]
