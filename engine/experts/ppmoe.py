"""PPMoE: experts distributed over the tensor-parallel group of one node (arXiv:2304.11414)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine import messages
from meshwave.engine.experts._base import (
    ExpertSchedule,
    expert_schedules,
    gate_step,
    token_order_step,
    token_restore_step,
    whole_experts_step,
)
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp
from meshwave.engine.findings import Problem, nearest_divisors, set_key_fix

messages.add_messages(
    indivisible_experts_of_group=(
        "{title} cannot distribute {experts} experts evenly over {mp} tensor-parallel devices; use tp={supported:or}"
    )
)


@expert_schedules.register("ppmoe")
class PPMoE(ExpertSchedule):
    """Hold whole experts on each tensor-parallel device, select their tokens locally, and sum results by all-reduce.

    Tokens are not exchanged; pipeline stages need more memory.
    """

    title: ClassVar = "PPMoE"
    published: ClassVar = "2023-04"
    places: ClassVar = "mp"
    shards_experts: ClassVar = False
    gate_is_partial: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        rows = float(layer.folded_rows.max())
        return [
            Step(StepOp.COPY, "mp", layer.input_bytes),
            gate_step(layer, layer.tokens),
            token_order_step(layer, rows / layer.experts),
            whole_experts_step(layer, rows, "mp"),
            token_restore_step(layer, rows / layer.experts),
            Step(StepOp.REDUCE, "mp", layer.input_bytes),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        if layer.placement is None and layer.experts % layer.mp:
            supported = nearest_divisors(layer.experts, layer.mp)
            params = {"title": self.title, "mp": layer.mp, "experts": layer.experts, "supported": supported}
            fixes = [set_key_fix("mp", size) for size in supported]
            yield Problem("mp", "indivisible_experts_of_group", params, fixes=fixes)
        if layer.placement is not None and len(layer.placement) != layer.mp:
            params = {
                "given": len(layer.placement),
                "group": f"the tensor-parallel group of {layer.mp}",
                "expected": layer.mp,
            }
            yield Problem("placement", "placement_size", params, fixes=[set_key_fix("placement", None)])
        yield from (problem for problem in layer.problems() if problem.code in ("top_k", "unplaced_expert"))
