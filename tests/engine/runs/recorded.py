"""Synthetic recordings: the simulator's timeline, written in the format of the processes of a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.experts import LAYER_OPS, StepOp
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import RECEIVES, Op, message_key
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Source
from meshwave.engine.runs.recording import STEP, LayerPass, Recorder, StepsRecorder, read_recording

Floats = NDArray[np.float64]
BEGUN_NS = 10**12


def record(
    folder: Path,
    prediction: Prediction,
    seconds: Floats,
    *,
    stretched: tuple[float, ...] = (1.0, 1.0, 1.0),
    source: Source = "measured",
    scale: float = 1.0,
    apart: tuple[int, ...] = (),
    ahead_ns: tuple[int, ...] = (),
    asking_s: float = 0.0,
) -> None:
    """Write the recording of a run whose actions took ``seconds [rows]``.

    ``stretched`` has a factor for each step. The clocks of the ranks are ``ahead_ns`` ahead of the true time, and
    ``asking_s`` is the time to receive a tensor that has arrived.
    """
    program, meshes = prediction.program, [mesh.name for mesh in prediction.design.meshes]
    columns = _columns(program, seconds, prediction, asking_s)
    first = 0
    for rank, mesh in enumerate(prediction.design.meshes):
        recorder = Recorder(folder, program, meshes, first, rank, source, scale=scale, apart=apart)
        for step, times in enumerate(stretched):
            start, end, wait = (times * scale * 1e9 * column[program.rows(rank)] for column in columns)
            zero = BEGUN_NS + step * 10**11 + (ahead_ns[rank] if ahead_ns else 0)
            recorder.write(step, *(each.round().astype(np.int64) for each in (zero + start, zero + end, wait)))
        recorder.close()
        first += len(mesh.devices)


def _columns(
    program: Program, seconds: Floats, prediction: Prediction, asking_s: float
) -> tuple[Floats, Floats, Floats]:
    """Return the start, the end and the waiting time of each row in seconds."""
    simulated = prediction.costs.simulate(program, seconds)
    start, end, wait = np.zeros(len(program)), np.zeros(len(program)), np.zeros(len(program))
    start[program.spans], end[program.spans] = simulated.start, simulated.end
    free = np.zeros(program.ranks)
    for row in np.flatnonzero((program.is_compute & ~program.fused) | (program.op == Op.STEP)).tolist():
        rank = program.rank[row]
        wait[row] = start[row] - free[rank]
        free[rank] = end[row]
    wait[program.fused] = wait[np.flatnonzero(program.fused) - 1]
    sent = {message_key(program.row(row)): end[row] for row in program.send_rows[0].tolist()}
    asked = start - wait  # by each computation, for one input after the other: what its neighbour made comes first
    received = np.flatnonzero(np.isin(program.op, RECEIVES))
    for row in received[np.argsort(program.other[received], kind="stable")].tolist():
        table = program.tables.forward if program.op[row] == Op.RECV_F else program.tables.backward
        taker = table[program.stage[row], program.microbatch[row]]
        wait[row] = max(sent[message_key(program.row(row))] - asked[taker], asking_s)
        end[row] = asked[taker] = asked[taker] + wait[row]
    return start, end, wait


def record_inside(folder: Path, prediction: Prediction, waits: Floats) -> None:
    """Record the layers of a mesh with experts, equal on all devices.

    ``waits [rows]`` is the time that each computation waited for messages without computing.
    """
    recording, program, first = read_recording(folder), prediction.program, 0
    for rank, mesh in enumerate(prediction.design.meshes):
        rows = np.flatnonzero(program.is_compute & (program.rank == rank))
        for process in range(first, first + len(mesh.devices)):
            if process > first:
                shutil.copy(folder / f"spans-{first}.bin", folder / f"spans-{process}.bin")
            recorder = StepsRecorder(folder, process, LAYER_OPS)
            for step in recording.steps:
                spans = recording.rows([step])[0, rows]
                found = np.zeros(len(rows), STEP)
                found["layer"], found["chunk"], found["op"] = 1, -1, LAYER_OPS.index(StepOp.DISPATCH)
                found["way"] = np.where(program.op[rows] == Op.F, LayerPass.FORWARD, LayerPass.BACKWARD)
                found["start_ns"] = spans["start_ns"]
                found["end_ns"] = np.minimum(spans["start_ns"] + 1e9 * waits[rows], spans["end_ns"])
                recorder.write(step, found)
            recorder.close()
        first += len(mesh.devices)
