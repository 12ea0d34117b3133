"""Attempts of a run that starts again after a failure, from its newest checkpoint."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from meshwave.engine.files import write_all
from meshwave.engine.messages import render
from meshwave.engine.run_files import Count, NotNegative, RunFile, valid_rows
from meshwave.engine.runs.checkpoints import INTERRUPTED, complete_checkpoints

FILE = "attempts.jsonl"
LEFT_OVERS = ("store", "error-*.json", "exit-*.json", "position-*.json", "node-*.exit", INTERRUPTED)
"""Files of an attempt that would mislead the next one."""


class Attempt(RunFile):
    """A failed attempt of a run that was started again: a line of ``attempts.jsonl``."""

    reason: str
    """Reason for the failure."""
    time: NotNegative
    """Unix seconds at which the failure was noticed."""
    done: Count
    """Steps that the attempt finished."""
    resumed_from: Count
    """Steps of the checkpoint from which the next attempt starts; 0 for none."""


def read_attempts(folder: Path) -> list[Attempt]:
    """Return the failed attempts of a run, earliest first; damaged lines are left out."""
    with suppress(OSError, UnicodeDecodeError):
        return [Attempt(**row) for row in valid_rows((folder / FILE).read_text("utf-8").splitlines(), Attempt)]
    return []


def append_attempt(folder: Path, reason: str, time: float, done: int) -> None:
    """Record a failed attempt, after which the run starts again.

    Raises:
        OSError: the folder was removed, or the disk is full.
    """
    found = complete_checkpoints(folder)
    steps = int(found[-1].name.removeprefix("step-")) if found else 0
    line = Attempt(reason=reason, time=time, done=done, resumed_from=steps).model_dump()
    descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        write_all(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def remove_left_overs(folder: Path) -> None:
    """Remove the files of a failed attempt from the run folder, so that another one can start there."""
    for pattern in LEFT_OVERS:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def attempt_notes(folder: Path) -> list[str]:
    """Return a line for each failed attempt of a run."""
    return [
        render("failed_attempt", {"number": number, **attempt.model_dump(exclude={"time"})})
        for number, attempt in enumerate(read_attempts(folder), 1)
    ]
