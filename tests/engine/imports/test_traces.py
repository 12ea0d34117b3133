"""Import of traces of other tools as runs of a design, compared with its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.document import Design
from meshwave.engine.exports import exports
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import Trace, load_trace, traces
from meshwave.engine.imports.stage_times import read_stage_costs
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runs import Record, Run, State
from meshwave.engine.runs.imported_trace import add_trace_run
from meshwave.engine.runs.recording import read_recording
from meshwave.engine.runs.run_comparison import save_run_profile
from meshwave.engine.runs.run_folder import read_design
from tests._findings import refusal as refused
from tests.engine.imports.traced import design, range_of, trace_of, write


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with closing(Record()) as record:
        yield record


@pytest.mark.parametrize(
    "rename",
    [
        lambda action: f"PP:{action}",
        lambda action: f"{'Forward' if action.op is Op.F else 'Backward'} {action.microbatch}",
        lambda action: "forward-compute" if action.op is Op.F else "backward-compute",
    ],
    ids=["torchtitan", "torch single stage", "megatron"],
)
def test_the_ranges_of_a_profiler_are_the_actions_of_the_design(record: Record, tmp_path: Path, rename: Any) -> None:
    trace = load_trace(trace_of(tmp_path, rename))
    assert trace is not None

    run = Run(record, add_trace_run(record, predict(design()), trace).id)

    assert run.state is State.SUCCEEDED
    predicted, recording = predict(design()).timeline, read_recording(run.folder)
    assert recording.steps == (0, 1)
    measured = recording.timeline(0)
    computes = measured.op <= Op.W
    assert np.allclose(measured.start[computes], 1.5 * predicted.start[computes], atol=2e-9)
    assert np.allclose(measured.end[computes], 1.5 * predicted.end[computes], atol=2e-9)


def test_an_imported_trace_is_compared_and_calibrates(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "design.json").write_text(design().to_json())
    files = [str(path) for path in trace_of(tmp_path, lambda action: f"PP:{action}")]

    assert cli.main(["import", *files, "--into", str(tmp_path / "design.json")]) == 0

    assert "read from a trace of 2 processes" in capsys.readouterr().out
    [entry] = record.entries()
    assert entry.manner == "imported trace"
    out = tmp_path / "measured.json"
    assert cli.main(["runs", "export", entry.id, "--to", "perfetto", "--out", str(out)]) == 0
    again = load_trace([out])
    assert again is not None
    assert [len(process.actions) for process in again.processes] == [8, 8]
    assert save_run_profile(Run(record, entry.id))


def test_an_exported_timeline_is_imported(record: Record, tmp_path: Path) -> None:
    prediction = predict(design())
    file = tmp_path / "a.json"
    file.write_bytes(exports["perfetto"].to_bytes(prediction))
    trace = load_trace([file])
    assert trace is not None

    run = Run(record, add_trace_run(record, predict(design()), trace).id)

    assert read_recording(run.folder).makespans[0] == pytest.approx(prediction.timeline.makespan, rel=0.3)


def test_stage_times_are_simulated_in_the_order_of_the_schedule(record: Record, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("stage,forward_ms,backward_ms\n0,10,20\n1,30,60\n")
    trace = load_trace([tmp_path / "times.csv"])
    assert trace is not None
    assert trace.stage_seconds[Op.B, 1] == pytest.approx(0.06)

    run = Run(record, add_trace_run(record, predict(design()), trace).id)

    measured = read_recording(run.folder).timeline(0)
    assert measured.busy == pytest.approx([4 * 0.03, 4 * 0.09])
    assert measured.makespan >= 0.01 + 4 * 0.09 + 0.02


def test_a_full_backward_takes_the_sum_of_both_imported_gradients(record: Record, tmp_path: Path) -> None:
    """The schedule of the design does not split the backward, so that its times are 20 ms and 60 ms."""
    (tmp_path / "times.csv").write_text("stage,forward_ms,input_ms,weight_ms\n0,10,15,5\n1,30,20,40\n")
    trace = load_trace([tmp_path / "times.csv"])
    assert trace is not None

    run = Run(record, add_trace_run(record, predict(design()), trace).id)

    assert read_recording(run.folder).timeline(0).busy == pytest.approx([4 * 0.03, 4 * 0.09])


@pytest.mark.parametrize(
    "text",
    [
        "1, 2, 3\n4, 5, 6\n",
        "1 2 3\n\n4 5 6",
        "0\t1\t2\t3\n1\t4\t5\t6",
        "stage;forward;input;weight\n1;4,0;5,0;6,0\n0;1,0;2,0;3,0",
        "Forward (ms)\tInput gradient (ms)\tWeight gradient (ms)\n1000\t2000\t3000\n4000\t5000\t6000",
        "stage\tlayers\tforward\tinput\tweight\n0\t2 layers\t1\t2\t3\n1, 1, 4, 5, 6",
    ],
    ids=["commas", "spaces", "numbered", "decimal commas", "milliseconds", "another column"],
)
def test_costs_per_stage_are_read_from_copied_spreadsheet_cells(text: str) -> None:
    assert read_stage_costs(text) == {"forward": [1, 4], "input": [2, 5], "weight": [3, 6]}


def test_costs_are_read_up_to_the_largest_of_a_design() -> None:
    assert read_stage_costs("1000000000 2000000 3000000.5") == {
        "forward": [1e9], "input": [2e6], "weight": [3000000.5],
    }  # fmt: skip


def test_a_backward_without_separate_gradients_is_divided_in_halves() -> None:
    assert read_stage_costs("forward_s,backward_s\n1,3\n2,4\n") == {
        "forward": [1, 2],
        "input": [1.5, 2],
        "weight": [1.5, 2],
    }


@pytest.mark.parametrize(
    ("text", "code", "params"),
    [
        ("1, 1, 1\n1, one, 1", "unreadable_stage_times", {"line": 2}),
        ("1, 1, 1\n1, 1", "unreadable_stage_times", {"line": 2}),
        ("1, -1, 1", "unreadable_stage_times", {"line": 1}),
        ("0 1 1 1\n-1 1 1 1", "unreadable_stage_times", {"line": 2}),
        ("time\n1", "unreadable_stage_times", {"line": 1}),
        ("0 1 1 1\n0 2 2 2", "repeated_stage_times", {"line": 2, "stage": 0}),
        ("stage,forward\n0,1", "incomplete_stage_costs", {"stage": 0, "column": "input gradient"}),
        ("0 1 1 1\n2 1 1 1", "incomplete_stage_costs", {"stage": 1, "column": "forward"}),
    ],
)
def test_a_table_that_lacks_a_cost_is_refused(text: str, code: str, params: dict[str, Any]) -> None:
    problem = refused(lambda: read_stage_costs(text))

    assert (problem.code, problem.params) == (code, params)


def test_a_gpu_range_takes_precedence_over_its_host_range(tmp_path: Path) -> None:
    events = [range_of("PP:0F0", 0, 5), range_of("PP:0F0", 100, 50, pid=7, cat="gpu_user_annotation")]
    trace = load_trace([write(tmp_path / "t.json", {"traceEvents": events})])

    assert trace is not None
    assert [each.end_ns - each.start_ns for each in trace.processes[0].actions] == [50_000]


def refusal(record: Record, trace: Trace | None, design: Design) -> str:
    assert trace is not None
    with pytest.raises(Refusal) as error:
        add_trace_run(record, predict(design), trace)
    assert record.entries() == []
    return str(error.value)


def test_a_trace_of_a_design_with_a_tokenizer_is_a_run_without_text(record: Record, tmp_path: Path) -> None:
    trace = load_trace(trace_of(tmp_path, lambda action: f"PP:{action}"))
    assert trace is not None
    tokenized = design(training={"data": "mine.txt", "tokenizer": "tokenizer.json"})

    training = read_design(record.folder(add_trace_run(record, predict(tokenized), trace).id)).training

    assert (training.data, training.tokenizer) == (None, None)


def test_traces_of_other_designs_are_refused(record: Record, tmp_path: Path) -> None:
    files = trace_of(tmp_path, lambda action: f"PP:{action}")

    more = {"schedule": "1f1b", "microbatches": 6}
    assert "lacks 8 computations" in refusal(record, load_trace(files), design(pipeline=more))
    few = {"schedule": "1f1b", "microbatches": 2}
    assert "which the schedule of the design does not contain" in refusal(
        record, load_trace(files), design(pipeline=few)
    )
    assert "lacks" in refusal(record, load_trace(files[:1]), design())
    with pytest.raises(Refusal, match="has no ranges that name computations"):
        load_trace([write(tmp_path / "none.json", {"traceEvents": [range_of("aten::mm", 0, 1)]})])
    with pytest.raises(Refusal, match="not a Chrome trace"):
        load_trace([write(tmp_path / "odd.json", {"traceEvents": 3})])
    with pytest.raises(Refusal, match="not a Chrome trace"):
        load_trace([write(tmp_path / "late.json", {"traceEvents": [range_of("PP:0F0", 2**63, 1)]})])
    (tmp_path / "odd.csv").write_text("stage,forward_s\n0,never\n")
    with pytest.raises(Refusal, match="line 2 is invalid: the stage must be a whole number"):
        load_trace([tmp_path / "odd.csv"])


@pytest.mark.parametrize("name", traces)
def test_a_design_is_not_recognized_as_a_trace(name: str) -> None:
    assert not traces[name].recognizes(Path(example("02-two-waves")).read_text())
