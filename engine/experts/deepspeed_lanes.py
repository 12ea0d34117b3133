"""DeepSpeed-MoE as first published: a separate all-to-all for every shard of an expert (arXiv:2201.05596)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine import messages
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
from meshwave.engine.findings import Problem, set_key_fix

messages.add_messages(
    unequal_lanes=(
        "one exchange per shard requires that the devices that share an expert (esp={esp}) are those that hold the same "
        "tokens (mp={mp}); "
        "set esp to {mp}"
    )
)


@expert_schedules.register("deepspeed-lanes")
class DeepSpeedLanes(ExpertSchedule):
    """DeepSpeed-MoE with a separate exchange for each shard of an expert.

    It requires that the devices that share an expert hold the same tokens. The results of the shards are summed, as in
    tensor-parallel feed-forward blocks.
    """

    title: ClassVar = "DeepSpeed-MoE, one exchange per shard"
    published: ClassVar = "2022-01"
    is_listed: ClassVar = False

    def steps(self, layer: Layer) -> list[Step]:
        slots = layer.capacity
        return [
            gate_step(layer, layer.tokens),
            token_order_step(layer, slots),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots),
            Step(StepOp.COPY, "esp", layer.slots_bytes),
            experts_step(layer, layer.experts * slots),
            Step(StepOp.REDUCE, "esp", layer.slots_bytes),
            exchange_step(StepOp.COMBINE, "ep", layer, slots),
            token_restore_step(layer, slots),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from layer.problems()
        if layer.mp != layer.esp:
            params = {"esp": layer.esp, "mp": layer.mp}
            yield Problem("esp", "unequal_lanes", params, fixes=[set_key_fix("esp", layer.mp)])
