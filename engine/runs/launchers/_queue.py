"""Thread that starts the queued runs of a launch target."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

from meshwave.engine.errors import MeshwaveError

LOOK_S = 0.2
"""Interval, in seconds, between two checks of the queue."""
CLOSING_S = 5.0
"""Maximum time, in seconds, for which ``close`` waits for a run that is being started."""


class QueueThread:
    """Thread that calls ``start_next`` repeatedly while it returns True, which means that runs are queued."""

    def __init__(self, start_next: Callable[[], bool]) -> None:
        self._start_next = start_next
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread unless it is already running; return at once."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, daemon=True, name="queue")
                self._thread.start()

    def close(self) -> None:
        """Stop the thread; queued runs stay queued."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING_S)

    def _run(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # the database was closed
            while not self._closed.is_set() and self._has_more():
                self._closed.wait(LOOK_S)

    def _has_more(self) -> bool:
        with suppress(MeshwaveError, OSError):  # the database has the reason; the next run may start
            if self._start_next():
                return True
            with self._lock:  # a run may have been queued since
                if self._start_next():
                    return True
                self._thread = None
                return False
        return True
