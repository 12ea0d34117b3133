"""Verdict on a run: its final state and, for a failure, the earliest cause."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.messages import render
from meshwave.engine.run_files import UNREPORTED_STATUS, RunFile, RunFolderError, files_by_process, read_document
from meshwave.engine.runs.run import Progress, last_lines
from meshwave.engine.runs.run_entry import State
from meshwave.engine.runs.run_folder import process_count, rank_and_mesh

FORMAT = "meshwave-result/1"

LONGEST_ERROR = 4000
"""Maximum number of characters of an error that a result stores."""
LONGEST_LOG_LINE = 300
"""Maximum number of characters of the last log line that a result stores."""


class Exit(NamedTuple):
    """Exit of a process."""

    process: int
    code: int  # exit status; negative signal number if a signal ended it
    ours: bool  # True if Meshwave ended it
    time_s: float  # Unix seconds at which the exit was noticed

    @property
    def was_killed(self) -> bool:
        """True if a signal that Meshwave did not send ended the process."""
        return self.code < 0 and not self.ours


@dataclass(frozen=True)
class Verdict:
    """Final state of a run, the reason for it as a finding, and the process that caused it."""

    state: State
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    process: int | None = None

    @property
    def reason(self) -> str:
        """Reason for the state, as text."""
        return render(self.code, self.params)


def success_verdict(progress: Progress) -> Verdict:
    """Return the verdict on a run that completed all its steps."""
    return Verdict(State.SUCCEEDED, "steps_done", progress._asdict())


def cancelled_verdict(progress: Progress, why: str) -> Verdict:
    """Return the verdict on a cancelled run; ``why`` may be empty."""
    return Verdict(State.CANCELLED, "cancelled_run", {**progress._asdict(), **({"why": why} if why else {})})


def cancel_reason(folder: Path) -> str:
    """Return the reason stated in the request to cancel a run; empty if none is stated."""
    return " ".join(last_lines(folder / "cancel", 1))


def judge(folder: Path, design: Design, exits: Sequence[Exit], *, was_cancelled: bool, progress: Progress) -> Verdict:
    """Return the verdict on a run from the exits, errors and logs of its processes.

    When a process dies, the others report closed connections. The cause is therefore a process that was killed and
    could not report, else the earliest reported error, else the earliest non-zero exit status.
    """
    if exits and all(exit.code == 0 for exit in exits):
        return success_verdict(progress)
    if was_cancelled:
        return cancelled_verdict(progress, cancel_reason(folder))
    errors = _reported_errors(folder, design)
    by_time = sorted(exits, key=lambda exit: exit.time_s)
    for exit in by_time:
        if exit.was_killed and exit.process not in errors:
            return _killed_process(folder, design, exit)
    if errors:
        first = min(errors, key=lambda process: errors[process].time)
        return _failed_process(design, first, errors[first])
    for exit in by_time:
        if exit.code != 0 and not exit.ours:
            return _silent_exit(folder, design, exit)
    return Verdict(State.FAILED, "processes_ended")


def to_json(run: str, verdict: Verdict, design: Design, exits: Iterable[Exit]) -> dict[str, Any]:
    """Return the content of ``result.json``."""
    ends = []
    for exit in sorted(exits):
        rank, mesh = rank_and_mesh(design, exit.process)
        ends.append({"process": exit.process, "rank": rank, "mesh": mesh, **exit._asdict()})
    return {
        "format": FORMAT,
        "run": run,
        "state": verdict.state,
        "reason": verdict.reason,
        "code": verdict.code,
        "params": dict(verdict.params),
        "cause": verdict.process,
        "exits": ends,
    }


class Failure(RunFile):
    """Content of ``error-<process>.json``."""

    time: float
    error: str
    action: str | None = None


def _reported_errors(folder: Path, design: Design) -> dict[int, Failure]:
    """Return the reported errors by process; incomplete files are skipped, since the exit of the process is known."""
    found = {}
    for process, path in files_by_process(folder, "error", ".json").items():
        with suppress(RunFolderError):
            failure = read_document(path, Failure)
            if failure is not None and process < process_count(design):
                found[process] = failure
    return found


def _failed_process(design: Design, process: int, failure: Failure) -> Verdict:
    """Return the verdict for a reported error; the text of an action's error begins with its rank and number."""
    error = shorten(failure.error, LONGEST_ERROR, placeholder=" ...")
    code = "action_failed" if failure.action else "process_failed"
    return _process_verdict(design, process, code, error=error)


def _killed_process(folder: Path, design: Design, exit: Exit) -> Verdict:
    number = -exit.code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    log = {} if number == signal.SIGKILL else _last_log_line(folder, exit.process)
    return _process_verdict(design, exit.process, "process_killed", signal=name, status=exit.code, **log)


def _silent_exit(folder: Path, design: Design, exit: Exit) -> Verdict:
    code = "process_without_space" if exit.code == UNREPORTED_STATUS else "process_without_error"
    return _process_verdict(design, exit.process, code, status=exit.code, **_last_log_line(folder, exit.process))


def _process_verdict(design: Design, process: int, code: str, **params: Any) -> Verdict:
    mesh = rank_and_mesh(design, process)[1]
    return Verdict(State.FAILED, code, {"mesh": mesh, "process": process, **params}, process)


def _last_log_line(folder: Path, process: int) -> dict[str, str]:
    """Return the message parameter ``log`` with the last log line of a process; empty if the log is empty."""
    lines = [line.strip() for line in last_lines(folder / f"rank-{process}.log", 20) if line.strip()]
    return {"log": lines[-1][:LONGEST_LOG_LINE]} if lines else {}
