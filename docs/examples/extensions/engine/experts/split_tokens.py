"""Expert parallelism in which tensor-parallel devices share the tokens before they are exchanged."""

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.experts import (
    ExpertSchedule,
    Layer,
    Step,
    StepOp,
    exchange_step,
    expert_schedules,
    gate_step,
    token_order_step,
    token_restore_step,
    whole_experts_step,
)
from meshwave.engine.findings import Problem
from meshwave.engine.messages import add_messages

add_messages(
    split_tokens_esp="split-tokens keeps each expert whole on one device; set esp to 1",
    split_tokens_mp="{tokens} tokens cannot be shared by {mp} devices; use a multiple of {mp}",
)


@expert_schedules.register("split-tokens")
class SplitTokens(ExpertSchedule):
    """Each tensor-parallel device sends its own part of the tokens, and all gather the results."""

    title: ClassVar = "Split tokens"
    shards_experts: ClassVar = False
    gate_is_partial: ClassVar = True
    gate_sees_part: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        slots, part = layer.capacity // layer.mp, layer.input_bytes / layer.mp
        return [
            Step(StepOp.SPLIT_TOKENS, "mp", part),
            gate_step(layer, layer.tokens / layer.mp),
            token_order_step(layer, slots),
            exchange_step(StepOp.DISPATCH, "ep", layer, slots),
            whole_experts_step(layer, layer.experts * slots, "ep"),
            exchange_step(StepOp.COMBINE, "ep", layer, slots),
            token_restore_step(layer, slots),
            Step(StepOp.GATHER_TOKENS, "mp", part),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        yield from layer.problems()
        if layer.esp > 1:
            yield Problem("esp", "split_tokens_esp", {})
        if layer.tokens % layer.mp:
            yield Problem("tokens", "split_tokens_mp", {"tokens": layer.tokens, "mp": layer.mp})
