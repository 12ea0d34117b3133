"""Runs on a disk that becomes full or read-only: they are reported, and recorded once the disk is writable again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.errors import RunError
from meshwave.engine.runs import Record, State, reconcile
from meshwave.engine.runs.archives import delete_run
from meshwave.engine.runs.launchers.local import LocalLauncher
from tests.engine.runs.play import HERE, draw, logged_events, processes, submit, wait_until

FULL = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small separate disk; only the superuser can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", folder], check=False)
    if mounted.returncode != 0:
        pytest.skip("only the superuser can mount a disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (FULL, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.slow
def test_the_end_of_a_run_is_recorded_once_the_disk_has_space(disk: Path) -> None:
    record = Record(disk / "home")
    launcher = LocalLauncher(record, start="fork", worker="stand_in", path=HERE)
    try:
        run = submit(launcher, draw(steps=1_000_000))
        handles = processes(run)
        wait_until(lambda: logged_events(run, "step"))
        fill(disk / "filler")

        assert run.wait(timeout_s=30) is State.FAILED
        reason = run.reason
        assert "exited with status 1 and reported no error" in reason
        assert not any(handle.is_alive() for handle in handles)
    finally:
        launcher.close()
        (disk / "filler").unlink()

    again = Record(disk / "home")
    reconcile(again)

    assert (again.get(run.id).state, again.get(run.id).reason) == (State.FAILED, reason)
    record.close()
    again.close()


def test_deleting_a_run_frees_space_on_a_full_disk(disk: Path) -> None:
    with closing(Record(disk / "home")) as record:
        about = {"launcher": "local", "handle": {}, "digest": "", "processes": 1, "steps": 1}
        entry, _ = record.submit(name="run", **about)  # type: ignore[arg-type]
        record.folder(entry.id).mkdir()
        (record.folder(entry.id) / "result.json").write_text('{"state": "FAILED", "reason": "the disk is full"}')
        (record.folder(entry.id) / "checkpoint").write_bytes(bytes(100_000))
        fill(disk / "filler")
        with pytest.raises(RunError, match="full"):
            record.change_state(entry.id, State.FAILED)

        delete_run(record, record.get(entry.id))

        assert record.entries() == []
        assert list((disk / "home" / "runs").iterdir()) == []


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def test_a_read_only_folder_is_named_and_keeps_its_runs(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(disk / "home"))
    about = {"launcher": "local", "handle": {}, "digest": "", "processes": 1, "steps": 1}
    with closing(Record()) as record:
        entry, _ = record.submit(name="run", **about)  # type: ignore[arg-type]
        before = record.get(entry.id)
    remount(disk, "ro")

    with pytest.raises(RunError, match=r"Read-only file system.*set MESHWAVE_HOME"):
        Record()
    assert cli.main(["runs", "list"]) == 1
    assert "set MESHWAVE_HOME" in capsys.readouterr().err

    remount(disk, "rw")
    with closing(Record()) as record:
        assert record.entries() == [before]


@pytest.mark.nightly
@pytest.mark.torch
def test_the_command_ends_and_reports_a_full_disk(disk: Path, tmp_path: Path) -> None:
    design = tmp_path / "design.json"
    design.write_text(draw(pp=2, steps=100_000).to_json())
    environment = {**os.environ, "MESHWAVE_HOME": str(disk), "PYTHONPATH": str(HERE.parents[2])}

    def meshwave(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "meshwave.engine.cli.main", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    done = meshwave("run", str(design))

    assert done.returncode == 1, done
    assert "failed: mesh M" in done.stdout
    assert "the disk is full" in done.stdout or "No space left on device" in done.stdout
    assert "Traceback" not in done.stderr
    for log in (disk / "runs").glob("*/rank-*.log"):
        log.unlink()
    (entry,) = json.loads(meshwave("runs", "list", "--json").stdout)["runs"]
    assert entry["state"] == "FAILED"
    with closing(Record(disk)) as record:
        assert record.get(entry["id"]).state is State.FAILED
