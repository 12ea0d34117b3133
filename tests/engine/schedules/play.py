"""Simulation of schedules with transfers at uniform costs, to which the closed forms of the papers apply."""

from __future__ import annotations

from typing import Any

from meshwave.engine.bench.papers.schedule_simulation import schedule_program as program
from meshwave.engine.bench.papers.schedule_simulation import simulate_uniform as play
from meshwave.engine.costs import peak_inflight
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Pipe, schedules


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
