"""Measured durations of the actions of a run, defined like the costs of the simulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import RECEIVES, SENDS, Op
from meshwave.engine.program.program import Program
from meshwave.engine.runs.recording import Recording, Spans, has_waited

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

MOST_SPANS = 3_000_000
"""Maximum number of spans that are read to measure durations; a span takes about a hundred bytes."""


@dataclass(frozen=True, eq=False)
class MeasuredDurations:
    """Measured durations of the actions of a program in seconds, defined like the costs of the simulator."""

    seconds: Floats  # [rows]
    known: Bools  # [rows] False for a SEND that no receiver waited for: its seconds are an estimate
    at_most: Floats  # [rows] the known seconds, and upper bounds for the other SENDs


def measured_durations(prediction: Prediction, recording: Recording) -> MeasuredDurations:
    """Return the median duration of each action over the timed steps.

    The duration of a slot is divided between its two actions in proportion to their predictions. A reduction starts
    when its last participant has begun it and the previous reduction of its rank is done; a gather of weights starts
    when the previous gather of its rank is done. An optimizer step starts when
    all its inputs have arrived. A transfer starts at its SEND; outside dry runs it starts when its receiver is ready,
    if that is later. Its end is known if the receiver waited for it.
    """
    program, predicted = prediction.program, prediction.simulated_seconds
    timed = recording.timed_steps
    most = max(1, MOST_SPANS // max(len(program), 1))
    spans = recording.rows(timed[:: -(-len(timed) // most)])  # evenly spaced over a long run
    start, end = ((spans[column] - spans["start_ns"].min()) / 1e9 for column in ("start_ns", "end_ns"))
    took = end - start
    _divide_slot_durations(program, predicted, took)
    reduced = _replicated_reductions(prediction)
    took[:, program.op == Op.REDUCE_GRAD] = 0.0  # weights without copies are not reduced
    begun = _reduction_starts(program, reduced, start)
    took[:, reduced] = _serial_seconds(program, reduced, begun, end)
    gathers = np.flatnonzero(program.op == Op.UNSHARD)
    took[:, gathers] = _serial_seconds(program, gathers, start[:, gathers], end)
    _set_step_durations(program, reduced, spans, start, end, took)
    seconds = np.median(took, axis=0)
    known = np.ones(len(program), np.bool_)
    sends, until, waited = _recorded_transfers(program, spans, start, end, recording)
    seconds[sends], known[sends] = _transfer_seconds(program, sends, until, waited, predicted)
    seconds[np.isin(program.op, RECEIVES)] = 0.0
    others = ~program.is_compute  # the second row of a slot may have a negative duration
    seconds[others] = np.maximum(seconds[others], 0.0)
    at_most = seconds.copy()
    at_most[sends] = np.where(known[sends], seconds[sends], np.maximum(until.min(axis=0), 0.0))
    return MeasuredDurations(seconds, known, at_most)


def _divide_slot_durations(program: Program, predicted: Floats, took: Floats) -> None:
    second = np.flatnonzero(program.fused)
    both = predicted[second - 1] + predicted[second]
    share = np.divide(predicted[second], both, out=np.full(len(second), 0.5), where=both > 0)
    took[:, second - 1] *= 1 - share
    took[:, second] *= share


def _replicated_reductions(prediction: Prediction) -> Rows:
    """Return the reductions of weights that have replicas."""
    program, meshes = prediction.program, prediction.design.meshes
    rows = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    stage = program.stage[rows]
    copies = np.zeros(program.stages, np.int64)
    np.add.at(copies, stage, [meshes[rank].dp for rank in program.rank[rows].tolist()])
    return rows[copies[stage] > 1]


def _reduction_starts(program: Program, reduced: Rows, start: Floats) -> Floats:
    """Return the time at which the last participant of each reduction begins it, ``[steps, reductions]``."""
    parts = program.stage[reduced] + program.stages * program.bucket[reduced]
    begun = [start[:, reduced[parts == part]].max(axis=1) for part in parts.tolist()]
    return np.stack(begun, axis=1) if begun else np.zeros((len(start), 0))


def _serial_seconds(program: Program, rows: Rows, begun: Floats, end: Floats) -> Floats:
    """Return the durations of collectives that each rank runs one after the other, ``[steps, rows]`` in seconds.

    Args:
        program: the program.
        rows: the collectives.
        begun: [steps, rows] times at which they begin unless an earlier one is in progress.
        end: [steps, rows of the program] ends of all actions.
    """
    took = np.zeros_like(begun)
    before: dict[int, Floats] = {}
    for number, row in enumerate(rows.tolist()):
        rank = int(program.rank[row])
        first = np.maximum(begun[:, number], before.get(rank, begun[:, number]))
        took[:, number] = np.maximum(end[:, row] - first, 0.0)
        before[rank] = end[:, row]
    return took


def _set_step_durations(
    program: Program, reduced: Rows, spans: Spans, start: Floats, end: Floats, took: Floats
) -> None:
    """Set the durations of optimizer steps, which include the norm of all gradients if gradients are clipped."""
    rows = np.flatnonzero(program.op == Op.STEP)
    ready = start[:, rows] - spans["wait_ns"][:, rows] / 1e9
    place = np.searchsorted(program.rank[rows], program.rank)  # [rows] step of the rank
    for row in reduced.tolist():
        ready[:, place[row]] = np.maximum(ready[:, place[row]], end[:, row])
    if program.clips and len(rows):
        ready[:] = ready.max(axis=1)[:, None]
    took[:, rows] = np.maximum(end[:, rows] - np.minimum(ready, start[:, rows]), 0.0)


def _recorded_transfers(
    program: Program, spans: Spans, start: Floats, end: Floats, recording: Recording
) -> tuple[NDArray[np.intp], Floats, Bools]:
    """Return the transfers of the recorded steps.

    In a dry run a message leaves before its receiver is ready. Time that a receiver waits before the SEND does not
    count, because the sender was late.

    Returns:
        The row of each SEND; its seconds until arrival, ``[steps, sends]``; and ``[steps, sends]`` True if the receiver
        waited for it, so that these seconds are the duration of the transfer.
    """
    sends, receives = _send_receive_pairs(program)
    begun = start[:, sends]
    if recording.source != "rehearsed":
        begun = np.maximum(begun, start[:, receives])
    took = end[:, receives] - begun
    waited = has_waited(spans["wait_ns"][:, receives], 1e9 * took)
    return sends, took, np.full_like(waited, True) if recording.has_arrival_times else waited


def _send_receive_pairs(program: Program) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the row of each SEND, and the row of the matching RECV, ``[sends]`` each."""
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
    """Return the duration of each SEND in seconds, and whether it is known, ``[sends]`` each.

    A known duration is the median of the steps in which the receiver waited. A transfer that no receiver waited for
    deviates from its prediction by the median factor of other transfers of its kind and link, or otherwise not; it is
    limited by its upper bound.
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
        seen, unseen = of_link & known, of_link & ~known
        # Waits for shared links make the transfers of a link unequal, so that they are compared with their predictions.
        scale = predicted[sends] if predicted[sends[of_link]].all() else np.ones(len(sends))
        seconds[unseen] = np.minimum(np.median(seconds[seen] / scale[seen]) * scale[unseen], bound[unseen])
    return seconds, known


def busy_rows(program: Program) -> Bools:
    """Return a mask of the actions that occupy a device, ``[rows]``."""
    busy: Bools = program.is_compute | (program.op == Op.STEP)
    return busy
