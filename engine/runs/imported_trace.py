"""Import of another tool's trace as a finished run with a measured timeline.

Traces do not record when a message arrives. A message is assumed to last from the end of the computation before its
send to the start of the computation after its receive. A host measures a computation from the call that waits for its
input; such a computation is assumed to start no earlier than the end of the computation that produces its input.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document import Design
from meshwave.engine.files import write_private
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import StageSeconds, Trace, TracedProcess
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import RECEIVES, Op
from meshwave.engine.program.program import Program
from meshwave.engine.run_files import write_document
from meshwave.engine.runs.outcome import success_verdict, to_json
from meshwave.engine.runs.process_identity import own_handle
from meshwave.engine.runs.recording import Recorder
from meshwave.engine.runs.run import RESULT, Progress
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State
from meshwave.engine.runs.run_folder import RunSpec, process_count, rank_and_mesh, write_bundle
from meshwave.engine.units import format_count

MANNER = "imported trace"
MOST_NAMED = 5
"""Maximum number of actions that an error message lists."""
Int64s = NDArray[np.int64]


def add_trace_run(record: Record, prediction: Prediction, trace: Trace, person: str = "") -> Entry:
    """Add a trace to the run database as a finished run of a predicted design, of the learner ``person``.

    Raises:
        Refusal: the computations of the trace differ from those of the design's program.
    """
    no_text = {"data": None, "tokenizer": None, "end_of_text": None}  # training texts are not part of a trace
    training = prediction.design.training.model_copy(update=no_text)
    design = prediction.design.model_copy(update={"training": training})
    prediction = replace(prediction, design=design)
    start, end = _computation_times(prediction, trace)
    entry, _ = record.submit(
        name=design.name,
        launcher="local",
        handle={"owner": own_handle()},
        digest=prediction.program.digest,
        processes=process_count(design),
        steps=len(start),
        manner=MANNER,
        person=person,
        limit=10**9,
    )
    folder = write_bundle(RunSpec(prediction, design), record.folder(entry.id)).folder
    process = 0
    names = [mesh.name for mesh in design.meshes]
    for rank, mesh in enumerate(design.meshes):
        recorder = Recorder(folder, prediction.program, names, process, rank)
        for step, spans in enumerate(zip(*_fill_gaps(prediction.program, rank, start, end), strict=True)):
            if recorder.is_due(step):
                recorder.write(step, *spans)
        recorder.close()
        process += len(mesh.devices)
    write_private(folder / "metrics.jsonl", "".join(_metric_lines(prediction, start, end)))
    events = [{"event": "chosen", "time": time.time(), "note": _import_note(trace)}]
    events += [{"event": "step", "time": time.time(), "step": step} for step in range(len(start))]
    write_private(folder / "events-0.jsonl", "".join(json.dumps(event) + "\n" for event in events))
    verdict = success_verdict(Progress(len(start), len(start)))
    write_document(folder / RESULT, to_json(entry.id, verdict, design, []))
    record.change_state(entry.id, State.RUNNING)
    record.change_state(entry.id, verdict.state, verdict.reason)
    return record.get(entry.id)


def _import_note(trace: Trace) -> str:
    if trace.stage_seconds:
        return "simulated from measured seconds of each stage"
    return f"read from a trace of {format_count(len(trace.processes), 'process', 'processes')}"


def _metric_lines(prediction: Prediction, start: Int64s, end: Int64s) -> Iterator[str]:
    compute = prediction.program.is_compute
    for step in range(len(start)):
        seconds = float(end[step, compute].max() - start[step, compute].min()) / 1e9
        rate = prediction.costs.tokens / seconds if seconds else 0.0
        yield json.dumps({"step": step, "seconds": seconds, "tokens_per_s": rate}) + "\n"


def _computation_times(prediction: Prediction, trace: Trace) -> tuple[Int64s, Int64s]:
    """Return the start and end times of each computation in nanoseconds, two arrays ``[steps, rows]``."""
    if trace.stage_seconds:
        return _simulated_times(prediction, trace)
    program = prediction.program
    by_row: dict[int, list[tuple[int, int]]] = {}
    waiting: set[int] = set()
    for process in trace.processes:  # replicas of a mesh compute the same: use the first one
        for row, found in _recorded_times(prediction.design, program, process).items():
            if row not in by_row:
                by_row[row] = found
                waiting |= {row} if process.includes_waiting else set()
    rows = np.flatnonzero(program.is_compute).tolist()
    _check_complete(program, [row for row in rows if row not in by_row])
    steps = min(len(by_row[row]) for row in rows)
    times = np.zeros((2, steps, len(program)), np.int64)
    for row in rows:
        times[:, :, row] = np.array(by_row[row][:steps]).T
    _remove_waiting(program, waiting, *times)
    return times[0], times[1]


def _remove_waiting(program: Program, rows: Iterable[int], start: Int64s, end: Int64s) -> None:
    """Move the start of each computation to the end of the computation that produces its input, if that ends later."""
    index = {_computation_key(program, row): row for row in np.flatnonzero(program.is_compute).tolist()}
    for row in rows:
        op, stage, microbatch = _computation_key(program, row)
        producer = index.get((op, stage + (-1 if op is Op.F else 1), microbatch))
        if producer is not None and op is not Op.W:
            start[:, row] = np.clip(end[:, producer], start[:, row], end[:, row])


def _simulated_times(prediction: Prediction, trace: Trace) -> tuple[Int64s, Int64s]:
    program, costs = prediction.program, prediction.costs
    known = _add_full_backwards(trace.stage_seconds)
    seconds = costs.seconds.copy() if costs.unit == "s" else np.zeros(len(program))
    rows = np.flatnonzero(program.is_compute)
    keys = [(Op(int(program.op[row])), int(program.stage[row])) for row in rows]
    _check_complete(program, [row for row, key in zip(rows.tolist(), keys, strict=True) if key not in known])
    seconds[rows] = [known[key] for key in keys]
    timeline, spans = costs.simulate(program, seconds), program.span_of_row[rows]
    times = np.zeros((2, 1, len(program)), np.int64)
    times[:, 0, rows] = np.rint(np.stack([timeline.start[spans], timeline.end[spans]]) * 1e9)
    return times[0], times[1]


def _add_full_backwards(known: StageSeconds) -> StageSeconds:
    """Return the times with full backwards of stages for which only both gradients are known; they take the sum."""
    halves = {stage: seconds for (op, stage), seconds in known.items() if op == Op.I and (Op.W, stage) in known}
    return {(Op.B, stage): seconds + known[Op.W, stage] for stage, seconds in halves.items()} | dict(known)


def _recorded_times(design: Design, program: Program, process: TracedProcess) -> dict[int, list[tuple[int, int]]]:
    """Return the start and end times of each row that a process computed, one pair for each step, by row."""
    if process.process >= process_count(design):
        raise Refusal("trace_of_more_processes", {"process": process.process, "processes": process_count(design)})
    rank = rank_and_mesh(design, process.process)[0]
    own = program.rows(rank)
    order: dict[Op, list[int]] = defaultdict(list)
    for row in range(own.start, own.stop):
        order[Op(int(program.op[row]))].append(row)
    index = {_computation_key(program, row): row for row in np.flatnonzero(program.is_compute).tolist()}
    stages = program.stages_of(rank)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    seen: Counter[Op] = Counter()
    place: int | None
    for action in process.actions:
        if action.microbatch is None:
            rows = order[action.op]
            place = rows[seen[action.op] % len(rows)] if rows else None
            seen[action.op] += 1
        elif action.stage is None and len(stages) != 1:
            raise Refusal("trace_without_stages", {"mesh": design.meshes[rank].name, "stages": len(stages)})
        else:
            stage = stages[0] if action.stage is None else action.stage
            place = index.get((action.op, stage, action.microbatch))
        if place is None:
            name = f"{'' if action.stage is None else action.stage}{action.op.name}{action.microbatch or 0}"
            raise Refusal("trace_of_other_actions", {"action": name, "process": process.process})
        found[place].append((action.start_ns, action.end_ns))
    return found


def _computation_key(program: Program, row: int) -> tuple[Op, int, int]:
    return Op(int(program.op[row])), int(program.stage[row]), int(program.microbatch[row])


def _check_complete(program: Program, missing: list[int]) -> None:
    if missing:
        names = [str(program.row(row)) for row in missing[:MOST_NAMED]]
        raise Refusal("incomplete_trace", {"count": len(missing), "actions": names})


def _fill_gaps(program: Program, rank: int, start: Int64s, end: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the start, end and wait of each row of a rank in nanoseconds, ``[steps, rows]``.

    Rows that are not computations fill the gaps between computations.
    """
    own = program.rows(rank)
    start, end, op = start[:, own].copy(), end[:, own].copy(), program.op[own]
    rows, measured = np.arange(len(op)), program.is_compute[own]
    before = np.maximum.accumulate(np.where(measured, rows, -1))
    after = np.minimum.accumulate(np.where(measured, rows, len(op))[::-1])[::-1]
    wait = np.zeros_like(start)
    for row in rows[~measured]:
        left, right = int(before[row]), int(after[row])
        ends = end[:, left] if left >= 0 else start[:, right]
        starts = start[:, right] if right < len(op) else ends
        is_receive = op[row] in RECEIVES
        start[:, row] = ends
        end[:, row] = np.maximum(starts, ends) if is_receive else ends
        wait[:, row] = end[:, row] - start[:, row]
    return start, end, wait
