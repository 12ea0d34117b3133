"""Failed attempts of a run that restarts from its newest checkpoint."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from meshwave.engine.files import write_all
from meshwave.engine.messages import render
from meshwave.engine.run_files import Count, NotNegative, RunFile, valid_rows
from meshwave.engine.runs.checkpoints import INTERRUPTED, complete_checkpoints, trained_steps

FILE = "attempts.jsonl"
ATTEMPT_FILES = ("store", "error-*.json", "exit-*.json", "position-*.json", "flight-*.json", "node-*.exit", INTERRUPTED)
"""Patterns of files of a failed attempt that are removed before the next attempt starts."""


class Attempt(RunFile):
    """Failed attempt of a run that was restarted; one line of ``attempts.jsonl``."""

    reason: str
    """Reason of the failure."""
    time: NotNegative
    """Time at which the failure was noticed, in Unix seconds."""
    done: Count
    """Number of steps that the attempt completed."""
    resumed_from: Count
    """Number of completed steps in the checkpoint from which the next attempt starts; 0 if there is none."""


def read_attempts(folder: Path) -> list[Attempt]:
    """Return the failed attempts of a run, earliest first; damaged lines are skipped."""
    with suppress(OSError, UnicodeDecodeError):
        return [Attempt(**row) for row in valid_rows((folder / FILE).read_text("utf-8").splitlines(), Attempt)]
    return []


def append_attempt(folder: Path, reason: str, time: float, done: int) -> None:
    """Append a failed attempt to ``attempts.jsonl`` of a run that restarts.

    Raises:
        OSError: the folder was removed, or the disk is full.
    """
    found = complete_checkpoints(folder)
    steps = trained_steps(found[-1]) if found else 0
    line = Attempt(reason=reason, time=time, done=done, resumed_from=steps).model_dump()
    descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        write_all(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def remove_attempt_files(folder: Path) -> None:
    """Remove the files of a failed attempt from the run folder, before the next attempt starts."""
    for pattern in ATTEMPT_FILES:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def attempt_notes(folder: Path) -> list[str]:
    """Return one line of text for each failed attempt of a run."""
    return [
        render("failed_attempt", {"number": number, **attempt.model_dump(exclude={"time"})})
        for number, attempt in enumerate(read_attempts(folder), 1)
    ]
