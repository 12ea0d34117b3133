"""A hanging run ends with an error that names the process, message or link that causes the hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.runtime.communication.process_layout import MeshShape, ProcessLayout
from meshwave.engine.runtime.processes.hang import HangDiagnosis, ObservedProcess, Position
from tests._strategies import Drawn
from tests.engine.runs.play import wait_until

STAGES, MICROBATCHES = 3, 4
LAYOUT = ProcessLayout(
    lower(Drawn({"schedule": "1f1b", "microbatches": MICROBATCHES}, STAGES).design()), (MeshShape(1, 2),) * STAGES
)


def row_of(rank: int, op: Op, microbatch: int) -> int:
    """Return the row of an action in the program of a rank."""
    actions = LAYOUT.program.actions(rank)
    return next(row for row, action in enumerate(actions) if (action.op, action.microbatch) == (op, microbatch))


def waiting_process(rank: int, op: Op, microbatch: int, awaits: Op | None = None, **silence: Any) -> ObservedProcess:
    """Return a process of a rank at an action, which may wait for the tensor of a receive of the same microbatch."""
    awaited = None if awaits is None else row_of(rank, awaits, microbatch)
    row = row_of(rank, op, microbatch)
    return ObservedProcess(Position(pid=1, host="h", step=2, row=row, awaited_row=awaited, stuck_s=60.0), **silence)


def evaluating_process(watched: ObservedProcess) -> ObservedProcess:
    """Return a process at the same action of the first batch of an evaluation."""
    return ObservedProcess(watched.position.model_copy(update={"evaluation_batch": 1}))


def chain(watched: list[ObservedProcess], process: int = 0) -> list[tuple[str, int]]:
    """Return the codes of the diagnosis and the processes that they name."""
    problem = HangDiagnosis(LAYOUT, ["A", "B", "C"], dict(enumerate(watched))).problem(process)
    assert problem.code == "hang"
    assert json.dumps(problem.params)
    assert problem.message
    return [(each["code"], each["params"]["process"]) for each in problem.params["chain"]]


def test_the_cause_is_the_last_process_in_the_chain_of_waits() -> None:
    waiting = waiting_process(2, Op.F, 1, awaits=Op.RECV_F)
    at_partner, stopped = waiting_process(1, Op.F, 1), waiting_process(1, Op.F, 0, silent_s=50.0, is_stopped=True)
    early = waiting_process(0, Op.F, 3)

    found = chain([early, early, stopped, at_partner, waiting, waiting], process=4)

    assert found == [("process_receives", 4), ("process_stopped", 2)]


def test_a_process_that_waits_within_its_mesh_names_the_slowest_one() -> None:
    first, second = waiting_process(0, Op.F, 2), waiting_process(0, Op.F, 1)

    found = chain([first, second, *[waiting_process(1, Op.F, 1)] * 2, *[waiting_process(2, Op.F, 1)] * 2])

    assert found == [("process_waits_for_partner", 0), ("process_computes", 1)]


def test_a_message_that_was_sent_and_has_not_arrived_names_the_link() -> None:
    sender, receiver = waiting_process(0, Op.F, 3), waiting_process(1, Op.F, 1, awaits=Op.RECV_F)

    found = chain([sender, sender, receiver, receiver, *[waiting_process(2, Op.F, 1)] * 2], process=2)

    assert found == [("message_undelivered", 2)]


def test_a_process_in_an_evaluation_waits_for_one_that_has_not_begun_it() -> None:
    ended = ObservedProcess(Position(pid=1, host="h", step=2, row=len(LAYOUT.program.actions(0)), stuck_s=60.0))
    receiver = evaluating_process(waiting_process(1, Op.F, 1, awaits=Op.RECV_F))
    watched = [ended, ended, receiver, receiver, *[evaluating_process(waiting_process(2, Op.F, 1))] * 2]

    assert chain(watched, process=2) == [("process_receives", 2), ("process_computes", 0)]
    problem = HangDiagnosis(LAYOUT, ["A", "B", "C"], dict(enumerate(watched))).problem(2)
    assert "waiting in step 3 for 1RECV_F1 of the evaluation from mesh A" in problem.message


def test_a_process_that_does_not_report_is_named() -> None:
    silent = waiting_process(0, Op.F, 0, silent_s=70.0)

    assert chain([silent, *[waiting_process(rank, Op.F, 0) for rank in (0, 1, 1, 2, 2)]]) == [("process_silent", 0)]


def test_a_silent_process_is_the_cause_also_where_it_has_ended_its_actions() -> None:
    ended = Position(pid=1, host="h", step=2, row=len(LAYOUT.program.actions(0)), stuck_s=60.0)

    found = chain(
        [
            ObservedProcess(ended),
            ObservedProcess(ended, 50.0, True),
            *[waiting_process(1, Op.STEP, -1)] * 2,
            *[waiting_process(2, Op.STEP, -1)] * 2,
        ]
    )

    assert found == [("process_waits_for_partner", 0), ("process_stopped", 1)]


def test_processes_that_wait_for_each_other_are_a_cycle() -> None:
    first = waiting_process(0, Op.B, 0, awaits=Op.RECV_B)
    second = ObservedProcess(
        waiting_process(1, Op.F, 1).position.model_copy(update={"awaited_row": row_of(1, Op.RECV_F, 3)})
    )

    found = chain([first, first, second, second, *[waiting_process(2, Op.F, 1)] * 2])

    assert found == [("process_receives", 0), ("process_receives", 2), ("processes_wait_for_each_other", 0)]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says that a process is stopped")
def test_a_run_with_a_stopped_process_ends_and_names_it(tmp_path: Path) -> None:
    document = load_design(example("01-first-wave")).model_dump(mode="json")
    document["training"]["steps"] = 10_000
    (tmp_path / "design.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "meshwave", "run", str(tmp_path / "design.json"), "--hang-timeout", "4", "--json"]
    home = {**os.environ, "MESHWAVE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=home, stdout=subprocess.PIPE, text=True) as run:
        try:
            reports = wait_until(lambda: list(tmp_path.glob("runs/*/position-2.json")))
            assert reports, "process 2 has not reported"
            os.kill(json.loads(reports[0].read_text())["pid"], signal.SIGSTOP)
            found = json.loads(run.communicate(timeout=60)[0])
        finally:
            run.send_signal(signal.SIGINT)

    assert run.returncode == 1
    assert "mesh C, process 2" in found["reason"]
    assert "is stopped by a signal" in found["reason"]
