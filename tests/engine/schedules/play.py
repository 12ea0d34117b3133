"""Simulation of schedules with transfers at uniform costs, to which the closed forms of the papers apply."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwave.engine.costs import peak_inflight
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Pipe, schedules


def program(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    """Return the computations and transfers of a schedule."""
    return add_transfers(schedules[name](**options).program(Pipe(ranks, microbatches)))


def play(
    program: Program,
    forward: float = 1.0,
    backward: float = 2.0,
    transfer: float = 0.0,
    weight: float | None = None,
) -> Timeline:
    """Simulate with the given costs of a stage's forward and backward, and of a transfer, which delays no other.

    ``weight`` is the share of a split backward that is the weight gradient; half by default.
    """
    weight = backward / 2 if weight is None else weight
    seconds = np.zeros(len(program))
    for cost, ops in (
        (forward, [Op.F]),
        (backward, [Op.B]),
        (backward - weight, [Op.I]),
        (weight, [Op.W]),
        (transfer, [Op.SEND_F, Op.SEND_B]),
    ):
        seconds[np.isin(program.op, ops)] = cost
    return simulate(program, seconds)


def makespan(name: str, ranks: int, microbatches: int, *costs: float, **options: Any) -> float:
    return play(program(name, ranks, microbatches, **options), *costs).makespan


def activations(name: str, ranks: int, microbatches: int, **options: Any) -> list[float]:
    """Return the peak number of activations on each rank, in stages."""
    made = schedules[name](**options).program(Pipe(ranks, microbatches))
    return (peak_inflight(made) * made.stages / ranks).tolist()


def devices(name: str, ranks: int, microbatches: int, transfer: float = 0.0, **options: Any) -> Timeline:
    """Return the makespan in the Hanayo paper's units: a device's share of the model takes 1 forward and 2 backward."""
    made = program(name, ranks, microbatches, **options)
    share = ranks / made.stages
    return play(made, share, 2 * share, transfer)
