"""Watchdog of a run: each process reports its position, and a hang ends the run with a message that names its cause."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwave.engine.findings import Problem
from meshwave.engine.run_files import RunFolderError, read_document, write_document
from meshwave.engine.runs.process_identity import handle
from meshwave.engine.runtime.communication.flight_recorder import find_stuck_collective, read_flight_records
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.runtime.execution.step_progress import Progress
from meshwave.engine.runtime.processes.hang import HangDiagnosis, ObservedProcess, Position

REPORT_INTERVAL_S = 2.0
"""Interval between reports of a process in seconds."""
SILENCE_REPORTS = 5
"""Number of missed reports after which a process counts as silent."""

OnHang = Callable[[Problem], None]


class Watchdog:
    """Thread that reports the position of this process, and reads the reports of the others while it makes no progress.

    A run hangs if no process has ended an action within the time limit. A process between two steps, where it may write
    a checkpoint, does not count as hanging as long as it reports.
    """

    def __init__(
        self,
        folder: Path,
        job: Job,
        process: int,
        progress: Progress,
        on_hang: OnHang,
        write_record: Callable[[], None] | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            folder: the run folder.
            job: the job of the run.
            process: number of this process.
            progress: position of this process.
            on_hang: called in the thread with the diagnosis.
            write_record: writes the flight record of this process, once it is stuck; None for a backend without one.
        """
        self._folder, self._job, self._process, self._progress = folder, job, process, progress
        self._limit_s, self._on_hang = job.hang_timeout_s, on_hang
        self._interval_s = min(REPORT_INTERVAL_S, self._limit_s / (4 * SILENCE_REPORTS))
        self._write_record, self._is_recorded = write_record, False
        self._is_over = threading.Event()
        self._others: dict[int, _ObservationHistory] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch for hangs during a ``with`` block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def _run(self) -> None:
        own = _ObservationHistory(self._position())
        while not self._is_over.wait(self._interval_s):
            own.update(self._position())
            position = own.position.model_copy(update={"stuck_s": own.unchanged_s})
            with suppress(OSError):  # the disk may be full; this process then counts as silent
                write_document(_position_file(self._folder, self._process), position.model_dump())
            if own.unchanged_s < self._limit_s / 2 or position.activity:
                self._others.clear()
                self._is_recorded = False
                continue
            if self._write_record is not None and not self._is_recorded:
                self._write_record()
                self._is_recorded = True
            self._read_reports()
            if own.unchanged_s >= self._limit_s and not any(
                other.is_moving(self._limit_s) for other in self._others.values()
            ):
                watched = {number: other.to_watched(self._interval_s) for number, other in self._others.items()}
                watched[self._process] = ObservedProcess(position)
                self._on_hang(self._diagnosis(watched).problem(self._process))
                return

    def _diagnosis(self, watched: Mapping[int, ObservedProcess]) -> HangDiagnosis:
        layout, meshes = self._job.layout, [mesh.name for mesh in self._job.design.meshes]
        records = read_flight_records(self._folder, layout.processes) if self._write_record is not None else {}
        return HangDiagnosis(layout, meshes, watched, find_stuck_collective(records))

    def _position(self) -> Position:
        progress = self._progress
        return Position(
            pid=os.getpid(),
            host=socket.gethostname(),
            step=progress.step,
            evaluation_batch=progress.evaluation_batch,
            row=progress.row,
            awaited_row=progress.awaited_row,
            activity=progress.activity,
        )

    def _read_reports(self) -> None:
        for number in range(self._job.layout.processes):
            if number == self._process:
                continue
            with suppress(RunFolderError):
                found = read_document(_position_file(self._folder, number), Position)
                if found is None:  # no report since this process stopped making progress
                    found = Position(pid=0, host="", step=self._progress.step, row=0)
                if number in self._others:
                    self._others[number].update(found)
                else:
                    self._others[number] = _ObservationHistory(found)


class _ObservationHistory:
    """Observations of another process over time."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._has_moved = False
        self._moved_s = self._reported_s = time.monotonic()

    @property
    def unchanged_s(self) -> float:
        """Time in seconds since its position changed, or since the observation began."""
        return time.monotonic() - self._moved_s

    def is_moving(self, limit_s: float) -> bool:
        """Return True if it has ended an action, or reported between two steps, within ``limit_s`` seconds."""
        return self._has_moved and self.unchanged_s < limit_s

    def update(self, position: Position) -> None:
        """Store a report of the process's position."""
        now = time.monotonic()
        if position != self.position:
            self._reported_s = now
            if position.activity or position.order_key != self.position.order_key:
                self._moved_s, self._has_moved = now, True
        self.position = position

    def to_watched(self, interval_s: float) -> ObservedProcess:
        """Return the observed state for a diagnosis; the process is silent if it has missed several reports."""
        silent_s = time.monotonic() - self._reported_s
        if silent_s < SILENCE_REPORTS * interval_s:
            return ObservedProcess(self.position)
        return ObservedProcess(self.position, silent_s, _is_stopped(self.position))


def _is_stopped(position: Position) -> bool:
    """Return True if a signal has stopped a process; False for processes of other hosts."""
    if position.host != socket.gethostname() or not position.pid:
        return False
    found = handle(position.pid)
    return found is not None and found.is_stopped


def _position_file(folder: Path, process: int) -> Path:
    return folder / f"position-{process}.json"
