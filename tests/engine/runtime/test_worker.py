"""Tests of the worker: the files that it writes, its failures, and its life time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Options
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.recording import read_recording, read_routing
from meshwave.engine.runtime.execution.job import read_job
from meshwave.engine.runtime.processes import warm_process
from meshwave.engine.runtime.processes.worker import drop_steps_from
from tests.engine.runtime.reference import train

ROOT = Path(__file__).resolve().parents[3]
Document = dict[str, Any]
ONE_F_ONE_B = {"schedule": "1f1b", "microbatches": 4}


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_trained(folder: Path) -> None:
    """Check that losses equal those of one process, and that all steps of the program are recorded."""
    expected = train(read_job(folder))
    metrics = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(len(expected.losses)))
    assert [line["loss"] for line in metrics] == pytest.approx(expected.losses, abs=1e-9)
    assert [line["grad_norm"] for line in metrics] == pytest.approx(expected.grad_norms, abs=1e-9)
    assert all(line["seconds"] > 0 and line["tokens_per_s"] > 0 for line in metrics)
    assert read_recording(folder).digest == read_job(folder).program.digest
    assert read_recording(folder).steps == tuple(range(len(expected.losses)))


def test_a_run_writes_metrics_events_and_spans(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw(ONE_F_ONE_B, dp=2, steps=3))

    assert crew.run_workers(folder, 4) == [0, 0, 0, 0]

    assert_trained(folder)
    for process in range(4):
        events = [line["event"] for line in read_lines(folder / f"events-{process}.jsonl")]
        assert events == ["started", "ready", "step", "step", "step", "finished"]
    assert_clocks_and_memory_are_recorded(folder, 4)


def assert_clocks_and_memory_are_recorded(folder: Path, processes: int) -> None:
    recording = read_recording(folder)
    assert len(recording.clocks.of) == processes
    for clock in recording.clocks.of[1:]:
        assert clock.same_host
        assert len(clock.seen) == 2, "compared before the run and after it"
        assert all(abs(each.ahead_ns) <= each.round_trip_ns for each in clock.seen), "all processes read one clock"
    assert (recording.clocks.uncertainty_s, recording.timed_steps) == (0.0, (1,)), (
        "the first step is warm-up, and memory is counted in the last"
    )
    prediction = predict(read_job(folder).design)
    ranks = [read_job(folder).layout.rank(process) for process in range(processes)]
    for rank, memory in zip(ranks, recording.memory.values(), strict=True):
        assert memory.step == 2
        assert memory.by_category["weights"] == prediction.costs.static_bytes["weights"][rank]
        assert memory.by_category["optimizer"] == pytest.approx(prediction.costs.static_bytes["optimizer"][rank] + 4)
        assert memory.peak_bytes == sum(memory.by_category.values())


@pytest.mark.parametrize(
    "pipeline", [{"schedule": "gpipe", "microbatches": 6}, {"schedule": "zb-h1", "microbatches": 4}]
)
def test_peak_memory_is_within_ten_percent_of_the_prediction(
    pipeline: Document, crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    """Gradients exist from the first backward on, and sent messages to the end of the step."""
    document = draw(pipeline, steps=3, precision="fp32")
    document["model"].update({"hidden": 64, "sequence": 32})
    folder = write_run(document)

    assert crew.run_workers(folder, 2) == [0, 0]

    predicted = predict(read_job(folder).design).memory.total_bytes
    measured = [each.peak_bytes for each in read_recording(folder).memory.values()]
    assert measured == pytest.approx(predicted.tolist(), rel=0.1)


def test_a_run_trains_on_the_text_of_the_user(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw(ONE_F_ONE_B, steps=2, data="mine.txt"))
    (folder / "data.txt").write_bytes(b"to be or not to be, that is the question")

    assert crew.run_workers(folder, 2) == [0, 0]

    assert_trained(folder)


@pytest.mark.parametrize("schedule", ["parm-s1", "parm-s2"])
def test_a_run_records_how_tokens_were_routed(
    schedule: str, crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    """Routes are counted once for all schedules, also in layers that are recomputed."""
    document = draw({**ONE_F_ONE_B, "recompute": "full"}, pp=1, dp=2, tp=2, steps=2)
    document["model"]["moe"] = {"experts": 4, "top_k": 2, "capacity_factor": None, "every": 2}
    document["experts"] = {"schedule": schedule, "ep": 4, "esp": 1}
    folder = write_run(document)

    assert crew.run_workers(folder, 4) == [0, 0, 0, 0]

    assert_trained(folder)
    routing = read_routing(folder)
    assert list(routing) == [1, 3]
    tokens = 2 * 2 * 4 * 2 * 12  # steps, replicas, microbatches, sequences, tokens
    for layer, shares in routing.items():
        written = [json.loads((folder / f"routing-{process}.json").read_text())[str(layer)] for process in range(4)]
        assert np.sum(written) == 2 * tokens
        assert sum(shares) == pytest.approx(1)


def test_a_run_notes_the_choices_for_its_experts_and_the_reasons(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    document = draw(ONE_F_ONE_B, pp=1, dp=2, tp=2, steps=1)
    document["model"]["moe"] = {"experts": 4, "every": 2}
    document["experts"] = {"schedule": "parm-auto", "ep": 4, "esp": 1, "degree": None}
    folder = write_run(document)

    assert crew.run_workers(folder, 4) == [0, 0, 0, 0]

    design = read_job(folder).design
    choice = resolve_expert_layer(design, design.meshes[0]).choice
    assert choice is not None
    for process in range(4):
        events = read_lines(folder / f"events-{process}.jsonl")
        notes = [line["note"] for line in events if line["event"] == "chosen"]
        assert notes[0] == f"parm-auto: {choice.reason}"
        assert notes[1].endswith(", the fastest number according to the cost model")
        assert len(notes) == 2


def test_a_timeline_has_every_action_once_and_causes_before_effects(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw({"schedule": "hanayo", "waves": 1, "microbatches": 3}, pp=3, layers=6, steps=4))
    crew.run_workers(folder, 3)

    timeline = read_recording(folder).timeline()

    program = read_job(folder).program
    shown = sorted(str(action) for r in range(3) for action in program.actions(r) if "RECV" not in action.op.name)
    assert sorted(str(timeline.action(span)) for span in range(len(timeline))) == shown
    assert timeline.source == "measured"
    assert timeline.meshes == ("A", "B", "C")
    assert timeline.start.min() == 0
    assert (timeline.end >= timeline.start).all()
    caused = timeline.cause >= 0
    causes = timeline.cause[caused]
    of_transfers = timeline.is_transfer[caused]
    assert (timeline.start[causes] <= timeline.start[caused]).all()
    assert (timeline.end[causes] <= timeline.start[caused])[~of_transfers].all()


SLOTS = """
    0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 (0F2;0B0)OVERLAP_F_B 0RECV_B1 0SEND_F2 0RECV_B2 0B1 0B2 STEP
    1RECV_F0 1RECV_F1 1F0 (1F1;1I0)OVERLAP_F_B 1RECV_F2 1SEND_B0 1W0 1F2 1B1 1SEND_B1 1B2 1SEND_B2 STEP
"""


def test_actions_of_one_slot_start_and_end_together(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw({"schedule": "gpipe", "microbatches": 3}), SLOTS)

    assert crew.run_workers(folder, 2) == [0, 0]

    timeline = read_recording(folder).timeline()
    second = np.flatnonzero(timeline.fused)
    assert [str(timeline.action(span)) for span in second] == ["0B0", "1I0"]
    assert (timeline.start[second] == timeline.start[second - 1]).all()
    assert (timeline.end[second] == timeline.end[second - 1]).all()
    assert (timeline.end[second] > timeline.start[second]).all()


FAULTY = """
    0F0 0SEND_F0 0RECV_B0 0B0 STEP
    1F0 1RECV_F0 1B0 1SEND_B0 STEP
"""


def test_the_first_error_report_names_the_failed_action(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw({"schedule": "gpipe", "microbatches": 1}), FAULTY)

    assert crew.run_workers(folder, 2) == [1, 1]

    reports = [json.loads(path.read_text()) for path in folder.glob("error-*.json")]
    first = min(reports, key=lambda report: report["time"])
    assert first["error"].startswith("rank 1, action 1 of 5, 1F0: KeyError(")
    assert (first["process"], first["rank"], first["action"]) == (1, 1, "1F0")
    assert "Traceback" in first["traceback"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"meshes": {1: {"axes": {"dp": 3}, "devices": [1, 2, 3]}}},
            r"which the dp=3 replicas of mesh B cannot share evenly",
        ),
        (
            {"meshes": {0: {"axes": {"tp": 2}, "devices": [0, 2]}}, "pipeline": {"schedule": "chimera"}},
            "tp=2 on A, tp=1",
        ),
        ({"training": {"data": "mine.txt"}}, "training.data names mine.txt"),
    ],
)
def test_designs_that_cannot_run_are_rejected(
    change: Document, message: str, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    document = draw(ONE_F_ONE_B)
    document["cluster"]["devices_per_node"] = 4
    for section, values in change.items():
        for key, value in values.items():
            document[section][key] = {**document[section][key], **value} if section == "meshes" else value
    folder = write_run(document)

    with pytest.raises(InputError, match=message):
        read_job(folder)


def test_a_changed_program_is_rejected(draw: Callable[..., Document], write_run: Callable[..., Path]) -> None:
    folder = write_run(draw(ONE_F_ONE_B))
    document = json.loads((folder / "program.json").read_text())
    document["actions"][0].reverse()
    (folder / "program.json").write_text(json.dumps(document))

    with pytest.raises(InputError, match="launch the design again"):
        read_job(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": 100}, "a gpt reads text as bytes and needs a vocab of at least 256"),
        ({"vocab": 256, "kind": "bert"}, "a bert reads text as bytes and needs a vocab of at least 257"),
        ({"sequence": 10**6}, "but one sequence needs 1000001"),
    ],
)
def test_an_impossible_model_is_reported(
    change: Document, message: str, crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    document = draw(ONE_F_ONE_B)
    document["model"].update(change)
    folder = write_run(document)

    assert crew.run_workers(folder, 2) == [1, 1]

    # A process that ends before the other one has joined the group leaves it with a lost connection as its error.
    errors = [json.loads((folder / f"error-{process}.json").read_text())["error"] for process in range(2)]
    assert any(message in error for error in errors)


def test_a_wrong_number_of_processes_is_reported(
    crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw(ONE_F_ONE_B))

    assert crew.run_workers(folder, 3) == [1, 1, 1]

    for process in range(3):
        reason = json.loads((folder / f"error-{process}.json").read_text())["error"]
        assert reason.startswith("3 processes were started, but the design has 2 devices")


def test_workers_end_with_the_process_that_started_them(
    disposable_crew: Any, draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    folder = write_run(draw(ONE_F_ONE_B, steps=10**6))
    disposable_crew.start("run_workers", str(folder), 2)
    _wait_until(lambda: (folder / "metrics.jsonl").exists() and read_lines(folder / "metrics.jsonl"))
    workers = [read_lines(folder / f"events-{process}.jsonl")[0]["pid"] for process in range(2)]

    disposable_crew.kill()

    _wait_until(lambda: not any(map(_is_alive, workers)))


def _wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no result within {seconds} s"
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False


def test_a_process_imports_what_checkpoints_need_before_its_first_step(
    draw: Callable[..., Document], write_run: Callable[..., Path]
) -> None:
    """An import in the writer's thread would slow the steps, and the second checkpoint would wait for it."""
    folder = write_run(draw({"schedule": "gpipe", "microbatches": 1}, pp=1, steps=2))
    (folder / "options.json").write_text(Options(checkpoints=Checkpoints(every_steps=1)).model_dump_json())
    worker = [sys.executable, "-u", "-X", "importtime", "-m", "meshwave.engine.runtime.processes.worker", str(folder)]
    alone = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}

    done = subprocess.run(worker, env=alone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)

    before, _, after = done.stdout.partition("step 1: ")
    assert "torch.distributed.checkpoint.filesystem" in before
    assert after
    assert "torch.distributed.checkpoint" not in after


def test_forks_need_not_build_the_validator_of_designs(crew: Any) -> None:
    """It takes as long as two steps of a small model."""
    assert crew.call("__main__:can_read_designs", 1, None) == [True]


@pytest.mark.parametrize(
    ("recompute", "every_steps", "imported"),
    [("none", None, []), ("full", None, []), ("layers", None, ["dynamo"]), ("attention", 1, ["dynamo", "checkpoint"])],
)
def test_modules_that_only_some_runs_need_are_imported_once_before_the_forks(
    draw: Any, write_run: Any, monkeypatch: Any, recompute: str, every_steps: int | None, imported: list[str]
) -> None:
    folder, names = write_run(draw({**ONE_F_ONE_B, "recompute": recompute})), []
    checkpoints = Checkpoints(every_steps=every_steps) if every_steps else None
    (folder / "options.json").write_text(Options(checkpoints=checkpoints).model_dump_json())
    loaded = SimpleNamespace(import_checkpoint_modules=lambda: None)
    importer = SimpleNamespace(import_module=lambda name: names.append(name) or loaded)
    monkeypatch.setattr(warm_process, "importlib", importer)

    warm_process.prepare_run(folder)

    assert [name.rpartition(".")[2].lstrip("_") for name in names] == imported


def test_a_restarted_job_keeps_the_rows_of_steps_that_it_does_not_repeat(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n{"st')

    drop_steps_from(metrics, 2)

    assert metrics.read_text() == '{"step": 0}\n{"step": 1}\n'
