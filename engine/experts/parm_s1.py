"""Parm S1: the tensor-parallel devices split the tokens before the gate (arXiv:2407.00599)."""

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

messages.add_messages(indivisible_tokens="{mp} devices cannot share {tokens} tokens evenly; use a multiple of {mp}")


@expert_schedules.register("parm-s1")
class ParmS1(ExpertSchedule):
    """Split the tokens before the gate, exchange with all shards of all experts at once, and gather tokens at the end.

    Each device routes its part of the tokens, with its part of the capacity. If tokens are dropped, they may differ
    from those dropped by a gate that routes all tokens.
    """

    title: ClassVar = "Parm S1"
    published: ClassVar = "2024-07"
    gate_is_partial: ClassVar = True
    gate_sees_part: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        slots, part = layer.capacity // layer.mp, layer.input_bytes / layer.mp
        return [
            Step(StepOp.SPLIT_TOKENS, "mp", part),
            gate_step(layer, layer.tokens / layer.mp),
            token_order_step(layer, slots),
            Step(StepOp.DUMP, "esp", layer.esp * layer.slots_bytes / layer.mp),
            exchange_step(StepOp.DISPATCH, "ep_esp", layer, slots, layer.esp),
            experts_step(layer, layer.experts * slots * layer.esp),
            exchange_step(StepOp.COMBINE, "ep_esp", layer, slots, layer.esp),
            Step(StepOp.SUM, "esp", layer.esp * layer.slots_bytes / layer.mp),
            token_restore_step(layer, slots),
            Step(StepOp.GATHER_TOKENS, "mp", part),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from layer.problems()
        if layer.tokens % layer.mp:
            tokens = -(-layer.tokens // layer.mp) * layer.mp
            params = {"tokens": layer.tokens, "mp": layer.mp}
            yield Problem("tokens", "indivisible_tokens", params, fixes=[set_key_fix("tokens", tokens)])
