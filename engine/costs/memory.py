"""Memory of a device during a step: constant parts, activations, gradients and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.cost_model import Costs
from meshwave.engine.costs.device_sizes import peak_per_rank
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.row_order import lexical_order
from meshwave.engine.program.timeline import Timeline

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
CATEGORIES = ("weights", "optimizer", "gradients", "working", "activations")
"""Categories of memory, the most constant first."""


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """Peak memory per device of each rank in bytes, by category at the time of the peak."""

    by_category: Mapping[str, Floats]  # [ranks] bytes of weights, gradients, optimizer, activations, working set
    capacity_bytes: float

    @property
    def total_bytes(self) -> Floats:
        """Peak bytes of each rank, ``[ranks]``."""
        return np.asarray(sum(self.by_category.values()))

    @property
    def fits(self) -> NDArray[np.bool_]:
        """True where the peak is within the capacity of a device, ``[ranks]``."""
        return np.asarray(self.total_bytes <= self.capacity_bytes)


def peak_memory(program: Program, costs: Costs) -> PeakMemory:
    """Return the peak memory of every rank.

    A rank runs one action at a time, so its memory depends on the order of its actions but not on their times. The
    categories are those at the time when their sum is largest. Activations change with computations, and weights with
    UNSHARD and RESHARD. Gradients exist from the first backward of a stage, and twice while they are reduced, since the
    reduction works on a contiguous copy. Sent tensors are kept until their acknowledgement arrives, or to the end of the
    step, and count as ``working``. The largest transient is added to the peak even if it occurs at another time, so the
    result is an upper bound.
    """
    rows = np.flatnonzero((program.op < Op.SEND_F) | (program.op > Op.RECV_B))  # messages themselves change no memory
    offsets = np.searchsorted(rows, program.offsets)
    stage, microbatch = program.stage[rows], program.microbatch[rows]
    changes = _memory_changes(program.op[rows], program.rank[rows], stage, microbatch, costs)
    alive = np.zeros((len(changes), len(rows) + 1))  # bytes before the first row, and after each row
    for change, after in zip(changes, alive, strict=True):
        np.cumsum(change, out=after[1:])
    total = alive.sum(axis=0)
    highest = np.array([a + int(np.argmax(total[a : b + 1])) for a, b in pairwise(offsets.tolist())], np.intp)
    activations, unsharded, gradients, sent = alive[:, highest] - alive[:, offsets[:-1]]
    categories = {
        "weights": costs.static_bytes["weights"] + unsharded,
        "gradients": gradients,
        "optimizer": costs.static_bytes["optimizer"],
        "activations": activations,
        "working": costs.working_bytes + sent,
    }
    return PeakMemory(categories, costs.capacity_bytes)


def peak_inflight(program: Program, layers: Sequence[int] | None = None) -> Floats:
    """Return the peak number of live activations of each rank, in units of a device's share of the model.

    The result is ``[ranks]``. A stage that has ``1/k`` of a device's share counts ``1/k``. All stages count equally
    unless their ``layers`` are given.
    """
    weights = np.ones(program.stages) if layers is None else np.asarray(layers, np.float64)
    alive = peak_per_rank(program, _activation_changes(program.op, program.stage, weights, weights))
    return np.asarray(alive * program.ranks / max(weights.sum(), 1.0))


def memory_over_time(timeline: Timeline, costs: Costs) -> list[tuple[Floats, Floats]]:
    """Return, per rank, the times at which a device's memory changes, and the bytes from each of these times.

    Activations are allocated at the start of a forward and freed at the end of the backward; if the backward is split,
    the inputs of the weight gradient remain until its end. A sent tensor is kept from the computation that makes it to
    the computation that receives its acknowledgement, or to the optimizer step. Gradients are allocated at the end of
    the first backward of a stage and freed by the optimizer step. Gathered weights are allocated at the start of an
    UNSHARD and freed by a RESHARD. Other weights, optimizer states and the working set are constant. Each rank starts at
    time 0.
    """
    return [(times, held.sum(axis=0)) for times, held in _bytes_over_time(timeline, costs, by_category=False)]


def memory_parts_over_time(timeline: Timeline, costs: Costs) -> list[tuple[Floats, dict[str, Floats]]]:
    """Return :func:`memory_over_time` with the bytes of each category instead of their sum."""
    return [
        (times, dict(zip(CATEGORIES, held, strict=True)))
        for times, held in _bytes_over_time(timeline, costs, by_category=True)
    ]


def _bytes_over_time(timeline: Timeline, costs: Costs, *, by_category: bool) -> list[tuple[Floats, Floats]]:
    """Return the times of changes of each rank, and the bytes after them, ``[categories or 1, times]``."""
    shown = np.flatnonzero(~timeline.is_transfer)
    op, rank = timeline.op[shown], timeline.rank[shown]
    time = np.where(np.isin(op, (Op.F, Op.STEP, Op.UNSHARD)), timeline.start[shown], timeline.end[shown])
    order = lexical_order((op == Op.STEP, time, rank))  # stable sort: an end stays before a start at the same time
    op, rank, time = op[order], rank[order], time[order]
    stage, microbatch = timeline.stage[shown][order], timeline.microbatch[shown][order]
    activations, unsharded, gradients, sent = _memory_changes(op, rank, stage, microbatch, costs)
    static, none, held = costs.static_bytes, np.zeros(len(op)), gradients + sent
    # per row of the result: bytes at the start, changes, and the changes that the optimizer step reverts
    rows = [
        (static["weights"], unsharded, none),
        (static["optimizer"], none, none),
        (np.zeros(timeline.ranks), gradients, gradients),
        (costs.working_bytes, sent, sent),
        (np.zeros(timeline.ranks), activations, none),
    ]
    if not by_category:
        always = static["weights"] + static["optimizer"] + costs.working_bytes
        rows = [(always, activations + unsharded + held, held)]
    steps = op == Op.STEP
    stepping = rank[steps]
    freed = [np.bincount(rank, reverted, minlength=timeline.ranks)[stepping] for _, _, reverted in rows]
    change = np.array([np.concatenate((each, -gone)) for (_, each, _), gone in zip(rows, freed, strict=True)])
    start = np.array([always for always, _, _ in rows])
    time, rank = np.concatenate((time, timeline.end[shown][order][steps])), np.concatenate((rank, stepping))
    order = np.argsort(rank, kind="stable")  # the end of the optimizer step is last
    time, change = time[order], change[:, order]
    bounds = np.searchsorted(rank[order], np.arange(timeline.ranks + 1))
    return [
        (
            np.concatenate(([0.0], time[first:end])),
            start[:, [number]] + np.pad(np.cumsum(change[:, first:end], axis=1), ((0, 0), (1, 0))),
        )
        for number, (first, end) in enumerate(pairwise(bounds))
    ]


def _memory_changes(
    op: NDArray[np.int8], rank: Ints, stage: Ints, microbatch: Ints, costs: Costs
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the change of activation, unsharded, gradient and sent bytes at each action, ``[actions]`` each.

    The actions of a rank are given in order. Reduced copies of gradients are added at the start of the optimizer step;
    its end, which frees all of them, is not included.
    """
    stages = costs.gradient_bytes.shape[1]
    cell = rank.astype(np.int64) * stages + stage
    unsharded, gradients, sent = np.zeros((3, len(op)))
    for kind, sign in ((Op.UNSHARD, 1), (Op.RESHARD, -1)):
        rows = np.flatnonzero(op == kind)
        unsharded[rows] = sign * costs.unsharded_bytes.ravel()[cell[rows]]
    for way, makes in enumerate((op == Op.F, (op == Op.B) | (op == Op.I))):
        rows = np.flatnonzero(makes)
        sent[rows] = costs.sent_bytes[way, stage[rows], microbatch[rows]]
    adds = np.flatnonzero((op == Op.B) | (op == Op.W))
    first = np.full(costs.gradient_bytes.size, -1)
    first[cell[adds][::-1]] = adds[::-1]  # the last assignment wins: that of the earliest row
    made = np.flatnonzero(first >= 0)
    gradients[first[made]] = costs.gradient_bytes.ravel()[made]
    reduced, steps = op == Op.REDUCE_GRAD, op == Op.STEP
    cells = np.unique(cell[reduced])  # once for all buckets of a stage
    copies = np.bincount(cells // stages, costs.reduced_bytes.ravel()[cells], minlength=len(costs.reduced_bytes))
    gradients[steps] = copies[rank[steps]]
    return _activation_changes(op, stage, costs.activation_bytes, costs.deferred_bytes), unsharded, gradients, sent


def _activation_changes(op: NDArray[np.int8], stage: Ints, kept: Floats, deferred: Floats) -> Floats:
    """Return the change of activation bytes at each action, ``[actions]``.

    Args:
        op: [actions] op of each action.
        stage: [actions] stage of each action.
        kept: [stages] bytes kept from F to the end of B or I.
        deferred: [stages] bytes kept from the end of I to the end of W.
    """
    table = np.zeros((len(Op), len(kept)))
    table[[Op.F, Op.B, Op.I, Op.W]] = kept, -kept, deferred - kept, -deferred
    return np.asarray(table[op, stage])
