"""Runs whose processes are killed: no run is lost, and an interrupted count continues."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.bench import kills
from meshwave.engine.bench.kills import KilledRun, kill_figures, read_killed_runs
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers.local import LocalLauncher


def line(target: str, number: int) -> str:
    made = KilledRun(
        target=target,
        number=number,
        schedule="1f1b",
        after_steps=3,
        killed="process 1",
        restarts=1,
        lost="",
        is_wrong=False,
        left=0,
    )
    return made.model_dump_json() + "\n"


def test_the_runs_of_a_target_are_read_without_a_truncated_line(tmp_path: Path) -> None:
    file = tmp_path / "kills.jsonl"
    assert read_killed_runs(file, "local") == []

    file.write_text(line("local", 0) + line("other", 0) + line("local", 1)[:30])

    assert [each.number for each in read_killed_runs(file, "local")] == [0]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.nightly
def test_a_killed_run_finishes_and_the_measurement_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "STEPS", 20)
    file = tmp_path / "kills.jsonl"
    file.write_text(line("local", 0))
    said: list[str] = []

    with closing(Record(tmp_path)) as record, closing(LocalLauncher(record)) as launcher:
        figures = kill_figures(launcher, "local", 3, read_killed_runs(file, "local"), file, said.append)

    assert len(said) == 2
    assert [each.number for each in read_killed_runs(file, "local")] == [0, 1, 2]
    lost = {name: figures[f"kills: {name}"] for name in ("lost runs", "left processes", "wrong losses")}
    assert lost == {"lost runs": 0, "left processes": 0, "wrong losses": 0}, said
    assert figures["kills: runs"] == 3
