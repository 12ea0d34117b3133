"""The order of Megatron-Core, and of DeepSpeed since 2024: exchange without duplicates, then gather."""

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


@expert_schedules.register("a2a-allgather")
class AllToAllThenAllGather(ExpertSchedule):
    """Each tensor-parallel device exchanges its part of the slots once, and devices that share an expert gather them.

    The gather uses the faster links inside a node.
    """

    title: ClassVar = "All-to-all + all-gather"
    published: ClassVar = "2023-03"

    def steps(self, layer: Layer) -> list[Step]:
        slots = layer.capacity // layer.mp
        part = layer.slots_bytes / layer.mp
        return [
            gate(layer, layer.tokens),
            order_tokens(layer, layer.capacity),
            Step(StepOp.SPLIT_SLOTS, "mp", part),
            exchange(StepOp.DISPATCH, "ep", layer, slots),
            Step(StepOp.GATHER_SHARDS, "esp", part),
            experts(layer, layer.experts * slots * layer.esp),
            Step(StepOp.SCATTER_SHARDS, "esp", part),
            exchange(StepOp.COMBINE, "ep", layer, slots),
            Step(StepOp.GATHER_SLOTS, "mp", part),
            restore_tokens(layer, layer.capacity),
        ]
