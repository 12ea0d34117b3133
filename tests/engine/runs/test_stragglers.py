"""Causes that slow a run down are named while it is running."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Run, State
from meshwave.engine.runs.accuracy.stragglers import find_stragglers, straggler_meshes, straggler_slowdown
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.recording import Recorder, read_recording
from tests.engine.runs.play import draw, processes, submit, wait_until

STEPS = 30


def record(folder: Path, change: Any, *, dp: int = 2, behind: int = -1) -> None:
    """Write the recording of all processes of a run; ``change`` returns the factors of computations and messages at a
    step.

    The process ``behind`` has not yet recorded the last step.
    """
    prediction = predict(draw(pp=2, dp=dp))
    program, names = prediction.program, [mesh.name for mesh in prediction.design.meshes]
    for process in range(2 * dp):
        rank = process // dp
        recorder = Recorder(folder, program, names, process, rank)
        for step in range(STEPS - (process == behind)):
            seconds = np.where(program.is_compute, 0.01, np.where(program.is_send, 0.01, 0.0))
            computing, sending = change(process, step)
            simulated = prediction.costs.simulate(program, seconds * np.where(program.is_compute, computing, sending))
            start, end = np.zeros(len(program)), np.zeros(len(program))
            start[program.spans], end[program.spans] = simulated.start, simulated.end
            receives = np.flatnonzero(program.span_of_row[:-1] < 0)
            start[receives] = end[receives] = 10 * sending  # long after it was sent: a lasting message
            own = [(1e9 * (step * 100 + each[program.rows(rank)])).astype(np.int64) for each in (start, end)]
            recorder.write(step, *own, np.zeros(len(own[0]), np.int64))
        recorder.close()


def codes(folder: Path) -> list[str]:
    return [problem.code for problem in find_stragglers(read_recording(folder))]


def test_a_steady_run_has_none(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (1.0, 1.0))

    assert codes(tmp_path) == []


def test_a_slow_process_of_a_mesh_is_named(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (1.5 if process == 3 else 1.0, 1.0))

    [found] = find_stragglers(read_recording(tmp_path))
    assert (
        found.message == "compute on mesh M1, process 3 takes 1.5 times as long as on the other processes of the mesh"
    )
    assert (found.where, straggler_meshes(found)) == ("meshes[1]", ("M1",))
    slowdown = straggler_slowdown(found, draw(pp=2, dp=2))
    assert slowdown is not None
    assert slowdown.devices == {3: pytest.approx(1.5)}


def test_a_slow_process_stays_named_while_its_last_step_is_not_recorded(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (1.5 if process == 3 else 1.0, 1.0), behind=3)

    assert codes(tmp_path) == ["slow_process"]


def test_a_mesh_that_becomes_slow_is_named(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (2.0 if process == 1 and step > 12 else 1.0, 1.0), dp=1)

    [found] = find_stragglers(read_recording(tmp_path))
    assert found.code == "slow_mesh"
    slowdown = straggler_slowdown(found, draw(pp=2))
    assert slowdown is not None
    assert slowdown.devices == {1: pytest.approx(2.0)}


def test_a_link_that_becomes_slow_is_named(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (1.0, 3.0 if step > 12 else 1.0), dp=1)

    assert set(codes(tmp_path)) == {"slow_link_of_run"}
    found = find_stragglers(read_recording(tmp_path))[0]
    assert straggler_meshes(found) == ("M0", "M1")
    slowdown = straggler_slowdown(found, draw(pp=2))
    assert slowdown is not None
    assert set(slowdown.links) == {("M0", "M1")}


def test_steps_that_become_longer_without_a_slow_part_are_named(tmp_path: Path) -> None:
    record(tmp_path, lambda process, step: (1.2 if step > 12 else 1.0, 1.7 if step > 12 else 1.0), dp=1)

    [found] = find_stragglers(read_recording(tmp_path))
    assert (found.code, found.where, straggler_meshes(found)) == ("slower_steps", "", ())
    assert straggler_slowdown(found, draw(pp=2)) is None


def stragglers(run: Run) -> list[tuple[str, int | None]]:
    return [(found.code, found.params.get("process")) for found in find_stragglers(read_recording(run.folder))]


@pytest.mark.torch
def test_a_process_that_is_held_up_is_named_while_it_trains(trainer: LocalLauncher) -> None:
    model = {"kind": "gpt", "layers": 2, "hidden": 64, "heads": 2, "sequence": 64, "vocab": 256}
    training = {"steps": 10_000, "lr": 0.01, "micro_batch_size": 2}
    run = submit(trainer, draw(pp=1, dp=2, model=model, training=training))
    slow, done = processes(run)[1], threading.Event()

    def hold_up() -> None:
        while not done.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.02), (signal.SIGCONT, 0.005)):
                os.kill(slow.pid, number)
                time.sleep(seconds)

    wait_until(lambda: run.progress.done > 2)
    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        wait_until(lambda: ("slow_process", 1) in stragglers(run), "its finding")
    finally:
        done.set()
        thread.join()
        slow.send(signal.SIGCONT)
        run.cancel()
    assert run.wait(timeout_s=30) is State.CANCELLED
