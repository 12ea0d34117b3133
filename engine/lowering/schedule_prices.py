"""Prices for schedules that search for an order: seconds and bytes per stage, and the simulated time of a whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwave.engine.costs import estimate, peak_memory
from meshwave.engine.document import Design
from meshwave.engine.lowering.communication import Communication
from meshwave.engine.lowering.transfers import add_transfers, onward_message_units, stage_skips
from meshwave.engine.program.action import forward, input_gradient, weight_gradient
from meshwave.engine.program.program import Program, build_program
from meshwave.engine.schedules import Pipe, Prices


def search_findings(design: Design) -> Sequence[str]:
    """Return sentences about the orders that a searching schedule simulated."""
    return design.pipeline.search_findings(priced_pipe(design))


def priced_pipe(design: Design) -> Pipe:
    """Return the pipeline of a design; if its schedule depends on costs, with the design's prices."""
    if not type(design.pipeline).depends_on_costs:
        return design.pipe
    return replace(design.pipe, prices=_find_prices(design))


def _find_prices(design: Design) -> Prices:
    """Return the costs of each stage and the free memory of the devices, computed from a step of one microbatch."""
    one = _single_microbatch_program(design)
    costs = estimate(design, one)
    table = one.tables
    across = one.tables.send_forward[:-1, 0]
    hop = np.where(across >= 0, costs.seconds[across], 0.0)
    # Gradients count as always allocated. They exist from the first backward of a stage on, and nearly every order
    # keeps as many activations then as before: only an order with all forwards first could keep more.
    always = np.sum([*costs.static_bytes.values(), costs.working_bytes], axis=0)
    communication = Communication.from_design(design)

    def simulate_step(compute: Program) -> tuple[float, bool]:
        program = communication.add_to(compute)
        costs = estimate(design, program)
        return costs.simulate(program).makespan, bool(peak_memory(program, costs).fits.all())

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
        judge=simulate_step,
    )


def _single_microbatch_program(design: Design) -> Program:
    """Return the program of one microbatch through all stages with a split backward, on the ranks of its schedule."""
    route = list(design.pipeline.routes(design.pipe)[0])
    orders = [
        [
            make(stage, 0)
            for make in (forward, input_gradient, weight_gradient)
            for stage in _stages_in_order(route, rank, make)
        ]
        for rank in range(design.ranks)
    ]
    return add_transfers(build_program(orders, [route], [0]), stage_skips(design), onward_message_units(design))


def _stages_in_order(route: list[int], rank: int, make: Any) -> list[int]:
    """Return the stages of a rank in the order in which a microbatch passes through them."""
    held = [stage for stage, home in enumerate(route) if home == rank]
    return held if make is forward else held[::-1]
