"""Memory of a device over the step: what is always there, and what comes and goes: activations, gradients, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.cost_model import Costs
from meshwave.engine.costs.device_sizes import most_alive
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """The most that a device of each rank holds at once, by what it is for at that moment."""

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
    alone and not on when they run. What comes and goes is told as it is where all of it together is the most:
    activations; gradients, which are there from the first backward of a stage on, and twice where they are
    reduced (from a copy that holds them side by side); and, with what is always needed for work, what was sent,
    which is held until an answer to it is taken, or to the end of the step. The largest transient is counted on
    top, though it need not coincide with the rest: the sum is what must fit.
    """
    changes = _changes(program.op, program.rank, program.stage, program.microbatch, costs)
    alive = np.zeros((len(changes), len(program) + 1))  # before the first row, and after each
    for change, after in zip(changes, alive, strict=True):
        np.cumsum(change, out=after[1:])
    total = alive.sum(axis=0)
    highest = np.array([a + int(np.argmax(total[a : b + 1])) for a, b in pairwise(program.offsets.tolist())], np.intp)
    activations, gradients, sent = alive[:, highest] - alive[:, program.offsets[:-1]]
    categories = {
        "weights": costs.static_bytes["weights"],
        "gradients": gradients,
        "optimizer": costs.static_bytes["optimizer"],
        "activations": activations,
        "working": costs.working_bytes + sent,
    }
    return PeakMemory(categories, costs.capacity_bytes)


def peak_inflight(program: Program, layers: Sequence[int] | None = None) -> Floats:
    """[ranks] the most stage activations alive at once, in shares of the model of one device.

    A stage that is ``1/k`` of a device's share of the model counts ``1/k``: all the same, or by
    ``layers`` of each stage.
    """
    weights = np.ones(program.stages) if layers is None else np.asarray(layers, np.float64)
    alive = most_alive(program, _kept(program.op, program.stage, weights, weights))
    return np.asarray(alive * program.ranks / max(weights.sum(), 1.0))


def memory_over_time(timeline: Timeline, costs: Costs) -> list[tuple[Floats, Floats]]:
    """Per rank the times at which a device's memory changes, and its bytes from each time on.

    Activations come at the start of a forward and go at the end of the backward; where that is
    split, the end of the input gradient leaves what the weight gradient needs, which goes at its end.
    What is sent comes with the computation that makes it and goes with the one that takes an answer to it.
    Gradients come at the end of the first backward of a stage, and go with the optimizer step, as does what was sent
    without an answer. Weights, optimizer states and the working set are there throughout. Each rank starts at time 0.
    """
    shown = np.flatnonzero(timeline.is_compute | np.isin(timeline.op, (Op.REDUCE_GRAD, Op.STEP)))
    op, rank = timeline.op[shown], timeline.rank[shown]
    time = np.where((op == Op.F) | (op == Op.STEP), timeline.start[shown], timeline.end[shown])
    order = np.lexsort((op == Op.STEP, time, rank))  # stable: what ends at a time stays before what starts at it
    op, rank, time = op[order], rank[order], time[order]
    stage, microbatch = timeline.stage[shown][order], timeline.microbatch[shown][order]
    kept, *held = _changes(op, rank, stage, microbatch, costs)
    steps = op == Op.STEP
    gone = np.bincount(rank, np.sum(held, axis=0), minlength=timeline.ranks)[rank[steps]]
    ends = timeline.end[shown][order][steps]
    time, rank, change = (
        np.concatenate(both) for both in ((time, ends), (rank, rank[steps]), (kept + np.sum(held, axis=0), -gone))
    )
    order = np.argsort(rank, kind="stable")  # a step's end comes last
    time, change = time[order], change[order]
    always = costs.static_bytes["weights"] + costs.static_bytes["optimizer"] + costs.working_bytes
    bounds = np.searchsorted(rank[order], np.arange(timeline.ranks + 1))
    return [
        (
            np.concatenate(([0.0], time[first:end])),
            np.concatenate(([0.0], np.cumsum(change[first:end]))) + always[number],
        )
        for number, (first, end) in enumerate(pairwise(bounds))
    ]


def _changes(
    op: NDArray[np.int8], rank: Ints, stage: Ints, microbatch: Ints, costs: Costs
) -> tuple[Floats, Floats, Floats]:
    """By how much each action changes activations, gradients and what was sent; the actions of a rank are in order.

    The reduced copies of gradients are counted with the step, whose start finds them; its end, which takes all
    away, is left out.
    """
    stages = costs.gradient_bytes.shape[1]
    cell = rank.astype(np.int64) * stages + stage
    gradients, sent = np.zeros(len(op)), np.zeros(len(op))
    for way, kinds in enumerate(((Op.F,), (Op.B, Op.I))):
        rows = np.flatnonzero(np.isin(op, kinds))
        sent[rows] = costs.sent_bytes[way, stage[rows], microbatch[rows]]
    adds = np.flatnonzero((op == Op.B) | (op == Op.W))
    first = np.full(costs.gradient_bytes.size, -1)
    first[cell[adds][::-1]] = adds[::-1]  # of several, the first one stays
    made = np.flatnonzero(first >= 0)
    gradients[first[made]] = costs.gradient_bytes.ravel()[made]
    reduced, steps = op == Op.REDUCE_GRAD, op == Op.STEP
    copies = np.bincount(
        rank[reduced], costs.gradient_bytes.ravel()[cell[reduced]], minlength=len(costs.gradient_bytes)
    )
    gradients[steps] = copies[rank[steps]]
    return _kept(op, stage, costs.activation_bytes, costs.deferred_bytes), gradients, sent


def _kept(op: NDArray[np.int8], stage: Ints, kept: Floats, deferred: Floats) -> Floats:
    """By how much each action changes what is alive: ``kept`` from F to the end of B or I, ``deferred``
    from there to the end of W; both are ``[stages]``."""
    change = np.zeros(len(op))
    for kind, by in ((Op.F, kept), (Op.B, -kept), (Op.I, deferred - kept), (Op.W, -deferred)):
        rows = op == kind
        change[rows] = by[stage[rows]]
    return change
