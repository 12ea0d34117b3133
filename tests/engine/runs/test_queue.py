"""Queued runs on a busy target, and failed runs that restart from their newest checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.document import Design
from meshwave.engine.runs import Options, Record, Run, State, reconcile
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.checkpoints import Checkpoints
from meshwave.engine.runs.launchers import PlaceChecks, open_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.engine.runs.play import HERE, draw, have_all_ended, processes, submit, wait_until


def launch(
    place: Path, design: Design, tmp_path: Path, options: Options | None = None
) -> tuple[subprocess.Popen[str], str]:
    """Start a process that launches a design, and return it with the id of its run."""
    file = tmp_path / f"{design.name}.json"
    file.write_text(design.to_json())
    given = [] if options is None else [options.model_dump_json()]
    command = [sys.executable, "-m", "tests.engine.runs.owner", str(place), str(file), *given]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, owner.stdout.readline().strip()


@pytest.mark.slow
def test_queued_runs_start_in_their_order(launcher: LocalLauncher) -> None:
    first, second, third = (submit(launcher, draw(steps=5)) for _ in range(3))
    assert [second.state, third.state] == ["QUEUED", "QUEUED"]
    assert third.waiting_reason == f"position 2 of 2 in the queue; run {first.id} is active"

    assert third.wait(timeout_s=30) is State.SUCCEEDED

    wait_until(lambda: third.finished_s)
    runs = [launcher.record.get(run.id) for run in (first, second, third)]
    assert [entry.state for entry in runs] == ["SUCCEEDED"] * 3
    for before, after in zip(runs, runs[1:], strict=False):
        assert before.finished_s is not None
        assert after.started_s is not None
        assert before.finished_s <= after.started_s


def test_the_list_of_runs_has_the_position_in_the_queue(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(launcher.record.place))
    active, queued = submit(launcher, draw("sleep")), submit(launcher, draw())
    waiting = f"position 1 of 1 in the queue; run {active.id} is active"

    assert cli.main(["runs", "list"]) == 0
    line, note, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{queued.id}  queued") and note == f"  {waiting}"
    assert cli.main(["runs", "list", "--json"]) == 0
    assert [run["waiting"] for run in json.loads(capsys.readouterr().out)["runs"]] == [waiting, ""]

    queued.cancel()
    active.cancel()
    assert active.wait(timeout_s=30) is State.CANCELLED


def test_a_queued_run_is_cancelled_at_once(launcher: LocalLauncher) -> None:
    active, queued = submit(launcher, draw("sleep")), submit(launcher, draw())

    open_run(launcher.record, queued.id).cancel()

    assert (queued.state, queued.reason) == (State.CANCELLED, "cancelled before it started")
    assert queued.result() is not None
    active.cancel()
    assert active.wait(timeout_s=30) is State.CANCELLED


@pytest.mark.slow
def test_the_queue_survives_the_end_of_the_process_that_filled_it(tmp_path: Path) -> None:
    place = tmp_path / "home"
    owner, active = launch(place, draw("sleep"), tmp_path)
    other, queued = launch(place, draw("train"), tmp_path)
    record = Record(place)
    assert record.get(queued).state is State.QUEUED
    for process in (owner, other):
        process.kill()
        process.wait()

    reconcile(record)  # as any command does; it starts nothing that would end with it
    assert record.get(active).state is State.LOST
    assert record.get(queued).state is State.QUEUED
    servers = [LocalLauncher(Record(place), worker="stand_in", path=HERE) for _ in range(2)]
    for server in servers:
        PlaceChecks(server.record, lambda name, server=server: server).start()  # type: ignore[misc]

    assert Run(record, queued, servers[0]).wait(timeout_s=30) is State.SUCCEEDED
    states = ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert wait_until(lambda: [step.state for step in record.history(queued)] == states)
    for server in servers:
        server.close()


@pytest.mark.slow
def test_a_queued_run_starts_after_the_process_of_the_active_run_was_killed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    owner, active = launch(launcher.record.place, draw("sleep"), tmp_path)
    queued = submit(launcher, draw())
    assert queued.state is State.QUEUED

    owner.kill()
    owner.wait()

    assert queued.wait(timeout_s=30) is State.SUCCEEDED
    assert launcher.record.get(active).state is State.LOST


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_is_left_to_the_living_process_that_queued_it(tmp_path: Path) -> None:
    place = tmp_path / "home"
    owner, active = launch(place, draw("sleep"), tmp_path)
    other, queued = launch(place, draw("train"), tmp_path)
    record = Record(place)
    server = LocalLauncher(record, worker="stand_in", path=HERE)
    server.watch_queue()

    open_run(record, active).cancel()

    assert Run(record, queued, server).wait(timeout_s=30) is State.SUCCEEDED
    assert record.get(queued).handle["owner"][1] == other.pid
    server.close()
    for process in (owner, other):
        process.kill()
        process.wait()


@pytest.mark.slow
def test_restarts_are_bounded_and_recorded(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("leave in 2"), Options(restarts=2))

    assert run.wait(timeout_s=30) is State.FAILED

    assert "process 2 exited with status 3" in run.reason
    attempts = read_attempts(run.folder)
    assert len(attempts) == 2
    assert all("process 2 exited with status 3" in attempt.reason for attempt in attempts)
    notes = [note for note in run.notes() if note.startswith("attempt ")]
    assert notes[1].startswith("attempt 2 ended after ")
    assert notes[1].endswith("; the next one started from the first step")


@pytest.mark.slow
def test_a_cancelled_run_does_not_start_again(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("sleep"), Options(restarts=5))
    processes(run)

    run.cancel()

    assert run.wait(timeout_s=30) is State.CANCELLED
    assert read_attempts(run.folder) == []


@pytest.mark.slow
def test_a_run_whose_server_was_killed_is_started_again_by_the_next_one(tmp_path: Path) -> None:
    place = tmp_path / "home"
    owner, name = launch(place, draw("train", steps=100), tmp_path, Options(restarts=1))
    record = Record(place)
    run = Run(record, name)
    handles = processes(run)
    wait_until(lambda: run.progress.done > 3)
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(handle.is_alive() for handle in handles))

    reconcile(record)
    assert run.state is State.QUEUED
    server = LocalLauncher(record, worker="stand_in", path=HERE)
    PlaceChecks(record, lambda name: server).start()

    assert Run(record, name, server).wait(timeout_s=30) is State.SUCCEEDED
    assert "which launched the run, ended after" in read_attempts(run.folder)[0].reason
    server.close()


STEPS = 12


@pytest.fixture(scope="module")
def uninterrupted_losses(trainer: LocalLauncher) -> list[float]:
    run = submit(trainer, draw(pp=2, steps=STEPS))
    assert run.wait(timeout_s=60) is State.SUCCEEDED, run.reason
    return [row["loss"] for row in run.metrics()]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("process", "after"),
    [(0, 0), (1, 5), pytest.param(1, 1, marks=pytest.mark.nightly), pytest.param(0, 8, marks=pytest.mark.nightly)],
)
def test_a_killed_process_costs_no_accuracy(
    trainer: LocalLauncher, uninterrupted_losses: list[float], process: int, after: int
) -> None:
    run = submit(trainer, draw(pp=2, steps=STEPS), Options(checkpoints=Checkpoints(every_steps=3), restarts=3))
    wait_until(lambda: run.state is State.RUNNING and run.progress.done >= after)
    os.kill(processes(run)[process].pid, signal.SIGKILL)

    assert run.wait(timeout_s=60) is State.SUCCEEDED, run.reason

    assert [row["step"] for row in run.metrics()] == list(range(STEPS))
    assert [row["loss"] for row in run.metrics()] == uninterrupted_losses
    [attempt] = read_attempts(run.folder)
    assert f"process {process} was terminated by SIGKILL" in attempt.reason
    resumed = [json.loads(line) for line in (run.folder / "events-0.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in resumed if row["event"] == "resumed"] == [attempt.resumed_from] * bool(
        attempt.resumed_from
    )
    assert wait_until(lambda: have_all_ended(run))
