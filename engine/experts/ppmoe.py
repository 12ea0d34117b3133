"""PPMoE: the experts folded into the tensor-parallel group of one node (arXiv:2304.11414)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.experts._base import ExpertSchedule, expert_schedules, gate, order, restore, whole_experts
from meshwave.engine.experts._layer import Layer
from meshwave.engine.experts._steps import Step, StepOp
from meshwave.engine.findings import Problem


@expert_schedules.register("ppmoe")
class PPMoE(ExpertSchedule):
    """Every tensor-parallel device holds whole experts and picks their tokens out of those that it
    has anyway; one all-reduce sums the results. Nothing is exchanged; pipeline stages pay the memory.
    """

    title: ClassVar = "PPMoE"
    published: ClassVar = "2023-04"
    places: ClassVar = "mp"
    cuts: ClassVar = False
    gate_is_partial: ClassVar = True

    def steps(self, layer: Layer) -> list[Step]:
        rows = float(layer.folded_rows.max())
        return [
            Step(StepOp.COPY, "mp", layer.input_bytes),
            gate(layer, layer.tokens),
            order(layer, rows / layer.experts),
            whole_experts(layer, rows, "mp"),
            restore(layer, rows / layer.experts),
            Step(StepOp.REDUCE, "mp", layer.input_bytes),
        ]

    def problems(self, layer: Layer) -> Iterator[Problem]:
        if layer.homes is None and layer.experts % layer.mp:
            message = f"{layer.mp} tensor-parallel devices do not divide {layer.experts} experts; use a divisor"
            yield Problem("mp", "ppmoe_experts", message)
        if layer.homes is not None and len(layer.homes) != layer.mp:
            message = f"there are homes for {len(layer.homes)} places, and the tensor-parallel group has {layer.mp}"
            yield Problem("homes", "homes_places", message)
        yield from (problem for problem in layer.problems() if problem.code in ("top_k", "expert_missing"))
