"""Time limit of a run. The processes that start its workers enforce it, so that it also holds when nothing follows the run."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path

from meshwave.engine.files import write_private
from meshwave.engine.messages import render
from meshwave.engine.run_files import NotNegative, RunFile, RunFolderError, read_document, write_document

FILE = "time-limit.json"
START = "first-start"
"""Empty file whose modification time is the start of the first attempt."""


class TimeLimit(RunFile):
    """Content of ``time-limit.json``."""

    minutes: NotNegative
    target: str
    """Launch target that has the limit."""


def write_time_limit(folder: Path, minutes: float, target: str) -> None:
    """Write the time limit of a run to its folder."""
    write_document(folder / FILE, TimeLimit(minutes=minutes, target=target).model_dump())


class Deadline:
    """Time at which a run is cancelled. The first deadline that is created for a run folder starts the time of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._limit: TimeLimit | None = None
        with suppress(RunFolderError):  # the folder was removed, or the file is damaged
            self._limit = read_document(folder / FILE, TimeLimit)
        self._end_s = _start_s(folder) + 60 * self._limit.minutes if self._limit else math.inf

    def cancel_overdue(self) -> bool:
        """Request the end of the run if the deadline has passed, and return True in that case."""
        if self._limit is None or time.time() < self._end_s:
            return False
        with suppress(OSError):  # the disk is full, or the folder was removed
            write_private(self._folder / "cancel", render("target_minutes", self._limit.model_dump()))
        return True


def _start_s(folder: Path) -> float:
    """Return the start of the first attempt in Unix seconds: now, if this is the first attempt."""
    start = folder / START
    try:
        os.close(os.open(start, os.O_WRONLY | os.O_CREAT, 0o600))  # keeps the modification time of an existing file
        return start.stat().st_mtime
    except OSError:  # the disk is full
        return time.time()
