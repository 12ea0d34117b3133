"""The result of a run: of everything that failed, the first cause."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.run_files import UNREPORTED_STATUS, RunFile, RunFolderError, numbered_files, read_document
from meshwave.engine.runs.run import last_lines
from meshwave.engine.runs.run_database import State
from meshwave.engine.runs.run_folder import mesh_of, process_count

FORMAT = "meshwave-result/1"

_HINTS: dict[int, str] = {
    signal.SIGKILL: "Meshwave did not send that: a person did, or the system because memory ran out",
    signal.SIGABRT: "gloo aborts when a message is longer than the receive that waits for it: a size mismatch",
    signal.SIGSEGV: "a library crashed; its log may say where",
    signal.SIGBUS: "its text was cut short while it was read, or a disk or shared memory is full",
}

LONGEST_ERROR = 4000
"""Characters of an error that are kept in a result."""
NO_ROOM = "it could not write its error to the run folder: the disk is full, or a limit on the size of files is reached"


class Exit(NamedTuple):
    """The end of a process."""

    process: int
    code: int  # the exit status, or minus the signal
    ours: bool  # Meshwave had asked it to end
    time_s: float  # Unix seconds, when it was noticed

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it that Meshwave did not send."""
        return self.code < 0 and not self.ours


@dataclass(frozen=True)
class Verdict:
    """The final state of a run, its reason, and the process that caused it."""

    state: State
    reason: str
    process: int | None = None


def judge(folder: Path, design: Design, exits: Sequence[Exit], *, was_cancelled: bool, steps: str) -> Verdict:
    """Find the cause among what the processes left behind.

    A process that dies takes the others with it: they find their connections closed and report
    that. So a process that was killed and could not report comes first, then the earliest error
    that was written, then the first bad exit.
    """
    if exits and all(exit.code == 0 for exit in exits):
        return Verdict(State.SUCCEEDED, steps)
    if was_cancelled:
        why = " ".join(last_lines(folder / "cancel", 1))
        return Verdict(State.CANCELLED, cancelled(f"after {steps}", why))
    errors = _failures(folder, design)
    for exit in sorted(exits, key=lambda exit: exit.time_s):
        if exit.was_killed and exit.process not in errors:
            return Verdict(State.FAILED, _killed(folder, design, exit), exit.process)
    if errors:
        first = min(errors, key=lambda process: errors[process].time)
        return Verdict(State.FAILED, _failed(design, first, errors[first]), first)
    for exit in sorted(exits, key=lambda exit: exit.time_s):
        if exit.code != 0 and not exit.ours:
            return Verdict(State.FAILED, _left(folder, design, exit), exit.process)
    return Verdict(State.FAILED, "its processes were ended before they were done")


def cancelled(when: str, why: str) -> str:
    """Return the reason for a cancelled run; ``why`` may be empty."""
    return f"cancelled {when}" + (f": {why}" if why else "")


def to_json(run: str, verdict: Verdict, design: Design, exits: Iterable[Exit]) -> dict[str, Any]:
    """Return the content of ``result.json``."""
    ends = []
    for exit in sorted(exits):
        rank, mesh = mesh_of(design, exit.process)
        ends.append({"process": exit.process, "rank": rank, "mesh": mesh, **exit._asdict()})
    return {
        "format": FORMAT,
        "run": run,
        "state": verdict.state,
        "reason": verdict.reason,
        "cause": verdict.process,
        "exits": ends,
    }


class Failure(RunFile):
    """The form of ``error-<process>.json``."""

    time: float
    error: str
    action: str | None = None


def _failures(folder: Path, design: Design) -> dict[int, Failure]:
    """Return the written errors by process; half a file is skipped, the exit of its process remains."""
    found = {}
    for process, path in numbered_files(folder, "error", ".json").items():
        with suppress(RunFolderError):
            failure = read_document(path, Failure)
            if failure is not None and process < process_count(design):
                found[process] = failure
    return found


def _failed(design: Design, process: int, failure: Failure) -> str:
    """Return the reason for a written error; an action's own error begins with its rank and number."""
    mesh = mesh_of(design, process)[1]
    what = shorten(failure.error, LONGEST_ERROR, placeholder=" ...")
    return f"mesh {mesh}, {what}" if failure.action else f"mesh {mesh}, process {process}: {what}"


def _killed(folder: Path, design: Design, exit: Exit) -> str:
    mesh = mesh_of(design, exit.process)[1]
    number = -exit.code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    hint = _HINTS.get(number, "")
    said = _last_word(folder, exit.process) if number != signal.SIGKILL else ""
    sentence = f"mesh {mesh}, process {exit.process} was ended by {name} (exit {exit.code})"
    return "; ".join(filter(None, (sentence, hint, said)))


def _left(folder: Path, design: Design, exit: Exit) -> str:
    mesh = mesh_of(design, exit.process)[1]
    sentence = f"mesh {mesh}, process {exit.process} ended with status {exit.code} and left no error"
    hint = NO_ROOM if exit.code == UNREPORTED_STATUS else ""
    return "; ".join(filter(None, (sentence, hint, _last_word(folder, exit.process))))


def _last_word(folder: Path, process: int) -> str:
    said = [line.strip() for line in last_lines(folder / f"rank-{process}.log", 20) if line.strip()]
    return f"the last line of its log: {said[-1][:300]}" if said else ""
