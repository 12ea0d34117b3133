"""Plain expert parallelism: experts distributed over the data-parallel devices (GShard, arXiv:2006.16668)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine import messages
from meshwave.engine.experts._base import (
    ExpertSchedule,
    exchange_step,
    expert_schedules,
    gate_step,
    token_order_step,
    token_restore_step,
    whole_experts_step,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp
from meshwave.engine.findings import Problem, set_key_fix

messages.add_messages(sharded_experts="{title} keeps each expert whole on one device, but esp={esp}; set esp to 1")


@expert_schedules.register("expert-parallel")
class ExpertParallel(ExpertSchedule):
    """Two all-to-alls among the devices that hold different experts; each device holds whole experts.

    Devices of a tensor-parallel group hold the same tokens, and each sends all of them.
    """

    title: ClassVar = "Expert parallel"
    published: ClassVar = "2020-06"
    shards_experts: ClassVar = False

    def steps(self, layer: Layer) -> list[Step]:
        slots = layer.capacity
        return [
            gate_step(layer, layer.tokens),
            token_order_step(layer, slots),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots),
            whole_experts_step(layer, layer.experts * slots, "ep"),
            exchange_step(StepOp.COMBINE, "ep", layer, slots),
            token_restore_step(layer, slots),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from layer.problems()
        if layer.esp > 1:
            params = {"title": self.title, "esp": layer.esp}
            yield Problem("esp", "sharded_experts", params, fixes=[set_key_fix("esp", 1)])

    def token_copies(self, layer: Layer) -> int:
        return layer.mp
