"""A run as a person follows it: how it stands, what it printed, what it measured so far."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from meshwave.engine.errors import RunError
from meshwave.engine.runs.run_database import Entry, Record, State
from meshwave.engine.units import duration

LOOK_S = 0.05
_MEASURED = frozenset({"step", "seconds"})
LOG_BYTES = 65_536
"""How much is read from the end of a log; a page shows less."""


class Progress(NamedTuple):
    done: int  # steps
    total: int

    def __str__(self) -> str:
        return f"{self.done} of {self.total} steps"


class LogLine(NamedTuple):
    process: int
    text: str

    def __str__(self) -> str:
        return f"[{self.process}] {self.text}"


class Cancels(Protocol):
    """A launcher, as a run sees it."""

    def cancel(self, run: Run) -> None: ...


class Run:
    """One run of the record, whoever launched it; read from its folder, so any process can follow it."""

    def __init__(self, record: Record, run: str, launcher: Cancels | None = None) -> None:
        self.id = run
        self.folder: Path = record.folder(run)
        self._record = record
        self._launcher = launcher
        self._metrics = _Metrics(self.folder / "metrics.jsonl")
        self._events = _Events(self.folder / "events-0.jsonl")

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    @property
    def entry(self) -> Entry:
        """What the record says now."""
        return self._record.get(self.id)

    @property
    def state(self) -> State:
        return self.entry.state

    @property
    def reason(self) -> str:
        """Why it stands as it does: of a failure the earliest cause, in a sentence."""
        return self.entry.reason

    @property
    def progress(self) -> Progress:
        return Progress(self._events.steps(), self.entry.steps)

    @property
    def created_s(self) -> float:
        """When it was asked for. This and the times below are Unix seconds."""
        return self.entry.created_s

    @property
    def started_s(self) -> float | None:
        """When its processes were there."""
        return self.entry.started_s

    @property
    def first_step_s(self) -> float | None:
        """When its first step was done."""
        first = self._events.first_step()
        return float(first["time"]) if first else None

    @property
    def finished_s(self) -> float | None:
        return self.entry.finished_s

    def metrics(self, since: int = 0) -> list[dict[str, Any]]:
        """One row a step: ``step``, ``loss``, ``grad_norm``, ``seconds``, ``tokens_per_s``.

        A loss or a norm that is no number, since training diverged, is None. A rehearsal has neither, and its
        seconds are modelled ones, or of the ``unit`` that it names.
        ``since`` is how many rows the caller has already.
        """
        return self._metrics.since(since)

    def latest(self) -> dict[str, Any] | None:
        """The last row of :meth:`metrics`, read from the end of its file alone; None before the first."""
        rows = map(_parsed, (line.encode() for line in last_lines(self.folder / "metrics.jsonl", 2)))
        return next((row for row in reversed([*rows]) if row and row.keys() >= _MEASURED), None)

    def events(self) -> list[dict[str, Any]]:
        """What process 0 reported besides its steps: ``started`` with where it computes, ``finished``."""
        return self._events.since(0)

    def notes(self) -> list[str]:
        """What process 0 said of how the run is done: where it computes, and what was chosen where the design
        leaves it open; and that processes share cores, of which no prediction knows."""
        events = self.events()
        return [*(str(event["note"]) for event in events if event.get("note")), *_crowded(self.entry, events)]

    def log(self, lines: int = 200) -> list[LogLine]:
        """The last ``lines`` lines of each process, process by process."""
        return [
            LogLine(process, text)
            for process, path in sorted(_logs(self.folder).items())
            for text in last_lines(path, lines)
        ]

    def result(self) -> dict[str, Any] | None:
        """How it ended, with the exit of each process; None as long as it has not."""
        return read_result(self.folder)

    def wait(self, progress: Callable[[Run], None] | None = None, timeout_s: float | None = None) -> State:
        """Follow the run to its end, calling ``progress`` each time a step is done or its state changes.

        Returns its state, which is not final where ``timeout_s`` ran out first.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        seen: tuple[State, int] | None = None
        while True:
            state = self.state
            now = (state, self._events.steps())
            if progress is not None and now != seen:
                progress(self)
            seen = now
            if state.is_over or (deadline is not None and time.monotonic() > deadline):
                return state
            time.sleep(LOOK_S)

    def cancel(self) -> None:
        """Ask the launcher to end the run, also one that another process launched; one that is over stays as it is.

        Raises:
            RunError: the run was opened without its launcher; see :func:`meshwave.engine.runs.launchers.open_run`.
        """
        if self._launcher is None:
            raise RunError(f"run {self.id} was opened to be read only; open it with open_run to cancel it")
        self._launcher.cancel(self)


class _Lines:
    """A growing file of JSON lines, each read once; a line cut short by a crash is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._offset = 0
        self._lock = threading.Lock()

    def since(self, count: int) -> list[dict[str, Any]]:
        with self._lock:
            self._read()
            return self._rows[max(0, count) :]

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except OSError:  # it is not there yet, or no file any more
            return
        complete = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(complete)
        for row in filter(None, map(_parsed, complete.splitlines())):
            self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        self._rows.append(row)


class _Metrics(_Lines):
    """What steps measured; a row that is no step's, of a file that somebody changed, is left out."""

    def _take(self, row: dict[str, Any]) -> None:
        if row.keys() >= _MEASURED:
            super()._take(row)


class _Events(_Lines):
    """What a process reported. Of its steps, which may be millions, the first and their count are kept."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._steps = 0
        self._first: dict[str, Any] | None = None

    def steps(self) -> int:
        with self._lock:
            self._read()
            return self._steps

    def first_step(self) -> dict[str, Any] | None:
        with self._lock:
            if self._first is None:
                self._read()
            return self._first

    def _take(self, row: dict[str, Any]) -> None:
        if row.get("event") != "step":
            super()._take(row)
            return
        self._steps += 1
        self._first = self._first or row


def _crowded(entry: Entry, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """That more processes compute than this machine has cores."""
    cores, on_cores = os.cpu_count() or 1, any(event.get("device") == "CPU" for event in events)
    if entry.is_rehearsal or not on_cores or entry.processes <= cores:
        return []
    plural = "s" * (cores != 1)
    return [f"{entry.processes} processes take turns on {cores} core{plural}: computations take longer than predicted"]


def loss_of(row: Mapping[str, Any] | None) -> str:
    """``, loss 5.0000`` of a row of metrics; nothing of a rehearsal's, which has none."""
    return f", loss {loss_in_words(row['loss'])}" if row is not None and "loss" in row else ""


def step_time(row: Mapping[str, Any]) -> str:
    """How long a step took, or what that of a rehearsal stands for, which may be in units."""
    return duration(row["seconds"], row.get("unit", "s"))


def loss_in_words(loss: float | None) -> str:
    """A loss as a person reads it; None is how a run writes down one that is no number any more."""
    return "not a number" if loss is None else f"{loss:.4f}"


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _logs(folder: Path) -> dict[int, Path]:
    names = ((re.fullmatch(r"rank-(\d+)\.log", path.name), path) for path in folder.glob("rank-*.log"))
    return {int(match[1]): path for match, path in names if match}


def last_lines(path: Path, lines: int) -> list[str]:
    """The end of a text file, however long it is; nothing where there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    found = text.splitlines()
    whole = found[1:] if size > LOG_BYTES else found  # the first one may be half a line
    return whole[-lines:] if lines > 0 else []


def read_result(folder: Path) -> dict[str, Any] | None:
    """What ``result.json`` says; it is written whole or not at all."""
    try:
        return _parsed((folder / "result.json").read_bytes())
    except OSError:
        return None
