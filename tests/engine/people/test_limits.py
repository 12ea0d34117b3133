"""Limits on the launches of people who share a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwave.engine.findings import Refusal
from meshwave.engine.people.limits import Limits, TotalLimits, check_disk, check_launch, overdue_runs
from meshwave.engine.runs import Entry, Record, State

LIMITS = Limits(processes=4, runs=2, minutes=1, megabytes=1)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    record = Record(tmp_path)
    yield record
    record.close()


def enter(record: Record, person: str = "ada") -> Entry:
    return record.submit(
        name="a design", launcher="local", handle={}, digest="0" * 16, processes=4, steps=20, person=person
    )[0]


def refused_code(record: Record, person: str = "ada", processes: int = 4, limits: Limits = LIMITS) -> str:
    try:
        check_launch(limits, record, person, processes)
    except Refusal as refusal:
        return refusal.problem.code
    return ""


def test_a_run_of_too_many_processes_is_refused(record: Record) -> None:
    assert refused_code(record) == ""
    assert refused_code(record, processes=5) == "launch_processes"


def test_a_learner_has_a_limited_number_of_unfinished_runs(record: Record) -> None:
    first, _ = enter(record), enter(record)
    assert refused_code(record) == "launch_runs"
    assert refused_code(record, "grace") == ""
    record.change_state(first.id, State.FAILED)
    assert refused_code(record) == ""


def test_a_learner_has_limited_disk_space(record: Record) -> None:
    run = enter(record)
    folder = record.folder(run.id) / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"0" * 1_000_001)
    (folder / "link").symlink_to("nowhere")
    assert refused_code(record) == "launch_disk"
    assert refused_code(record, "grace") == ""


def test_a_run_without_processes_is_limited_by_disk_space_only(record: Record) -> None:
    for person in ("ada", "ada", "grace"):
        enter(record, person)
    totals = TotalLimits(runs=1, processes=1, megabytes=1)
    check_disk(LIMITS.model_copy(update={"total": totals}), record, "ada")
    folder = record.folder(record.person_entries("grace")[0].id)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"0" * 1_000_001)
    with pytest.raises(Refusal) as refusal:
        check_disk(LIMITS.model_copy(update={"total": totals}), record, "ada")
    assert refusal.value.problem.code == "launch_total_disk"


def test_only_runs_of_learners_are_overdue(record: Record) -> None:
    runs = [enter(record, person) for person in ("ada", "")]
    for run in runs:
        record.change_state(run.id, State.STARTING)
        record.change_state(run.id, State.RUNNING)
    started_s = record.get(runs[0].id).started_s
    assert started_s is not None
    assert list(overdue_runs(LIMITS, record, started_s + 59)) == []
    assert [entry.id for entry in overdue_runs(LIMITS, record, started_s + 61)] == [runs[0].id]


@pytest.mark.parametrize(
    ("total", "code"),
    [
        (TotalLimits(), ""),
        (TotalLimits(runs=3, processes=16, megabytes=1), ""),
        (TotalLimits(runs=2), "launch_total_runs"),
        (TotalLimits(processes=11), "launch_total_processes"),
        (TotalLimits(megabytes=0), "launch_total_disk"),
    ],
)
def test_all_people_together_have_limits(record: Record, total: TotalLimits, code: str) -> None:
    """Two people have four processes each; the run of the server's own user does not count."""
    runs = [enter(record, person) for person in ("grace", "alan", "")]
    (record.folder(runs[0].id)).mkdir(parents=True)
    (record.folder(runs[0].id) / "log").write_bytes(b"0" * 1000)
    assert refused_code(record, limits=LIMITS.model_copy(update={"total": total})) == code


def test_runs_of_people_without_limits_are_never_overdue(record: Record) -> None:
    run = enter(record)
    record.change_state(run.id, State.STARTING)
    record.change_state(run.id, State.RUNNING)
    started_s = record.get(run.id).started_s
    assert started_s is not None
    assert list(overdue_runs(LIMITS, record, started_s + 61, {"ada"})) == []
