"""Traces that torch.profiler writes while torch's own pipeline schedules train, imported as runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.imports import load_trace
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runs import Record, Run, State
from meshwave.engine.runs.imported_trace import add_trace_run
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_comparison import save_run_profile
from tests.engine.runs.play import draw

pytestmark = pytest.mark.torch
MICROBATCHES = 4


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with closing(Record()) as record:
        yield record


@pytest.mark.parametrize(
    ("schedule", "name", "chunks"),
    [
        ("gpipe", "ScheduleGPipe", {}),
        ("looped-bfs", "ScheduleLoopedBFS", {"chunks": 2}),
        ("interleaved-1f1b", "ScheduleInterleaved1F1B", {"chunks": 2}),
        ("interleaved-zb", "ScheduleInterleavedZeroBubble", {"chunks": 2}),
        ("zb-v", "ScheduleZBVZeroBubble", {}),
        ("dualpipe-v", "ScheduleDualPipeV", {}),
    ],
)
def test_a_trace_of_torch_is_a_run_of_the_design(
    crew: Any, record: Record, tmp_path: Path, schedule: str, name: str, chunks: dict[str, int]
) -> None:
    is_v = schedule in ("zb-v", "dualpipe-v")
    stages = 2 if is_v or chunks else 1
    written = crew.call("tests.engine.imports.pipelining_tasks:traced_steps", 2, (name, stages, MICROBATCHES, is_v))
    files = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for file, document in zip(files, written, strict=True):
        file.write_text(json.dumps(document))
    model = {"kind": "gpt", "layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256}
    pipeline = {"schedule": schedule, "microbatches": MICROBATCHES, **chunks}
    design = draw("a design", pp=2, model=model, pipeline=pipeline)
    trace = load_trace(files[::-1])  # each file tells its rank
    assert trace is not None

    run = Run(record, add_trace_run(record, predict(design), trace).id)

    assert run.state is State.SUCCEEDED
    recording = read_recording(run.folder)
    assert recording.steps == (0, 1)
    measured, predicted = recording.timeline(1), predict(design).timeline
    for op in (Op.F, Op.B, Op.W):
        assert (measured.op == op).sum() == (predicted.op == op).sum()
    times = {measured.action(at): (measured.start[at], measured.end[at]) for at in range(len(measured.op))}
    for action, (start, end) in times.items():  # a range of torch begins with waiting for its input
        source = action._replace(stage=action.stage + (-1 if action.op is Op.F else 1))
        if action.op in (Op.F, Op.B) and source in times:
            # and ends after sending: the receiver may have ended before a sender that was suspended
            assert start >= min(times[source][1], end) - 1e-9
    assert save_run_profile(run)
