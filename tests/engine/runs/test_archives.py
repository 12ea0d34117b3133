"""``meshwave runs export | import | delete | rebuild | resume | follow``."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.findings import Refusal
from meshwave.engine.runs import Entry, Record, archives
from meshwave.engine.runs.archives import LARGEST_READ_BYTES, delete_run, export_run, import_run
from meshwave.engine.runs.checkpoints import complete_checkpoints

DRY_RUN = ["run", "01-first-wave", "--rehearse", "--steps", "1", "--on", "threads"]

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Record]]:
    """Return a function that opens a temporary home folder by name, which the command line then uses."""
    opened: list[Record] = []

    def use(name: str) -> Record:
        monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path / name))
        opened.append(Record())
        return opened[-1]

    monkeypatch.chdir(tmp_path)
    yield use
    for record in opened:
        record.close()


def newest_entry(record: Record) -> Entry:
    return record.entries(1)[0]


def test_a_run_is_exported_deleted_and_imported_elsewhere(
    home: Callable[[str], Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    run = newest_entry(record)
    shown = capsys.readouterr()
    assert cli.main(["runs", "export", run.id, "--out", "run.tar.gz"]) == 0
    assert cli.main(["runs", "export", run.id, "--out", "run.tar.gz"]) == 2
    assert cli.main(["runs", "delete", run.id]) == 0
    assert record.entries() == []
    assert not record.folder(run.id).exists()

    other = home("elsewhere")
    assert cli.main(["runs", "import", "run.tar.gz"]) == 0
    assert cli.main(["runs", "import", "run.tar.gz"]) == 2
    capsys.readouterr()
    assert cli.main(["runs", "show", run.id]) == 0

    found = newest_entry(other)
    assert (found.id, found.state, found.digest, found.manner) == (run.id, run.state, run.digest, run.manner)
    assert capsys.readouterr().out.splitlines()[1] in shown.out
    assert [path.name for path in (tmp_path / "elsewhere" / "runs").iterdir()] == [run.id]


def test_a_run_in_a_shared_folder_is_exported_and_deleted_with_its_files(
    home: Callable[[str], Record], tmp_path: Path
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    run = newest_entry(record)
    shared = tmp_path / "shared"
    record.folder(run.id).rename(shared)
    record.folder(run.id).symlink_to(shared)

    assert cli.main(["runs", "export", run.id, "--out", "run.tar.gz"]) == 0
    assert cli.main(["runs", "delete", run.id]) == 0

    with tarfile.open("run.tar.gz") as made:
        assert f"{run.id}/design.json" in made.getnames()
    assert not shared.exists()
    assert list((tmp_path / "here" / "runs").iterdir()) == []


def test_the_run_database_is_rebuilt_from_the_folders(
    home: Callable[[str], Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    run = newest_entry(record)
    record.delete(run.id)
    capsys.readouterr()

    assert cli.main(["runs", "rebuild", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"entered": [run.id]}
    assert newest_entry(record).digest == run.digest


def test_runs_that_the_database_has_are_not_added_however_many_they_are(
    home: Callable[[str], Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    for number in range(1000):
        record.add_finished(newest_entry(record).model_copy(update={"id": f"later-{number}"}))
    capsys.readouterr()

    assert cli.main(["runs", "rebuild", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"entered": []}


def test_a_run_folder_that_a_wrong_clock_dated_before_1970_is_found(home: Callable[[str], Record]) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    run = newest_entry(record)
    os.utime(record.folder(run.id) / "design.json", (-1e6, -1e6))
    record.delete(run.id)

    assert cli.main(["runs", "rebuild"]) == 0

    assert (newest_entry(record).id, newest_entry(record).created_s) == (run.id, 0)


def test_an_imported_run_that_a_wrong_clock_dated_in_the_future_is_not_newer_than_later_ones(
    home: Callable[[str], Record],
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    run = newest_entry(record)
    os.utime(record.folder(run.id) / "design.json", (2e10, 2e10))
    file = export_run(record, run)
    other = home("elsewhere")

    import_run(other, file)
    later, _ = other.submit(name="x", launcher="local", handle={}, digest="", processes=1, steps=1)

    assert [entry.id for entry in other.entries()] == [later.id, run.id]


def test_an_active_run_is_neither_exported_nor_deleted(home: Callable[[str], Record]) -> None:
    record = home("here")
    entry, _ = record.submit(name="x", launcher="local", handle={}, digest="", processes=1, steps=1)

    with pytest.raises(Refusal, match="has not ended"):
        delete_run(record, entry)


def test_a_run_whose_end_is_only_in_its_folder_is_exported_and_deleted(home: Callable[[str], Record]) -> None:
    record = home("here")
    entry, _ = record.submit(name="x", launcher="local", handle={}, digest="", processes=1, steps=1)
    record.folder(entry.id).mkdir()
    (record.folder(entry.id) / "result.json").write_text('{"state": "FAILED", "reason": "the disk is full"}')

    assert export_run(record, entry).exists()
    delete_run(record, entry)

    assert record.entries() == []


def test_of_two_imports_of_one_archive_at_once_the_later_one_is_refused(
    home: Callable[[str], Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = home("here")
    assert cli.main(DRY_RUN) == 0
    file = export_run(record, newest_entry(record))
    other, read_entry = home("elsewhere"), archives.read_entry

    def import_first(folder: Path) -> Entry:
        monkeypatch.setattr(archives, "read_entry", read_entry)
        import_run(other, file)
        return read_entry(folder)

    monkeypatch.setattr(archives, "read_entry", import_first)
    with pytest.raises(Refusal, match="already exists here"):
        import_run(other, file)

    assert len(other.entries()) == len([*(other.place / "runs").iterdir()]) == 1


def test_folders_of_killed_imports_and_deletions_are_removed_after_an_hour(
    home: Callable[[str], Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = home("here")
    left = [record.place / "runs" / name / FOLDER for name in (".import-abc", f".deleted-{FOLDER}")]
    for folder in left:
        folder.mkdir(parents=True)

    assert cli.main(["runs", "rebuild"]) == 0
    assert all(folder.exists() for folder in left), "the import may still be running"

    monkeypatch.setattr(archives, "LEFTOVER_S", -1.0)
    assert cli.main(["runs", "rebuild"]) == 0
    assert list((record.place / "runs").iterdir()) == []


def archive(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    """Return a tar file of members: name, type, content or target."""
    with tarfile.open(path, "w:gz") as made:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
            else:
                info.linkname = content.decode()
            made.addfile(info, io.BytesIO(content))
    return path


FOLDER = "20260101-000000-abcd"
FILE, LINK, DEVICE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [],
        [("a.txt", FILE, b"x")],
        [("../outside", FILE, b"x")],
        [("/tmp/outside", FILE, b"x")],
        [(f"{FOLDER}/../../outside", FILE, b"x")],
        [(f"{FOLDER}/link", LINK, b"/etc/passwd")],
        [(f"{FOLDER}/device", DEVICE, b"")],
        [(f"{FOLDER}/a", FILE, b"x"), ("20260101-000000-abce/a", FILE, b"x")],
        [(f"{FOLDER}/link", tarfile.LNKTYPE, b"missing")],
        [(".", tarfile.DIRTYPE, b"")],
        [(f"{FOLDER}/{'a/' * 3000}x", FILE, b"x")],
    ],
)
def test_another_archive_is_refused_and_leaves_no_file(
    home: Callable[[str], Record], tmp_path: Path, members: list[Any]
) -> None:
    record = home("here")
    with pytest.raises(Refusal, match="is not an exported run"):
        import_run(record, archive(tmp_path / "x.tar.gz", *members))

    assert list((tmp_path / "here" / "runs").iterdir()) == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("size", "kind", "reason"),
    [
        (10**11, FILE, "larger than the free space"),
        (LARGEST_READ_BYTES + 1, tarfile.XHDTYPE, "a header is too large"),
    ],
)
def test_an_archive_that_expands_is_refused_before_it_fills_disk_or_memory(
    home: Callable[[str], Record],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    kind: bytes,
    reason: str,
) -> None:
    record = home("here")
    info = tarfile.TarInfo(f"{FOLDER}/large")
    info.size, info.type = size, kind
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=10**10))

    with pytest.raises(Refusal, match=reason):
        import_run(record, path)


def test_an_archive_with_an_impossible_date_is_refused(home: Callable[[str], Record], tmp_path: Path) -> None:
    record = home("here")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as made:
        info = tarfile.TarInfo(f"{FOLDER}/design.json")
        info.mtime = 1e30
        made.addfile(info)

    with pytest.raises(Refusal, match="is not an exported run"):
        import_run(record, tmp_path / "x.tar.gz")


def test_a_damaged_run_in_an_archive_is_refused(
    home: Callable[[str], Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = home("here")
    made = archive(tmp_path / "x.tar.gz", (f"{FOLDER}/design.json", FILE, b"{}"))
    empty = archive(tmp_path / "y.tar.gz", (f"{FOLDER}/run.json", FILE, b"{}"))

    for file in (made, empty):
        assert cli.main(["runs", "import", str(file)]) in (1, 2)
        message = capsys.readouterr().err
        assert str(file) in message and ".import-" not in message and "design.json" in message
    assert cli.main(["runs", "import", str(tmp_path / "none.tar.gz")]) == 2

    assert record.entries() == []


@pytest.mark.nightly
@pytest.mark.torch
def test_a_run_is_resumed_by_its_id(home: Callable[[str], Record], capsys: pytest.CaptureFixture[str]) -> None:
    with closing(home("here")) as record:
        assert cli.main(["run", "01-first-wave", "--steps", "2", "--checkpoint-every", "2"]) == 0
        first = newest_entry(record)
        capsys.readouterr()

        assert cli.main(["runs", "resume", first.id]) == 2
        assert "set training.steps above 2" in capsys.readouterr().err
        assert cli.main(["runs", "resume", first.id, "--steps", "4", "--json"]) == 0

        assert [row["step"] for row in json.loads(capsys.readouterr().out)["metrics"]] == [2, 3]
        assert complete_checkpoints(record.folder(newest_entry(record).id))[-1].name == "step-000000004"
        assert cli.main(["runs", "follow", first.id]) == 0
        record.set_handle(first.id, {**first.handle, "target": "old-cluster"})
        assert cli.main(["runs", "resume", first.id, "--steps", "4"]) == 2
        assert "old-cluster" in capsys.readouterr().err, "the target of the run is the default"
