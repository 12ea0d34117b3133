"""DeepSpeed-MoE as first published: every shard of an expert has its own exchange (arXiv:2201.05596)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine import messages
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
from meshwave.engine.findings import Problem, set_value

messages.add(
    unequal_lanes=(
        "one exchange per shard requires that the devices that share an expert (esp={esp}) are those that hold the same "
        "tokens (mp={mp}); "
        "set esp to {mp}"
    )
)


@expert_schedules.register("deepspeed-lanes")
class Lanes(ExpertSchedule):
    """DeepSpeed-MoE with one exchange per shard, if the devices that share an expert hold the same tokens.

    The experts reduce over their shards, as tensor-parallel feed-forward blocks do.
    """

    title: ClassVar = "DeepSpeed-MoE, one exchange per shard"
    published: ClassVar = "2022-01"
    is_listed: ClassVar = False

    def steps(self, layer: Layer) -> list[Step]:
        slots = layer.capacity
        return [
            gate(layer, layer.tokens),
            order_tokens(layer, slots),
            exchange(StepOp.DISPATCH, "ep", layer, slots),
            Step(StepOp.COPY, "esp", layer.slots_bytes),
            experts(layer, layer.experts * slots),
            Step(StepOp.REDUCE, "esp", layer.slots_bytes),
            exchange(StepOp.COMBINE, "ep", layer, slots),
            restore_tokens(layer, slots),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from layer.problems()
        if layer.mp != layer.esp:
            params = {"esp": layer.esp, "mp": layer.mp}
            yield Problem("esp", "unequal_lanes", params, fixes=[set_value("esp", layer.mp)])
