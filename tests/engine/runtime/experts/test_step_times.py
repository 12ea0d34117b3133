"""Measured times of the steps of expert layers, inside the blocks of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.experts import StepOp
from meshwave.engine.predict.block_timeline import INTER, INTRA, BlockTimeline, predict_block, representative_places
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Action, Op
from meshwave.engine.runs.accuracy import compare
from meshwave.engine.runs.accuracy.measured_block import measured_block_timeline
from meshwave.engine.runs.recording import LayerPass, read_layer_steps, read_recording
from meshwave.engine.runtime.device.clock import HostClock
from meshwave.engine.runtime.execution.job import read_job
from meshwave.engine.runtime.experts.step_times import StepPosition, StepTrace, do_nothing

Document = dict[str, Any]
ONE_F_ONE_B = {"schedule": "1f1b", "microbatches": 2}
PADS = {StepOp.PAD_SHARD, StepOp.PAD_INPUT}  # free in the cost model
RUNS: dict[str, tuple[Document, Document, tuple[Op, ...]]] = {
    "parm-s1": (ONE_F_ONE_B, {"ep": 4}, (Op.F, Op.B)),
    "parm-s2, chunks": (ONE_F_ONE_B, {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2}, (Op.F, Op.B)),
    "deepspeed, recomputed": (
        {**ONE_F_ONE_B, "recompute": "full"}, {"schedule": "deepspeed", "ep": 2, "esp": 2}, (Op.F, Op.B),
    ),
    "ppmoe, split": ({"schedule": "zb-h1", "microbatches": 2}, {"schedule": "ppmoe"}, (Op.F, Op.I, Op.W)),
}  # fmt: skip


def step_counts(found: BlockTimeline, device: int) -> Counter[str]:
    """Return the number of times that each step of the experts occurs on a device.

    A step that is predicted for links inside the node and between nodes counts once.
    """
    spans = zip(found.timeline.rank.tolist(), found.labels, found.steps, strict=True)
    by_lane = Counter(
        (rank, words)
        for rank, words, step in spans
        if found.lanes[rank][0] == device and step is not None and step not in PADS
    )
    counts: Counter[str] = Counter()
    for (_, words), count in by_lane.items():
        counts[words] = max(counts[words], count)
    return counts


@pytest.mark.parametrize("name", RUNS)
def test_a_run_measures_the_predicted_steps(
    name: str, crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    pipeline, experts, ops = RUNS[name]
    document = draw(pipeline, pp=1, dp=2, tp=2, steps=3)
    document["cluster"] |= {"nodes": 2, "devices_per_node": 2}
    document["model"]["moe"] = {"experts": 4, "top_k": 2, "capacity_factor": 2.0, "every": 2}
    document["experts"] = {"schedule": "parm-s1", **experts}
    document["cost"] = {"kind": "roofline"}
    folder = write_run(document)
    assert crew.run_workers(folder, 4) == [0, 0, 0, 0]
    design = read_job(folder).design

    compared = compare(predict(design), read_recording(folder)).by_layer
    for op in ops:
        of_op = {each.name: each.compared for each in compared if each.action.op == op}
        assert min(each.measured_s for each in of_op.values()) > 0
        assert {"experts 1", "experts 3"} <= {name for name, each in of_op.items() if each.predicted_s > 0}
        processes = representative_places(design, 0)
        found = read_layer_steps(folder, processes, Action(op, 0, 1))
        measured, predicted = measured_block_timeline(design, 0, op, found), predict_block(design, 0, 0, op)

        for device in processes:
            expected, got = step_counts(predicted, device), step_counts(measured, device)
            assert set(got) == set(expected)
            summed = {words for words in got if words.startswith("sum")}  # one for each exchange step of the overlap
            assert all(got[words] == expected[words] for words in set(got) - summed)
        timeline = measured.timeline
        assert (timeline.source, timeline.start.min() >= 0) == ("measured", True)
        for lane in range(len(measured.lanes)):
            start, end = (column[timeline.rank == lane] for column in (timeline.start, timeline.end))
            assert (end >= start).all() and (start[1:] >= end[:-1]).all()
        assert timeline.end.max() == pytest.approx((max(found.end_ns) - min(found.start_ns)) / 1e9)
        assert {lane for _, lane in measured.lanes} <= {lane for _, lane in predicted.lanes} | {INTRA, INTER}


def test_steps_of_a_layer_lie_within_their_action_of_a_recorded_step(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    """On every mesh of a pipeline, also on one without experts."""
    document = draw({"schedule": "1f1b", "microbatches": 3}, pp=2, dp=2, layers=4, steps=4)
    document["model"]["moe"] = {"experts": 4, "every": 3}
    document["experts"] = {"schedule": "expert-parallel", "ep": 2}
    folder = write_run(document)
    assert crew.run_workers(folder, 4) == [0, 0, 0, 0]

    found = read_layer_steps(folder, (2, 3), Action(Op.B, 1, 2))
    assert found.step in read_recording(folder).steps[1:]
    for rows, start, end in zip(found.steps, found.start_ns, found.end_ns, strict=True):
        assert set(rows["layer"].tolist()) == {2}
        assert set(rows["way"].tolist()) == {LayerPass.BACKWARD}
        assert start <= rows["start_ns"].min() and rows["end_ns"].max() <= end

    without = read_layer_steps(folder, (0, 1), Action(Op.F, 0, 0))
    assert [len(rows) for rows in without.steps] == [0, 0]
    assert set(measured_block_timeline(read_job(folder).design, 0, Op.F, without).labels) == {"whole block"}


def test_a_trace_records_nothing_until_it_is_on() -> None:
    trace = StepTrace(HostClock())
    begin_step = trace.recorder(3)
    assert begin_step(StepOp.GATE, StepPosition()) is do_nothing

    trace.is_on = True
    end_step = begin_step(StepOp.COMBINE, StepPosition(LayerPass.BACKWARD, 1))
    begin_step(StepOp.GATE, StepPosition())  # a step that never ends is not recorded
    end_step()

    (row,) = trace.take()
    assert (row["layer"], row["op"], row["way"], row["chunk"]) == (3, list(StepOp).index(StepOp.COMBINE), 1, 1)
    assert row["start_ns"] <= row["end_ns"]
    assert len(trace.take()) == 0


def test_recording_a_step_takes_microseconds() -> None:
    trace = StepTrace(HostClock())
    trace.is_on, begin_step = True, trace.recorder(0)
    seconds = []
    for _ in range(5):
        start = time.thread_time()  # of this thread alone, since the core may be shared
        for _ in range(1000):
            begin_step(StepOp.GATE, StepPosition())()
        seconds.append((time.thread_time() - start) / 1000)
        trace.take()
    assert min(seconds) < 2e-5
