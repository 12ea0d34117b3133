"""Durations of the actions of a run, in the sense in which the simulator takes its costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import RECEIVES, SENDS, Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.recording import Recording, Spans, stood_still

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

MOST_SPANS = 3_000_000
"""That are looked at for what the actions took: a hundred bytes each."""


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Durations of each action of a program, in the sense in which the simulator takes its costs."""

    seconds: Floats  # [rows]
    known: Bools  # [rows] False for a SEND that nobody ever waited for: its seconds are a guess
    at_most: Floats  # [rows] the seconds that are known, and of such a SEND those that it took at most


def measured_rows(prediction: Prediction, recording: Recording) -> MeasuredRows:
    """The median over the steps that are timed.

    A slot's seconds are shared between its two rows as was predicted. A reduction takes from when the last of
    those who share it has begun it, and what its rank reduced before is done, to when its result is there; an
    optimizer step from when all is there that it waits for. A transfer takes from its SEND (of a run, from when
    its receiver was ready for it, where that is later) until it arrived; how long, is known where its receiver stood
    still for it.
    """
    program, predicted = prediction.program, prediction.costs.seconds
    timed = recording.timed
    most = max(1, MOST_SPANS // max(len(program), 1))
    spans = recording.rows(timed[:: -(-len(timed) // most)])  # evenly over a long run
    start, end = ((spans[column] - spans["start_ns"].min()) / 1e9 for column in ("start_ns", "end_ns"))
    took = end - start
    _share_slots(program, predicted, took)
    reduced = _shared(prediction)
    took[:, program.op == Op.REDUCE_GRAD] = 0.0  # a weight that nobody shares is not reduced at all
    took[:, reduced] = _reductions(program, reduced, start, end)
    _steps(program, reduced, spans, start, end, took)
    seconds = np.median(took, axis=0)
    known = np.ones(len(program), np.bool_)
    sends, until, waited = _transfers(program, spans, start, end, recording)
    seconds[sends], known[sends] = _transfer_seconds(program, sends, until, waited, predicted)
    seconds[np.isin(program.op, RECEIVES)] = 0.0
    others = ~program.is_compute  # of a slot the second row may take less than nothing
    seconds[others] = np.maximum(seconds[others], 0.0)
    at_most = seconds.copy()
    at_most[sends] = np.where(known[sends], seconds[sends], np.maximum(until.min(axis=0), 0.0))
    return MeasuredRows(seconds, known, at_most)


def _share_slots(program: Program, predicted: Floats, took: Floats) -> None:
    second = np.flatnonzero(program.fused)
    both = predicted[second - 1] + predicted[second]
    share = np.divide(predicted[second], both, out=np.full(len(second), 0.5), where=both > 0)
    took[:, second - 1] *= 1 - share
    took[:, second] *= share


def _shared(prediction: Prediction) -> Rows:
    """Return the reductions of weights that have copies."""
    program, meshes = prediction.program, prediction.design.meshes
    rows = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    stage = program.stage[rows]
    copies = np.zeros(program.stages, np.int64)
    np.add.at(copies, stage, [meshes[rank].dp for rank in program.rank[rows].tolist()])
    return rows[copies[stage] > 1]


def _reductions(program: Program, reduced: Rows, start: Floats, end: Floats) -> Floats:
    """Return ``[steps, reductions]`` seconds of each."""
    took = np.zeros((len(start), len(reduced)))
    before: dict[int, Floats] = {}
    for number, row in enumerate(reduced.tolist()):
        rank = int(program.rank[row])
        begun = start[:, reduced[program.stage[reduced] == program.stage[row]]].max(axis=1)
        took[:, number] = np.maximum(end[:, row] - np.maximum(begun, before.get(rank, begun)), 0.0)
        before[rank] = end[:, row]
    return took


def _steps(program: Program, reduced: Rows, spans: Spans, start: Floats, end: Floats, took: Floats) -> None:
    """Set the durations of optimizer steps, which may begin with the norm of all gradients."""
    rows = np.flatnonzero(program.op == Op.STEP)
    ready = start[:, rows] - spans["wait_ns"][:, rows] / 1e9
    place = np.searchsorted(program.rank[rows], program.rank)  # of the step of each row's rank
    for row in reduced.tolist():
        ready[:, place[row]] = np.maximum(ready[:, place[row]], end[:, row])
    if program.clips and len(rows):
        ready[:] = ready.max(axis=1)[:, None]
    took[:, rows] = np.maximum(end[:, rows] - np.minimum(ready, start[:, rows]), 0.0)


def _transfers(
    program: Program, spans: Spans, start: Floats, end: Floats, recording: Recording
) -> tuple[NDArray[np.intp], Floats, Bools]:
    """The rows of all SENDs; [steps, sends] the seconds of each until it was in hand, and whether its receiver stood
    still for it, so that these are the transfer's own. In a rehearsal a message sets out whoever is ready for it.

    One that had not been sent when its receiver stood still for it takes from when it was: who was late is its sender.
    """
    sends, receives = _matched(program)
    begun = start[:, sends]
    if recording.source != "rehearsed":
        begun = np.maximum(begun, start[:, receives])
    took = end[:, receives] - begun
    waited = stood_still(spans["wait_ns"][:, receives], 1e9 * took)
    return sends, took, np.full_like(waited, True) if recording.knows_arrivals else waited


def _matched(program: Program) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of all SENDs, and the row of the RECV of each."""
    message = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    rows = np.flatnonzero(message)
    op, stage, other = program.op[rows], program.stage[rows].astype(np.int64), program.other[rows]
    sent, onward = np.isin(op, SENDS), np.where(np.isin(op, (Op.SEND_F, Op.RECV_F)), 1, -1)
    end = np.where(other >= 0, other, stage + np.where(sent, onward, -onward))
    source, target = np.where(sent, stage, end), np.where(sent, end, stage)
    width = program.stages + 1
    key = (((onward > 0) * width + source) * width + target) * (program.microbatches + 1) + program.microbatch[rows]
    taken = rows[~sent][np.argsort(key[~sent])]
    return rows[sent], taken[np.searchsorted(np.sort(key[~sent]), key[sent])]


def _transfer_seconds(
    program: Program, sends: NDArray[np.intp], until: Floats, waited: Bools, predicted: Floats
) -> tuple[Floats, Bools]:
    """Return ``[sends]`` seconds, the median of the steps in which somebody waited for it.

    A transfer that nobody waited for takes as long as others of its kind and link, or as predicted, but no longer
    than until it was received.
    """
    bound = until.min(axis=0)
    known = np.asarray(waited.any(axis=0))
    seconds = np.minimum(predicted[sends], bound)
    if known.any():
        seconds[known] = np.nanmedian(np.where(waited, until, np.nan)[:, known], axis=0)
    link = program.rank[sends].astype(np.int64) * program.ranks + program.peer[sends]
    link = 2 * link + (program.op[sends] == Op.SEND_F)
    for number in np.unique(link[known]).tolist():
        of_link = link == number
        unseen = of_link & ~known
        seconds[unseen] = np.minimum(np.median(seconds[of_link & known]), bound[unseen])
    return seconds, known


def keeps_busy(program: Program) -> Bools:
    """Return ``[rows]`` whether each keeps a device busy."""
    busy: Bools = program.is_compute | (program.op == Op.STEP)
    return busy
