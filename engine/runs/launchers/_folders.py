"""Run folders without an entry in the run database: those of recovered runs here, and of deleted runs on other hosts."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import RunRefusal
from meshwave.engine.messages import render
from meshwave.engine.runs.launchers._base import launchers
from meshwave.engine.runs.launchers._jobs import JobLauncher
from meshwave.engine.runs.launchers._specification import describe_manner
from meshwave.engine.runs.run import read_result
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State
from meshwave.engine.runs.run_folder import read_bundle


def restore_entries(record: Record) -> list[str]:
    """Add an entry for each run folder that is missing from the run database, for example after a move; return the run IDs."""
    known = {entry.id for entry in record.entries(None)}
    entered = []
    for folder in sorted((record.place / "runs").iterdir()):
        if folder.name in known or folder.name.startswith("."):
            continue
        with suppress(MeshwaveError, OSError):  # not a run folder
            record.add_finished(read_entry(folder))
            entered.append(folder.name)
    record.is_new = False
    return entered


def read_entry(folder: Path) -> Entry:
    """Read a run folder and return the entry of the run.

    Raises:
        RunFolderError: the folder is damaged, or is not a run folder.
    """
    bundle, result = read_bundle(folder), read_result(folder)
    dated_s = (folder / "design.json").stat().st_mtime
    made_s = min(max(0.0, dated_s), time.time())  # a wrong clock can date a file before 1970 or in the future
    return Entry(
        id=folder.name,
        key=None,
        name=bundle.drawn.name,
        state=State(result.state) if result else State.LOST,
        reason=result.reason if result else render("end_not_recorded", {}),
        launcher="local",
        handle={},
        digest=bundle.program.digest,
        processes=bundle.processes,
        steps=bundle.design.training.steps,
        created_s=made_s,
        started_s=None,
        finished_s=None,
        manner=describe_manner(bundle.design, bundle.options),
        is_rehearsal=bundle.options.rehearse is not None,
    )


def remove_from_hosts(record: Record, entry: Entry) -> None:
    """Remove the folder of a deleted run from the hosts that have a copy of their own.

    Raises:
        RunRefusal: a host does not respond, or the options of the run are unknown.
    """
    try:
        launcher = launchers[entry.launcher].from_entry(record, entry)
        if isinstance(launcher, JobLauncher):
            launcher.remove(record.folder(entry.id))
    except MeshwaveError as error:
        raise RunRefusal("run_left_on_hosts", {"run": entry.id, "why": str(error)}) from None
