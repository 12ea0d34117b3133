"""Traces of torch.profiler, made from predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from tests.engine.runs.play import draw


def design(**changes: Any) -> Design:
    return draw("a design", pp=2, **changes)


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def range_of(
    name: str, start_us: float, seconds_us: float, pid: int = 0, cat: str = "user_annotation"
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 1, "ts": start_us, "dur": seconds_us}


def trace_of(tmp_path: Path, rename: Any, *, steps: int = 2) -> list[Path]:
    """Files of a trace in which each computation lasts 1.5 times as long as predicted; ``rename`` names a range."""
    prediction = predict(design())
    timeline, program = prediction.timeline, prediction.program
    by_rank: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    for step in range(steps):
        for span in np.flatnonzero(timeline.op <= Op.W).tolist():
            start, end = (1.5e6 * float(each[span]) + 1e9 * step for each in (timeline.start, timeline.end))
            by_rank[int(timeline.rank[span])].append(range_of(rename(timeline.action(span)), start, end - start))
    assert program.ranks == 2
    files = []
    for rank, events in by_rank.items():
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
        files.append(write(tmp_path / f"rank{rank}.json", {**head, "traceEvents": events}))
    return files
