"""Simulation of schedules with the costs of a paper."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from meshwave.engine.costs import peak_inflight
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import SENDS, Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import TransferModel, simulate
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.schedules import Pipe, schedules


@lru_cache(maxsize=64)
def schedule_program(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    """Return the program of a schedule, with transfers."""
    return add_transfers(compute_program(name, ranks, microbatches, **options))


def compute_program(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    """Return the program of a schedule without transfers."""
    schedule: Any = schedules[name]
    program: Program = schedule(**options).program(Pipe(ranks, microbatches))
    return program


def simulate_uniform(
    program: Program,
    forward: float = 1.0,
    backward: float = 2.0,
    transfer: float = 0.0,
    weight: float | None = None,
    fused: float | None = None,
    transfer_model: TransferModel = "latency",
) -> Timeline:
    """Simulate a program with equal costs of all stages.

    Args:
        program: the program.
        forward: seconds of a forward.
        backward: seconds of a full backward.
        transfer: seconds of a transfer.
        weight: the part of the backward for weight gradients; by default half of it.
        fused: seconds of a slot with two actions; by default their sum.
        transfer_model: the transfer model.
    """
    weight = backward / 2 if weight is None else weight
    cost = np.zeros(len(Op))
    cost[[Op.F, Op.B, Op.I, Op.W]] = forward, backward, backward - weight, weight
    cost[list(SENDS)] = transfer
    seconds = cost[program.op]
    if fused is not None:
        seconds[program.fused] = fused - seconds[np.flatnonzero(program.fused) - 1]
    return simulate(program, seconds, transfer_model)


def stage_timeline(name: str, ranks: int, microbatches: int, *costs: Any, **options: Any) -> Timeline:
    """Simulate a schedule with the costs of a stage: forward, backward and transfer."""
    return simulate_uniform(schedule_program(name, ranks, microbatches, **options), *costs)


def device_timeline(
    name: str, ranks: int, forward: float = 1.0, backward: float = 2.0, transfer: float = 0.0, **options: Any
) -> Timeline:
    """Simulate a schedule in the units of the Hanayo paper.

    T_F and T_B are the times of a device's share of the model; there are as many microbatches as devices.
    """
    program = schedule_program(name, ranks, ranks, **options)
    share = ranks / program.stages
    return simulate_uniform(program, forward * share, backward * share, transfer)


def hanayo_timeline(ranks: int, waves: int, **costs: float) -> Timeline:
    """Simulate Hanayo in the units of its paper."""
    return device_timeline("hanayo", ranks, waves=waves, **costs)


def peak_activations(name: str, ranks: int, microbatches: int, **options: Any) -> list[float]:
    """Return the peak number of live activations of each rank, in units of a device's share of the model."""
    return [float(peak) for peak in peak_inflight(schedule_program(name, ranks, microbatches, **options))]


def longest_idle(timeline: Timeline) -> float:
    """Return the longest idle time of a rank between its own first start and last end, in seconds."""
    idle = []
    for rank in range(timeline.ranks):
        mine = timeline.is_compute & (timeline.rank == rank)
        start, end, once = timeline.start[mine], timeline.end[mine], ~timeline.fused[mine]
        idle.append(float(end.max() - start.min() - (end - start)[once].sum()))
    return max(idle)
