"""Recordings of runs that never were: the simulator's own timeline, written down as the processes would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.predict import Prediction
from engine.program.action import Op
from engine.program.program import Program
from engine.recording import Recorder
from engine.simulate import simulate
from engine.timeline import Source

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
) -> None:
    """A run whose actions took ``seconds`` ([rows]), each step as many times longer as ``stretched`` says; the clocks
    of the ranks are ``ahead_ns`` of the truth."""
    program, meshes = prediction.program, [mesh.name for mesh in prediction.design.meshes]
    columns = _columns(program, seconds, prediction)
    first = 0
    for rank, mesh in enumerate(prediction.design.meshes):
        recorder = Recorder(folder, program, meshes, first, rank, source, scale=scale, apart=apart)
        for step, times in enumerate(stretched):
            start, end, wait = (times * scale * 1e9 * column[program.rows(rank)] for column in columns)
            zero = BEGUN_NS + step * 10**11 + (ahead_ns[rank] if ahead_ns else 0)
            recorder.write(step, *(each.round().astype(np.int64) for each in (zero + start, zero + end, wait)))
        recorder.close()
        first += len(mesh.devices)


def _columns(program: Program, seconds: Floats, prediction: Prediction) -> tuple[Floats, Floats, Floats]:
    """[rows] when each began and ended, and how long it stood still, in seconds."""
    played = simulate(program, seconds, prediction.costs.transfer_model)
    start, end, wait = np.zeros(len(program)), np.zeros(len(program)), np.zeros(len(program))
    start[program.spans], end[program.spans] = played.start, played.end
    free = np.zeros(program.ranks)
    for row in np.flatnonzero((program.is_compute & ~program.fused) | (program.op == Op.STEP)).tolist():
        rank = program.rank[row]
        wait[row] = start[row] - free[rank]
        free[rank] = end[row]
    wait[program.fused] = wait[np.flatnonzero(program.fused) - 1]
    sent = {_message(program, row): end[row] for row in program.senders[0].tolist()}
    for row in np.flatnonzero(np.isin(program.op, (Op.RECV_F, Op.RECV_B))).tolist():
        table = program.tables.forward if program.op[row] == Op.RECV_F else program.tables.backward
        taker = table[program.stage[row], program.microbatch[row]]
        asked, arrived = start[taker] - wait[taker], sent[_message(program, row)]
        end[row], wait[row] = max(asked, arrived), max(arrived - asked, 0.0)
    return start, end, wait


def _message(program: Program, row: int) -> tuple[bool, int, int, int]:
    op, stage, other = Op(int(program.op[row])), int(program.stage[row]), int(program.other[row])
    onward = 1 if op in (Op.SEND_F, Op.RECV_F) else -1
    sent = op in (Op.SEND_F, Op.SEND_B)
    end = other if other >= 0 else stage + (onward if sent else -onward)
    return onward > 0, *((stage, end) if sent else (end, stage)), int(program.microbatch[row])
