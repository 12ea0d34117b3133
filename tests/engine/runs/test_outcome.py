"""The verdict on a run names the earliest failure as its cause."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from meshwave.engine.runs import State
from meshwave.engine.runs.outcome import Exit, Verdict, judge
from meshwave.engine.runs.run import Progress
from tests.engine.runs.play import draw


def write_error(folder: Path, process: int, time: float, error: str, action: str | None = None) -> None:
    report = {"process": process, "rank": process, "time": time, "error": error, "action": action}
    (folder / f"error-{process}.json").write_text(json.dumps(report))


def verdict(folder: Path, *exits: Exit, was_cancelled: bool = False) -> Verdict:
    return judge(folder, draw(), exits, was_cancelled=was_cancelled, progress=Progress(2, 3))


def test_the_earliest_error_is_the_cause(tmp_path: Path) -> None:
    write_error(tmp_path, 0, 10.2, "RuntimeError('Connection closed by peer')")
    write_error(tmp_path, 2, 10.1, "rank 2, action 3 of 9, 2F1: ValueError('no')", "2F1")
    write_error(tmp_path, 1, 10.3, "RuntimeError('Connection closed by peer')")

    found = verdict(tmp_path, Exit(0, 1, False, 10.4), Exit(2, 1, False, 10.5), Exit(1, -15, True, 10.6))

    assert (found.state, found.code, found.process) == (State.FAILED, "action_failed", 2)
    assert found.reason == "mesh M2, rank 2, action 3 of 9, 2F1: ValueError('no')"


def test_a_killed_process_comes_before_the_errors_of_others(tmp_path: Path) -> None:
    write_error(tmp_path, 0, 10.0, "RuntimeError('Connection reset by peer')")

    found = verdict(tmp_path, Exit(0, 1, False, 10.1), Exit(3, -signal.SIGKILL, False, 10.2))

    assert found.process == 3
    assert found.reason.startswith(
        "mesh M3, process 3 was terminated by SIGKILL (exit -9); the signal did not come from Meshwave"
    )


def test_an_abort_hints_at_a_size_mismatch(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text("terminate called\n")

    found = verdict(tmp_path, Exit(1, -6, False, 10.0), Exit(0, -15, True, 10.1))

    assert "SIGABRT (exit -6)" in found.reason
    assert "size mismatch" in found.reason
    assert found.reason.endswith("the last line of its log: terminate called")


def test_the_written_error_of_a_killed_process_is_the_cause(tmp_path: Path) -> None:
    write_error(tmp_path, 1, 10.0, "it was I")

    assert verdict(tmp_path, Exit(1, -6, False, 10.1)).reason == "mesh M1, process 1: it was I"


def test_a_process_ended_by_meshwave_is_not_the_cause(tmp_path: Path) -> None:
    found = verdict(tmp_path, Exit(0, -9, True, 10.0), Exit(1, 3, False, 10.1))

    assert found.reason == "mesh M1, process 1 exited with status 3 and reported no error"


def test_a_cancelled_run_has_its_number_of_steps(tmp_path: Path) -> None:
    (tmp_path / "cancel").write_text("")

    found = verdict(tmp_path, Exit(0, -15, True, 10.0), was_cancelled=True)

    assert found == Verdict(State.CANCELLED, "cancelled_run", {"done": 2, "total": 3})


def test_a_run_that_was_finished_before_it_was_cancelled_has_succeeded(tmp_path: Path) -> None:
    found = verdict(tmp_path, Exit(0, 0, False, 10.0), Exit(1, 0, True, 10.0), was_cancelled=True)

    assert found.state is State.SUCCEEDED


def test_an_incomplete_error_file_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "error-0.json").write_text('{"process": 0, "ti')
    (tmp_path / "error-1.json").write_text("[]")

    assert "status 1" in verdict(tmp_path, Exit(0, 1, False, 10.0)).reason
