"""The run database states how each run ended and why, and loses no acknowledged change."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.errors import InputError, RunError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Entry, Record, State, reconcile, write_bundle
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.run_entry import Place
from meshwave.engine.runs.run_folder import RunSpec
from tests.engine.runs.play import draw


def enter(record: Record, **changes: Any) -> Entry:
    about = {"name": "a design", "launcher": "local", "handle": {}, "digest": "abc", "processes": 2, "steps": 5}
    return record.submit(**{**about, **changes})[0]


def test_a_run_passes_through_its_states(record: Record) -> None:
    run = enter(record).id

    assert record.change_state(run, State.RUNNING)
    assert record.change_state(run, State.FAILED, "mesh A, it broke")

    entry = record.get(run)
    assert (entry.state, entry.reason) == (State.FAILED, "mesh A, it broke")
    assert entry.started_s is not None
    assert entry.finished_s is not None
    assert entry.created_s <= entry.started_s <= entry.finished_s
    assert [step.state for step in record.history(run)] == [State.STARTING, State.RUNNING, State.FAILED]


@pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST])
def test_a_finished_run_does_not_change(record: Record, end: State) -> None:
    run = enter(record).id
    record.change_state(run, State.RUNNING)
    record.change_state(run, end, "so it was")

    assert not any(record.change_state(run, state, "no, so") for state in State)
    assert (record.get(run).state, record.get(run).reason) == (end, "so it was")


def test_no_run_succeeds_before_it_runs(record: Record) -> None:
    assert not record.change_state(enter(record).id, State.SUCCEEDED)


def test_a_request_submitted_twice_creates_one_run(record: Record) -> None:
    first = enter(record, key="click")
    record.change_state(first.id, State.CANCELLED)

    assert enter(record, key="click").id == first.id
    assert enter(record, key="another").id != first.id


LOCAL = Place("local")


def claim(record: Record, limit: int = 1, place: Place = LOCAL, *, may: bool = True) -> Entry | None:
    return record.claim_next(place, limit, lambda entry: may, {})


def test_runs_of_one_target_start_one_after_another(record: Record) -> None:
    first, second, third = enter(record), enter(record), enter(record)
    elsewhere = enter(record, launcher="elsewhere")

    assert [each.state for each in (first, second, third, elsewhere)] == ["STARTING", "QUEUED", "QUEUED", "STARTING"]
    assert record.queued_runs(LOCAL) == [second, third]
    assert claim(record) is None, "the first one is active"
    record.change_state(first.id, State.FAILED)
    assert claim(record, may=False) is None
    assert record.cancel_queued(second.id, "no longer needed")
    assert not record.cancel_queued(first.id, "it is over")
    claimed = claim(record)
    assert claimed is not None
    assert (claimed.id, claimed.state) == (third.id, State.STARTING)
    assert record.queued_runs() == []


def test_persons_take_turns(record: Record) -> None:
    names = ["ada", "ada", "ada", "grace", "", "grace"]
    runs = {
        enter(record, person=name, name=f"{name}{number}").id: f"{name}{number}" for number, name in enumerate(names)
    }

    assert [runs[entry.id] for entry in record.queued_runs()] == ["grace3", "4", "ada1", "grace5", "ada2"], (
        "ada0 is active"
    )
    assert [entry.name for entry in record.person_entries("ada")] == ["ada0", "ada1", "ada2"]


def test_a_restarted_run_precedes_runs_submitted_later(record: Record) -> None:
    first, second = enter(record), enter(record)
    record.change_state(first.id, State.RUNNING)

    assert record.requeue(first.id, "a process was lost", {})

    assert [entry.id for entry in record.queued_runs(LOCAL)] == [first.id, second.id]
    assert record.get(first.id).started_s is None
    assert not record.requeue(second.id, "it is not active", {})


def test_a_queued_run_is_started_by_one_process_only(tmp_path: Path) -> None:
    def start_run(_: int) -> bool:
        with closing(Record(tmp_path)) as record:
            return claim(record) is not None

    with closing(Record(tmp_path)) as record:
        first, *_ = enter(record), enter(record), enter(record)
        record.change_state(first.id, State.FAILED)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start_run, range(16))) == 1


def test_concurrent_submissions_are_admitted_one_by_one(tmp_path: Path) -> None:
    def click(_: int) -> bool:
        with closing(Record(tmp_path)) as record:
            return enter(record).state is State.STARTING

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(click, range(16))) == 1


def test_ids_sort_by_time_of_creation(record: Record) -> None:
    ids = [enter(record, limit=100).id for _ in range(20)]

    assert len(set(ids)) == 20
    assert [run[:15] for run in ids] == sorted(run[:15] for run in ids)
    assert [entry.id for entry in record.entries()] == ids[::-1]
    assert [entry.id for entry in record.entries(2)] == ids[:-3:-1]
    assert record.entries(None) == record.entries()
    assert [entry.id for entry in record.active_runs()] == ids


def test_a_run_is_found_by_part_of_its_id(record: Record) -> None:
    one, other = (enter(record, limit=2).id for _ in range(2))

    assert record.find(one).id == one
    assert record.find(one[-5:]).id == one
    with pytest.raises(InputError, match=f"{other} and {one}"):
        record.find(one[:8])
    with pytest.raises(InputError, match=r"there is no run '1999'.*Known: "):
        record.find("1999")
    with pytest.raises(InputError, match="there is no run"):
        record.get("1999")


def test_the_database_keeps_its_runs(tmp_path: Path) -> None:
    record = Record(tmp_path)
    run = enter(record, handle={"owner": ["boot", 1, "now"]}).id
    record.close()

    assert Record(tmp_path).get(run).handle == {"owner": ["boot", 1, "now"]}


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    record = Record(tmp_path / "home")
    enter(record)

    places = [tmp_path / "home", *tmp_path.glob("home/*")]
    assert len(places) >= 3
    assert all(stat.S_IMODE(place.stat().st_mode) & 0o077 == 0 for place in places)


def test_a_database_of_a_newer_version_is_not_changed(tmp_path: Path) -> None:
    Record(tmp_path).close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        db.execute("PRAGMA user_version = 99")

    with pytest.raises(RunError, match="written by a newer Meshwave"):
        Record(tmp_path)


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RunError, match="set MESHWAVE_HOME"):
        Record(tmp_path / "file")


def test_a_full_disk_is_reported_and_leaves_the_database_unchanged(record: Record) -> None:
    entry = enter(record)
    pages = record._db.execute("PRAGMA page_count").fetchone()[0]
    record._db.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(
        RunError, match=f"the run database in {record.place} cannot be used: .* full; free some disk space"
    ):
        record.change_state(entry.id, State.FAILED, "why" * 10_000)

    assert record.get(entry.id).state is State.STARTING
    record._db.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert record.change_state(entry.id, State.FAILED, "why" * 10_000)


WRITER = """
import sys
from pathlib import Path
from meshwave.engine.runs import Record, State
record = Record(Path(sys.argv[1]))
about = dict(name="", launcher="local", handle={}, digest="", processes=1, steps=1, limit=10**9)
while True:
    run = record.submit(**about)[0].id
    record.change_state(run, State.RUNNING)
    record.change_state(run, State.FAILED, "as it should")
    print(run, flush=True)
"""


@pytest.mark.slow
def test_killed_writers_lose_no_committed_run(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().strip() for _ in range(20)]
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += writer.stdout.read().split("\n")[:-1]

    record = Record(tmp_path)
    assert len(acknowledged) >= 40
    assert {record.get(run).state for run in acknowledged} == {State.FAILED}
    assert all(len(record.history(run)) == 3 for run in acknowledged)
    for entry in record.active_runs():  # cut off between two transactions, never within one
        assert [step.state for step in record.history(entry.id)][-1] == entry.state
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_database_of_an_older_version_is_upgraded_with_its_runs(tmp_path: Path) -> None:
    record = Record(tmp_path)
    old = enter(record).id
    record.change_state(old, State.CANCELLED)
    record.close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        db.executescript(
            "ALTER TABLE runs DROP COLUMN is_rehearsal; ALTER TABLE runs DROP COLUMN manner;"
            "ALTER TABLE runs DROP COLUMN person; PRAGMA user_version = 1;"
        )
    db.close()

    record = Record(tmp_path)
    new = enter(record, manner="dry run, time x 40", is_rehearsal=True)
    assert [(entry.manner, entry.is_rehearsal) for entry in record.entries()] == [
        ("dry run, time x 40", True), ("", False),
    ]  # fmt: skip
    assert {new.id, old} == {entry.id for entry in record.entries()}
    record.close()


def test_dry_runs_of_an_older_database_remain_dry_runs(tmp_path: Path) -> None:
    record = Record(tmp_path)
    training = enter(record).id
    record.change_state(training, State.CANCELLED)
    dry_run = enter(record, manner="rehearsal, time x 40; on 2 emulated hosts (100 MB/s between them)").id
    record.close()
    with sqlite3.connect(tmp_path / "runs.sqlite") as db:
        db.executescript(
            "ALTER TABLE runs DROP COLUMN is_rehearsal; ALTER TABLE runs DROP COLUMN person; PRAGMA user_version = 2;"
        )
    db.close()

    record = Record(tmp_path)
    assert {entry.id: (entry.is_rehearsal, entry.manner) for entry in record.entries()} == {
        training: (False, ""), dry_run: (True, "dry run, time x 40; on 2 emulated hosts (100 MB/s between them)"),
    }  # fmt: skip
    record.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("state = 'WEIRD'", "state: input should be 'QUEUED', 'STARTING', 'RUNNING'"),
        ("handle = '{'", "handle: invalid JSON: EOF while parsing"),
        ("handle = '[]'", "handle: input should be a valid dictionary"),
        ("created_s = 'x'", "created_s: input should be a valid number"),
        ("created_s = 9e99", "created_s: input should be less than or equal to"),
        ("name = x'ff'", "name: input should be a valid string"),
        ("processes = -1", "processes: input should be greater than or equal to 0"),
    ],
)
def test_a_damaged_row_is_reported_once_and_the_others_are_listed(
    record: Record, change: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = enter(record), enter(record, limit=2)
    record._db.execute(f"UPDATE runs SET {change} WHERE id = ?", (bad.id,))

    assert [entry.id for entry in record.entries()] == [entry.id for entry in record.active_runs()] == [good.id]
    assert (
        caplog.text.count(
            f"the row of run {bad.id} in the run database {record.place / 'runs.sqlite'} is damaged: {told}"
        )
        == 1
    )
    assert record.find(good.id).id == good.id
    with pytest.raises(RunError, match="is damaged: "):
        record.get(bad.id)
    assert enter(record, limit=2).state is State.STARTING, "a run that nobody can name keeps no other from starting"


@pytest.mark.parametrize("state", ["WEIRD", b"x", 5])
def test_a_damaged_transition_is_skipped(record: Record, state: object) -> None:
    run = enter(record).id
    record._db.execute("INSERT INTO transitions VALUES (?, ?, 0, '')", (run, state))

    assert [step.state for step in record.history(run)] == [State.STARTING]


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_index_is_reported_and_rebuilt_from_the_run_folders(tmp_path: Path, damage: bytes) -> None:
    with closing(Record(tmp_path)) as record:
        done = enter(record, name="done")
        design = draw("done", steps=7)
        folder = record.folder(done.id)
        write_bundle(RunSpec(predict(design), design, REHEARSAL), folder)
        (folder / "result.json").write_text('{"state": "FAILED", "reason": "it broke"}')
        shutil.copytree(folder, record.folder("lost"), ignore=lambda *_: ["result.json"])
        record.folder("empty").mkdir()
    index = tmp_path / "runs.sqlite"
    index.write_bytes(damage)

    with pytest.raises(
        RunError, match=rf"the run database {index} is damaged: .*; move runs.sqlite\* to another folder"
    ):
        Record(tmp_path)
    for path in tmp_path.glob("runs.sqlite*"):
        path.rename(path.with_suffix(".aside"))
    with closing(Record(tmp_path)) as record:
        reconcile(record)
        entry, lost = record.get(done.id), record.get("lost")

    assert (entry.name, entry.state, entry.reason, entry.steps) == ("done", State.FAILED, "it broke", 7)
    assert (entry.processes, entry.manner, entry.is_rehearsal) == (4, "dry run", True)
    assert (lost.state, lost.reason) == (
        State.LOST,
        "the end of the run was not recorded; the files that it wrote are kept",
    )


def test_an_index_without_its_tables_is_damaged(record: Record) -> None:
    record._db.execute("DROP TABLE runs")

    with pytest.raises(RunError, match="is damaged: no such table: runs; move"):
        record.entries()
