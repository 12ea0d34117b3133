"""What a schedule that searches its order is told: prices, and what a whole step would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwave.engine.costs import estimate
from meshwave.engine.document import Design
from meshwave.engine.lowering.transfers import add_transfers, onward_of, skips_of
from meshwave.engine.lowering.updates import add_updates, sharers
from meshwave.engine.program.action import forward, input_gradient, weight_gradient
from meshwave.engine.program.program import Program, build
from meshwave.engine.schedules import Pipe, Prices


def findings(design: Design) -> Sequence[str]:
    """What a schedule that searches has tried and found, in sentences."""
    return design.pipeline.findings(priced_pipe(design))


def priced_pipe(design: Design) -> Pipe:
    """The pipeline of a design, with the design's prices for a schedule that weighs them."""
    if not type(design.pipeline).weighs:
        return design.pipe
    return replace(design.pipe, prices=_prices(design))


def _prices(design: Design) -> Prices:
    """What each stage costs and what the devices have room for, read off a step of one microbatch."""
    one = _one_of_each(design)
    costs = estimate(design, one)
    table = one.tables
    across = one.tables.send_forward[:-1, 0]
    hop = np.where(across >= 0, costs.seconds[across], 0.0)
    # Gradients are kept free for throughout. They are there from the first backward of a stage on, and nearly every
    # order keeps as many activations then as before: only one with all forwards first would have room for more.
    always = np.sum([*costs.static_bytes.values(), costs.working_bytes], axis=0)
    copies, clips = sharers(design), design.training.clip_norm is not None
    handed, batched = (skips_of(design), onward_of(design)), design.transfer.batched

    def judge(compute: Program) -> float:
        program = add_updates(add_transfers(compute, *handed, batched=batched), copies, clips=clips)
        costs = estimate(design, program)
        return costs.play(program).makespan

    return Prices(
        forward=tuple(costs.seconds[table.forward[:, 0]].tolist()),
        input_gradient=tuple(costs.seconds[table.backward[:, 0]].tolist()),
        weight_gradient=tuple(costs.seconds[table.weight[:, 0]].tolist()),
        hop=tuple(hop.tolist()),
        activation=tuple(costs.activation_bytes.tolist()),
        deferred=tuple(costs.deferred_bytes.tolist()),
        room=tuple(np.maximum(costs.capacity_bytes - always, 0.0).tolist()),
        unit=costs.unit,
        design=design.model_copy(update={"name": ""}).to_json(),
        judge=judge,
    )


def _one_of_each(design: Design) -> Program:
    """One microbatch through all stages, its backward split, wherever its schedule lays them."""
    route = list(design.pipeline.routes(design.pipe)[0])
    orders = [
        [make(stage, 0) for make in (forward, input_gradient, weight_gradient) for stage in _held(route, rank, make)]
        for rank in range(design.ranks)
    ]
    return add_transfers(build(orders, [route], [0]), skips_of(design), onward_of(design))


def _held(route: list[int], rank: int, make: Any) -> list[int]:
    held = [stage for stage, home in enumerate(route) if home == rank]
    return held if make is forward else held[::-1]
