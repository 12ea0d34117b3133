"""Checks of the active and queued runs of all places, such as this machine and each cluster."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.runs.launchers._base import Launcher, check_place
from meshwave.engine.runs.launchers._folders import restore_entries
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import Place


class PlaceChecks:
    """Checks of all places, each in a thread of its own, so that a place that does not respond delays no other."""

    def __init__(self, record: Record, open_launcher: Callable[[str], Launcher] | None = None) -> None:
        """Create the checks.

        Args:
            record: the run database.
            open_launcher: opens the launcher of a target, which starts the queued runs of its place when their turn
                comes as long as this process is alive; None to start nothing that would end with this process.
        """
        self._record, self._open_launcher = record, open_launcher
        self._threads: dict[Place, threading.Thread] = {}

    def start(self, wait_s: float | None = None) -> None:
        """Start a check of each place whose last check has ended, and wait at most ``wait_s`` seconds for their ends."""
        if self._record.is_new:
            restore_entries(self._record)
        checked = {place: thread for place, thread in self._threads.items() if thread.is_alive()}
        entries = *self._record.active_runs(), *self._record.queued_runs()
        started = {
            place: threading.Thread(target=self._check, args=(place,), daemon=True)
            for place in {entry.place for entry in entries} - {*checked}
        }
        self._threads = checked | started
        for thread in started.values():
            thread.start()
        end = None if wait_s is None else time.monotonic() + wait_s
        for thread in started.values():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _check(self, place: Place) -> None:
        with suppress(MeshwaveError, sqlite3.ProgrammingError):  # the disk is full, or the database was closed
            check_place(self._record, place)
            if self._open_launcher is not None and self._record.queued_runs(place):
                self._open_launcher(place.target or place.launcher).watch_queue()


def reconcile(record: Record) -> None:
    """Check every active run, and set it to LOST if its launcher is gone.

    Runs of another live process are left to that process. Called when runs are listed. A new run database is filled from
    the run folders.
    """
    PlaceChecks(record).start()
