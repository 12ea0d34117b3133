"""The process that torchrun starts for each worker: it reports how the worker ended, and never outlives torchrun."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.runs.time_limit import write_time_limit
from meshwave.engine.runtime.processes import torchrun_process
from tests.conftest import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="torchrun forks its processes on Linux only")


def fork(function: Callable[[], int]) -> int:
    """Call a function in a forked process, whose exit status it returns; return the pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return pid


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Return a function that starts such a process for a worker with this code, and returns its status."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.syspath_prepend(tmp_path)

    def start(code: str) -> int:
        (tmp_path / "stand_in_worker.py").write_text(
            f"import gc, os, time\nIMPORTED_COLLECTING = gc.isenabled()\ndef main(folder):\n    {code}\n"
        )
        return torchrun_process.main(tmp_path, "stand_in_worker")

    return start


def reported_exit(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "exit-0.json").read_text())
    del found["time_s"]
    return found


@pytest.mark.parametrize(
    ("code", "reported", "status"), [("os._exit(0)", 0, 0), ("os._exit(3)", 3, 3), ("os.kill(os.getpid(), 9)", -9, 1)]
)
def test_the_exit_of_the_worker_is_reported(
    start: Callable[[str], int], tmp_path: Path, code: str, reported: int, status: int
) -> None:
    pid = fork(lambda: start(code))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    assert reported_exit(tmp_path) == {"process": 0, "code": reported, "ours": False}


def test_only_the_import_of_the_worker_delays_garbage_collections(start: Callable[[str], int]) -> None:
    pid = fork(lambda: start("os._exit(IMPORTED_COLLECTING or not gc.isenabled())"))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_output_of_the_worker_is_in_its_log(start: Callable[[str], int], tmp_path: Path) -> None:
    pid = fork(lambda: start("os.write(2, b'wrong'); raise ValueError"))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "wrong" in (tmp_path / "rank-0.log").read_text()


def test_a_request_to_end_is_passed_on(start: Callable[[str], int], tmp_path: Path) -> None:
    pid = fork(lambda: start("open(folder / 'here', 'w'); time.sleep(60)"))
    assert wait_until((tmp_path / "here").exists)
    os.kill(pid, signal.SIGTERM)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert reported_exit(tmp_path) == {"process": 0, "code": -15, "ours": True}


def test_the_worker_ends_at_the_time_limit(start: Callable[[str], int], tmp_path: Path) -> None:
    write_time_limit(tmp_path, 0.2 / 60, "boxes")
    pid = fork(lambda: start("time.sleep(60)"))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert reported_exit(tmp_path) == {"process": 0, "code": -9, "ours": True}
    assert (tmp_path / "cancel").read_text() == "the limit of target boxes is 0.00333333 min"


def test_a_process_whose_worker_has_ended_ends_with_torchrun(start: Callable[[str], int], tmp_path: Path) -> None:
    """torch keeps it until the other processes of the node have ended."""

    def wait_for_others() -> int:
        status = start("os._exit(0)")
        (tmp_path / "waits").write_text(str(os.getpid()))
        time.sleep(60)
        return status

    def torchrun() -> int:
        fork(wait_for_others)
        time.sleep(60)
        return 0

    agent = fork(torchrun)
    assert wait_until(lambda: (tmp_path / "waits").exists() and (tmp_path / "waits").read_text())
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)

    waiting = Path(f"/proc/{(tmp_path / 'waits').read_text()}")
    assert wait_until(lambda: not waiting.exists() or "Z" in (waiting / "stat").read_text().rpartition(")")[2][:3])
