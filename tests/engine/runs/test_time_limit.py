"""The time limit of a run applies even if no Meshwave process follows the run, and a restart does not extend it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.findings import Refusal
from meshwave.engine.runs import Record, State
from meshwave.engine.runs.launchers._limits import MachineOptions, TargetLimits
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.targets import open_target
from meshwave.engine.runs.time_limit import FILE, Deadline, write_time_limit
from tests.engine.runs.play import HERE, draw, processes, submit

SECOND = 1 / 60
"""One second in minutes."""


def limited_launcher(record: Record, **limits: float) -> LocalLauncher:
    options = MachineOptions(limits=TargetLimits(**limits))  # type: ignore[arg-type]
    return LocalLauncher(record, options, "local", start="fork", worker="stand_in", path=HERE)


def test_the_first_attempt_starts_the_time(tmp_path: Path) -> None:
    write_time_limit(tmp_path, 1.0, "boxes")
    assert not Deadline(tmp_path).cancel_overdue()

    start = tmp_path / "first-start"
    os.utime(start, (time.time() - 59,) * 2)
    assert not Deadline(tmp_path).cancel_overdue()
    os.utime(start, (time.time() - 61,) * 2)

    assert Deadline(tmp_path).cancel_overdue()
    assert (tmp_path / "cancel").read_text() == "the limit of target boxes is 1 min"


@pytest.mark.parametrize("content", [None, "{", '{"minutes": -1, "target": "boxes"}'])
def test_a_run_without_a_readable_limit_has_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)

    assert not Deadline(tmp_path).cancel_overdue()
    assert not (tmp_path / "cancel").exists()


@pytest.mark.slow
def test_an_overdue_run_of_this_machine_is_cancelled(record: Record) -> None:
    with closing(limited_launcher(record, minutes=SECOND / 2)) as launcher:
        run = submit(launcher, draw("sleep"))
        handles = processes(run)

        assert run.wait(timeout_s=30) is State.CANCELLED
        assert run.reason.endswith(": the limit of target local is 0.00833333 min"), run.reason
        assert not any(handle.is_alive() for handle in handles)


def test_the_limits_of_this_machine_are_read_from_the_file(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "targets.toml").write_text("[local.limits]\nprocesses = 1\nminutes = 5\n")
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "targets.toml"))
    with closing(open_target(record, "local")) as launcher:
        assert launcher.limits == TargetLimits(processes=1, minutes=5.0)
        with pytest.raises(Refusal, match="the design has 2 processes, and target local allows 1"):
            launcher.check_limits(draw(pp=2))
