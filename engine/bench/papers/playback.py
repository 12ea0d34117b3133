"""To play a schedule at a paper's costs."""

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
def program_of(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    return add_transfers(ordered(name, ranks, microbatches, **options))


def ordered(name: str, ranks: int, microbatches: int, **options: Any) -> Program:
    """The computations alone."""
    schedule: Any = schedules[name]
    program: Program = schedule(**options).program(Pipe(ranks, microbatches))
    return program


def played_at(
    program: Program,
    forward: float = 1.0,
    backward: float = 2.0,
    transfer: float = 0.0,
    weight: float | None = None,
    fused: float | None = None,
    transfer_model: TransferModel = "latency",
) -> Timeline:
    """A program at uniform costs of one stage; ``weight`` is a part of ``backward``, half of it unless it
    is given, and a slot of two takes ``fused``, else their sum."""
    weight = backward / 2 if weight is None else weight
    cost = np.zeros(len(Op))
    cost[[Op.F, Op.B, Op.I, Op.W]] = forward, backward, backward - weight, weight
    cost[list(SENDS)] = transfer
    seconds = cost[program.op]
    if fused is not None:
        seconds[program.fused] = fused - seconds[np.flatnonzero(program.fused) - 1]
    return simulate(program, seconds, transfer_model)


def stages(name: str, ranks: int, microbatches: int, *costs: Any, **options: Any) -> Timeline:
    """Costs of one stage: its forward, backward and a transfer."""
    return played_at(program_of(name, ranks, microbatches, **options), *costs)


def devices(
    name: str, ranks: int, forward: float = 1.0, backward: float = 2.0, transfer: float = 0.0, **options: Any
) -> Timeline:
    """The Hanayo paper's units: T_F and T_B of a device's share of the model, and as many microbatches as devices."""
    program = program_of(name, ranks, ranks, **options)
    share = ranks / program.stages
    return played_at(program, forward * share, backward * share, transfer)


def in_waves(ranks: int, waves: int, **costs: float) -> Timeline:
    return devices("hanayo", ranks, waves=waves, **costs)


def held(name: str, ranks: int, microbatches: int, **options: Any) -> list[float]:
    """``[ranks]`` the most activations alive at once, in shares of the model of one device."""
    return [float(peak) for peak in peak_inflight(program_of(name, ranks, microbatches, **options))]


def longest_idle(timeline: Timeline) -> float:
    """The most that a rank idles between its own first start and last end."""
    idle = []
    for rank in range(timeline.ranks):
        mine = timeline.is_compute & (timeline.rank == rank)
        start, end, once = timeline.start[mine], timeline.end[mine], ~timeline.fused[mine]
        idle.append(float(end.max() - start.min() - (end - start)[once].sum()))
    return max(idle)
