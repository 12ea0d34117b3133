"""Memory of a device over the step: what is always there, and activations that come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.cost.costs import Costs
from engine.cost.sizes import most_alive
from engine.program.action import Op
from engine.program.program import Program
from engine.timeline import Timeline

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """The most that a device of each rank holds at once, by what it is for."""

    by_category: Mapping[str, Floats]  # [ranks] weights, gradients, optimizer, activations, working
    capacity_bytes: float

    @property
    def total_bytes(self) -> Floats:
        """[ranks]"""
        return np.asarray(sum(self.by_category.values()))

    @property
    def fits(self) -> NDArray[np.bool_]:
        """[ranks] whether a rank's devices have that much."""
        return np.asarray(self.total_bytes <= self.capacity_bytes)


def peak_memory(program: Program, costs: Costs) -> PeakMemory:
    """The peak of every rank.

    A rank does one thing at a time, so that what it holds depends on the order of its actions
    alone and not on when they run. The largest transient is counted on top of the most
    activations, though they need not coincide: the sum is what must fit.
    """
    activations = most_alive(program, _changes(program.op, program.stage, costs.activation_bytes, costs.deferred_bytes))
    categories = {**costs.static_bytes, "activations": activations, "working": costs.working_bytes}
    return PeakMemory(categories, costs.capacity_bytes)


def peak_inflight(program: Program, layers: Sequence[int] | None = None) -> Floats:
    """[ranks] the most stage activations alive at once, in shares of the model of one device.

    A stage that is ``1/k`` of a device's share of the model counts ``1/k``: all the same, or by
    ``layers`` of each stage.
    """
    weights = np.ones(program.stages) if layers is None else np.asarray(layers, np.float64)
    alive = most_alive(program, _changes(program.op, program.stage, weights, weights))
    return np.asarray(alive * program.ranks / max(weights.sum(), 1.0))


def memory_over_time(timeline: Timeline, costs: Costs) -> list[tuple[Floats, Floats]]:
    """Per rank the times at which a device's memory changes, and its bytes from each time on.

    Activations come at the start of a forward and go at the end of the backward; where that is
    split, the end of the input gradient leaves what the weight gradient needs, which goes at its end. Weights, gradients, optimizer states and the
    working set are there throughout. Each rank starts at time 0.
    """
    computes = timeline.is_compute
    op, rank, stage = timeline.op[computes], timeline.rank[computes], timeline.stage[computes]
    time = np.where(op == Op.F, timeline.start[computes], timeline.end[computes])
    change = _changes(op, stage, costs.activation_bytes, costs.deferred_bytes)
    order = np.lexsort((time, rank))  # stable: what ends at a time stays before what starts at it
    time, change = time[order], change[order]
    always = np.sum([*costs.static_bytes.values(), costs.working_bytes], axis=0)
    ends = np.searchsorted(rank[order], np.arange(timeline.ranks + 1))
    return [
        (
            np.concatenate(([0.0], time[first:end])),
            np.concatenate(([0.0], np.cumsum(change[first:end]))) + always[number],
        )
        for number, (first, end) in enumerate(pairwise(ends))
    ]


def _changes(op: NDArray[np.int8], stage: NDArray[np.int32], kept: Floats, deferred: Floats) -> Floats:
    """By how much each action changes what is alive: ``kept`` from F to the end of B or I, ``deferred``
    from there to the end of W; both are ``[stages]``."""
    change = np.zeros(len(op))
    for kind, by in ((Op.F, kept), (Op.B, -kept), (Op.I, deferred - kept), (Op.W, -deferred)):
        rows = op == kind
        change[rows] = by[stage[rows]]
    return change
