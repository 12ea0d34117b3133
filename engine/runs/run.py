"""A run as any process can read and follow it: state, logs, events and metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import ConfigDict

from meshwave.engine.errors import RunError, escape_unprintable, shorten
from meshwave.engine.findings import RunRefusal
from meshwave.engine.messages import render
from meshwave.engine.run_files import (
    Count,
    Follower,
    NotNegative,
    RunFile,
    RunFolderError,
    files_by_process,
    read_document,
    valid_rows,
)
from meshwave.engine.runs.attempts import attempt_notes
from meshwave.engine.runs.checkpoints import skipped_checkpoints
from meshwave.engine.runs.process_identity import stopped_process_lines
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Entry, State
from meshwave.engine.units import duration, format_count

LOOK_S = 0.05
"""Interval, in seconds, at which :meth:`Run.wait` reads the state of a run."""
POLL_S = 0.5
"""Interval, in seconds, at which :meth:`Run.wait` lets the launcher check a run."""
RESULT = "result.json"
LOG_BYTES = 65_536
"""Maximum number of bytes read from the beginning or end of a log."""
LONGEST_LOG_LINE = 1000
"""Maximum number of characters of a log line that :meth:`Run.log` returns."""


class Progress(NamedTuple):
    """Number of completed steps, and of all steps."""

    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done} of {self.total} steps"


class Contention(NamedTuple):
    """Number of processes, and the smaller number of cores that they share."""

    processes: int
    cores: int


class LogLine(NamedTuple):
    """A log line of a process."""

    process: int
    text: str

    def __str__(self) -> str:
        return f"[{self.process}] {self.text}"


class MetricsRow(RunFile):
    """Line of ``metrics.jsonl``."""

    step: Count
    seconds: NotNegative
    tokens_per_s: NotNegative
    loss: float | None = None
    grad_norm: float | None = None
    eval_loss: float | None = None
    unit: str = "s"


REBALANCED = "rebalanced"
"""Event of a change of the expert placement during training."""
MOST_PLACEMENTS = 8
"""Maximum number of changes of the expert placement that the notes of a run list."""


class EventRow(RunFile):
    """Line of ``events-0.jsonl``."""

    model_config = ConfigDict(extra="allow")

    event: str
    time: float
    step: Count = 0
    note: str = ""
    device: str = ""


class Result(RunFile):
    """Content of ``result.json``."""

    state: Literal["SUCCEEDED", "FAILED", "CANCELLED", "LOST"]
    reason: str
    cause: int | None = None
    exits: tuple[dict[str, Any], ...] = ()


class Control(Protocol):
    """Methods of a launcher that a run calls."""

    def cancel(self, run: Run, why: str = "") -> None:
        """End a run."""

    def poll(self, run: Run) -> None:
        """Check an active run, and record its end if it has ended."""


class Run:
    """A run in the run database, read from its run folder, so that any process can follow it."""

    def __init__(self, record: Record, run: str, launcher: Control | None = None) -> None:
        self.id = run
        self.folder: Path = record.folder(run)
        self.trouble = ""
        """Reason why the state of the run could not be updated in :meth:`wait`; empty if it could."""
        self._record = record
        self._launcher = launcher

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    @property
    def entry(self) -> Entry:
        """Entry in the run database, with the result of the run even if the database could not be written."""
        entry = self._record.get(self.id)
        result = None if entry.state.is_over else read_result(self.folder)
        return (
            entry
            if result is None
            else entry.model_copy(update={"state": State(result.state), "reason": result.reason})
        )

    @property
    def state(self) -> State:
        """State of the run."""
        return self.entry.state

    @property
    def reason(self) -> str:
        """Reason for the state; for a failure, its earliest cause."""
        return self.entry.reason

    @property
    def waiting_reason(self) -> str:
        """Reason why the run waits in a queue of Meshwave or of a cluster; empty if it does not wait."""
        entry = self.entry
        if entry.state is State.QUEUED:
            return self._queue_position(entry)
        return "" if entry.state.is_over else str(entry.handle.get("waiting", ""))  # of a job that runs or was requeued

    def _queue_position(self, entry: Entry) -> str:
        queue = [each.id for each in self._record.queued_runs(entry.place)]
        first = next((each.id for each in self._record.active_runs() if each.place == entry.place), "")
        if entry.id not in queue:  # it has just started
            return ""
        return render("queued", {"position": queue.index(entry.id) + 1, "queued": len(queue), "run": first})

    @property
    def progress(self) -> Progress:
        """Number of completed steps, and of all steps."""
        steps = (row for row in self._last_events() if row["event"] == "step")
        return Progress(next((row.get("step", 0) + 1 for row in steps), 0), self.entry.steps)

    @property
    def created_s(self) -> float:
        """Time of submission in Unix seconds."""
        return self.entry.created_s

    @property
    def started_s(self) -> float | None:
        """Time at which all processes had started, in Unix seconds; None before that."""
        return self.entry.started_s

    @property
    def first_step_s(self) -> float | None:
        """Time at which the first step was completed, in Unix seconds; None before that."""
        return next((row["time"] for row in self._first_events() if row["event"] == "step"), None)

    @property
    def finished_s(self) -> float | None:
        """Time at which the run ended, in Unix seconds; None before that."""
        return self.entry.finished_s

    def metrics(self, since: int = 0) -> list[dict[str, Any]]:
        """Return one row per step: ``step``, ``loss``, ``grad_norm``, ``seconds``, ``tokens_per_s``.

        The row of a step that an evaluation follows also has ``eval_loss``. A loss or norm that is not a number, because
        training diverged, is None. A dry run has neither; its ``seconds`` are modelled, in seconds or in the ``unit`` of
        the row. The first ``since`` rows are left out.
        """
        return self.follow_metrics().remaining_rows()[max(0, since) :]

    def follow_metrics(self) -> Follower:
        """Return a reader that follows new rows of :meth:`metrics`."""
        return Follower(self.folder / "metrics.jsonl", MetricsRow)

    def latest_metrics(self) -> dict[str, Any] | None:
        """Return the last row of :meth:`metrics`; None before the first step is completed."""
        return next(valid_rows(reversed(last_lines(self.folder / "metrics.jsonl", 2)), MetricsRow), None)

    def events(self) -> list[dict[str, Any]]:
        """Return the events of process 0 before its first step (such as its device) and after its last step."""
        before, after = (
            [*takewhile(lambda row: row["event"] != "step", rows)]
            for rows in (self._first_events(), self._last_events())
        )
        return before if before == after[::-1] else [*before, *after[::-1]]

    def _first_events(self) -> Iterator[dict[str, Any]]:
        return valid_rows(first_lines(self.folder / "events-0.jsonl"), EventRow)

    def _last_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events after the last step, latest first."""
        return valid_rows(reversed(last_lines(self.folder / "events-0.jsonl", LOG_BYTES)), EventRow)

    def notes(self) -> list[str]:
        """Return notes about the run: its device, choices that the design leaves open, shared cores, stopped processes."""
        events, entry = self.events(), self.entry
        notes = (event["note"] for event in events if event.get("note") and event["event"] != REBALANCED)
        return [
            *notes,
            *self._placement_notes(),
            *_shared_cores_note(self.contention),
            *attempt_notes(self.folder),
            *(render("skipped_checkpoint", {"checkpoint": name}) for name in skipped_checkpoints(self.folder)),
            *stopped_process_lines(entry),
            *filter(None, [silence_text(entry)]),
        ]

    def _placement_notes(self) -> list[str]:
        """Return notes about the latest changes of the expert placement."""
        rows = valid_rows(last_lines(self.folder / "events-0.jsonl", LOG_BYTES), EventRow)
        found = [f"after step {row['step'] + 1}: {row['note']}" for row in rows if row["event"] == REBALANCED]
        earlier = len(found) - MOST_PLACEMENTS
        return [
            *([f"{earlier} earlier changes of the expert placement"] if earlier > 0 else []),
            *found[-MOST_PLACEMENTS:],
        ]

    @property
    def contention(self) -> Contention | None:
        """Number of processes on this machine and of its cores, if processes share cores; None otherwise."""
        entry, cores = self.entry, os.cpu_count() or 1
        on_cores = any(event.get("device") == "CPU" for event in self.events())
        shares = on_cores and not entry.is_rehearsal and entry.processes > cores
        return Contention(entry.processes, cores) if shares else None

    def stopped_process_lines(self) -> list[str]:
        """Return a line for each process of the run that is stopped and does not respond."""
        return stopped_process_lines(self.entry)

    def log(self, lines: int = 200, process: int | None = None, query: str = "") -> list[LogLine]:
        """Return the last ``lines`` log lines that contain ``query``, ignoring case, of each process or of one.

        Lines of more than :data:`LONGEST_LOG_LINE` characters are shortened.
        """
        wanted, found = query.casefold(), []
        for number, path in files_by_process(self.folder, "rank", ".log").items():
            if process in (None, number):
                matching = [text for text in last_lines(path, LOG_BYTES) if wanted in text.casefold()]
                last = matching[-lines:] if lines > 0 else []
                found += [
                    LogLine(number, shorten(escape_unprintable(text.expandtabs()), LONGEST_LOG_LINE)) for text in last
                ]
        return found

    def result(self) -> Result | None:
        """Return the result of the run with the exit of each process; None before the run has ended."""
        return read_result(self.folder)

    def wait(self, progress: Callable[[Run], None] | None = None, timeout_s: float | None = None) -> State:
        """Wait until the run has ended or ``timeout_s`` seconds have passed, and return its state.

        ``progress`` is called after each step and each change of state, when a process is stopped or continues, and
        when the launch target stops or starts to answer.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        seen: tuple[object, ...] = ()
        polled_s = time.monotonic()
        while True:
            if self._launcher is not None and time.monotonic() - polled_s > POLL_S:
                self._poll_launcher(self._launcher)
                polled_s = time.monotonic()
            state = self.state
            texts = self.waiting_reason, self.trouble, silence_text(self.entry), *self.stopped_process_lines()
            now = (state, self.progress.done, *texts)
            if progress is not None and now != seen:
                progress(self)
            seen = now
            if state.is_over or (deadline is not None and time.monotonic() > deadline):
                return state
            time.sleep(LOOK_S)

    def _poll_launcher(self, launcher: Control) -> None:
        try:
            launcher.poll(self)
            self.trouble = ""
        except RunError as error:  # the run database cannot be written
            self.trouble = str(error)

    def cancel(self, why: str = "") -> None:
        """Cancel the run, even if another process launched it; a finished run is not changed.

        ``why`` becomes part of the reason for the state.

        Raises:
            RunError: the run was opened without its launcher; see :func:`meshwave.engine.runs.launchers.open_run`.
        """
        if self._launcher is None:
            raise RunRefusal("read_only_run", {"run": self.id})
        self._launcher.cancel(self, why)


def _shared_cores_note(contention: Contention | None) -> list[str]:
    """Return a note if there are more computing processes than cores, which no prediction models."""
    if contention is None:
        return []
    processes, cores = contention
    shared = format_count(cores, "core")
    return [f"{processes} processes take turns on {shared}: computations take longer than predicted"]


def silence_text(entry: Entry, *, reason: bool = True) -> str:
    """Return the time since which the target of an active run has not answered, with the reason; empty if it answers."""
    match entry.handle.get("no_answer"):
        case {"since_s": float(since_s), "why": str(why)} if not entry.state.is_over:
            return render("no_answer", {"since_s": since_s, "why": why if reason else ""})
    return ""


def loss_suffix(row: Mapping[str, Any] | None) -> str:
    """Return ``, loss 5.0000`` for a row of metrics; empty for a dry run."""
    return f", loss {loss_text(row['loss'])}" if row is not None and "loss" in row else ""


def format_step_time(row: Mapping[str, Any]) -> str:
    """Return the time of a step with its unit, as text; modelled time for a dry run."""
    return duration(row["seconds"], row.get("unit", "s"))


def loss_text(loss: float | None) -> str:
    """Return a loss as text; None stands for a loss that is not a number."""
    return "not a number" if loss is None else f"{loss:.4f}"


def first_lines(path: Path) -> list[str]:
    """Return the complete lines in the first :data:`LOG_BYTES` of a text file; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(LOG_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    except OSError:
        return []


def last_lines(path: Path, lines: int) -> list[str]:
    """Return the last lines of a text file, at most :data:`LOG_BYTES`; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    found = text.splitlines()
    whole = found[1:] if size > LOG_BYTES else found  # the first line may be incomplete
    return whole[-lines:] if lines > 0 else []


def read_result(folder: Path) -> Result | None:
    """Return the result of a run; None if it has none yet or it is damaged."""
    try:
        return read_document(folder / RESULT, Result)
    except RunFolderError:
        return None
