"""Jobs: functions that run in their own processes, with progress and cancellation.

Each job has a process (:mod:`meshwave.designer.state.job_processes`); a job without listeners is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bokeh.document import Document
from bokeh.events import DocumentReady, Event

from meshwave.designer.kit.defects import defect_text
from meshwave.designer.state.job_processes import (
    PROGRESS_INTERVAL_S,
    Done,
    Failed,
    JobProcess,
    JobUpdate,
    Progress,
    take_process,
)

if TYPE_CHECKING:
    from bokeh.server.connection import ServerConnection

PROCESS_LIMIT = max(4, os.cpu_count() or 1)
"""Number of concurrent processes; further jobs wait."""
LONGEST_SENDING_S, SENDING_INTERVAL_S = 0.5, 0.004

_numbers = itertools.count(1)
_running: set[Job] = set()
_slots = threading.BoundedSemaphore(PROCESS_LIMIT)

UpdateHandler = Callable[[JobUpdate], None]
Later = Callable[[Callable[[], None]], Any]
"""Schedules a callback in the event loop of a page; may be called from any thread."""


def run_now(call: Callable[[], None]) -> None:
    """Run a callback in the calling thread: a :data:`Later` for callers without a page."""
    call()


class PageCallbacks:
    """A :data:`Later` for the event loop of a page; after the page is closed it drops its callbacks.

    Callbacks run one after another in the order in which they were scheduled. They wait while a browser loads the page,
    since Panel drops changes between the time at which the browser gets the document and the time at which it has shown
    it. They also wait until earlier changes have been sent: a large timeline is sent in parts while the event loop is free.
    """

    def __init__(self, document: Document) -> None:
        """Initialize the scheduler in the event loop of the page."""
        self.document = document
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        document.on_event(DocumentReady, self._schedule_waiting)

    def __call__(self, call: Callable[[], None]) -> None:
        """Schedule a callback."""
        self._calls.append(call)
        if threading.get_ident() == self._thread:
            self._schedule()
            return
        # Only the page's thread uses the document: a callback that another thread adds can be lost, because Panel makes
        # the document collect its changes for a moment whenever it sends them.
        with suppress(RuntimeError):  # the loop of a server that has stopped is closed
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        try:
            self.document.add_next_tick_callback(self._run)  # type: ignore[arg-type]  # Bokeh awaits it
        except AttributeError:  # the page is closed; Bokeh has deleted the attributes of its document
            self._calls.clear()

    def _schedule_waiting(self, _event: Event) -> None:
        for _ in range(len(self._calls)):
            self._schedule()

    async def _run(self) -> None:
        """Run the first callback, unless a browser loads the page."""
        from panel.io.state import set_curdoc, state  # imported here since the processes of jobs run without Panel

        if _connections(self.document) and not state._connected.get(self.document):
            return
        end = time.monotonic() + LONGEST_SENDING_S
        while _is_sending(self.document) and time.monotonic() < end:
            await asyncio.sleep(SENDING_INTERVAL_S)
        with set_curdoc(self.document):  # Bokeh sets it for functions, but not for coroutines
            if self._calls:  # an earlier run may have taken it
                self._calls.popleft()()


def _is_sending(document: Document) -> bool:
    """Return whether data for the page wait until the network takes them."""
    sockets = (connection._socket.ws_connection for connection in _connections(document))
    streams = (socket.stream for socket in sockets if socket is not None)
    return any(stream is not None and stream.writing() for stream in streams)


def _connections(document: Document) -> Collection[ServerConnection]:
    """Return the connections of browsers to the page of a document."""
    session = getattr(document.session_context, "session", None)
    return session._subscribed_connections if session is not None else ()


def page_callback_scheduler(document: Document | None) -> Later:
    """Return a :data:`Later` for the event loop of a page.

    Args:
        document: the document of the page, or None for callers without one.
    """
    return run_now if document is None else PageCallbacks(document)


class Listener:
    """A caller that waits for a job and receives its updates."""

    def __init__(self, job: Job, later: Later, handle: UpdateHandler) -> None:
        self.job = job
        self.later, self._handle = later, handle
        self._is_over = False

    def deliver(self, update: JobUpdate) -> None:
        """Deliver an update in the listener's event loop."""
        self.later(lambda: None if self._is_over else self._handle(update))

    def stop(self) -> None:
        """Stop listening; the process of a job without listeners is killed."""
        self._is_over = True
        self.job.remove_listener(self)


class Job:
    """A function that runs in its own process, and its listeners."""

    def __init__(self, work: Callable[[], Any], title: str = "computation", *, keeps_process: bool = False) -> None:
        """Create a job that starts with its first listener.

        Args:
            work: a picklable function; each value that a generator yields is a ``PartialResult``.
            title: the computation, for administrators.
            keeps_process: whether the process waits a while for the next job instead of ending.
        """
        self._work, self.title, self._keeps_process = work, title, keeps_process
        self.number = next(_numbers)
        """Number among the jobs of this process."""
        self.started_s = time.time()
        """Unix time at which the job was created."""
        self._stopped = ""  # why it was stopped
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._process: JobProcess | None = None
        self._is_over = False
        self._last: JobUpdate | None = None
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)

    @property
    def is_over(self) -> bool:
        """True if the job has a result, has failed or was stopped."""
        return self._is_over

    @property
    def pid(self) -> int | None:
        """Process ID, None before the process has started and after the job."""
        return self._process.pid if self._process is not None else None

    @property
    def documents(self) -> list[Document]:
        """The documents of the pages that wait for the result."""
        return [each.later.document for each in list(self._listeners) if isinstance(each.later, PageCallbacks)]

    def add_listener(self, later: Later, handle: UpdateHandler) -> Listener:
        """Add a listener; the first one starts the job."""
        listener = Listener(self, later, handle)
        with self._lock:
            self._listeners.append(listener)
            update = self._last
            if self._thread.ident is None:
                self._thread.start()
        if update is not None:
            listener.deliver(update)
        return listener

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener; without any other the process is killed."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and not self._is_over:
                self._is_over = True
                if self._process is not None:
                    self._process.kill()

    def stop(self, reason: str) -> None:
        """Stop the job; its listeners learn the reason."""
        with self._lock:
            self._stopped = reason
            if self._process is not None:
                self._process.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait until the job is over and its process has ended or waits for the next job; return whether that is so."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- in the job's thread ----

    def _run(self) -> None:
        if not _slots.acquire(timeout=PROGRESS_INTERVAL_S):
            self._deliver(Progress(0.0, "waiting for other computations"))
            _slots.acquire()
        _running.add(self)
        try:
            self._end(self._await_update())
        except Exception as error:  # an internal error must not leave listeners waiting
            traceback.print_exc()
            self._end(Failed(defect_text(error)))
        finally:
            _running.discard(self)
            self._release_process()
            _slots.release()

    def _await_update(self) -> JobUpdate:
        process = take_process()
        with self._lock:
            self._process = process
            if self._is_over or self._stopped:  # stopped before it started
                process.kill()
        try:
            for update in process.updates(self._work):
                if isinstance(update, Done | Failed):
                    return update
                self._deliver(update)
        except (EOFError, OSError):
            pass
        return Failed(self._stopped or f"the process ended early ({_exit_text(process.end())})")

    def _release_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            (process.keep if self._keeps_process else process.end)()

    def _end(self, update: JobUpdate) -> None:
        with self._lock:
            self._is_over, self._last = True, update
        self._deliver(update)

    def _deliver(self, update: JobUpdate) -> None:
        for listener in list(self._listeners):
            listener.deliver(update)


def running_jobs() -> list[Job]:
    """Return the jobs whose processes run, the oldest first."""
    return sorted(_running, key=lambda job: job.number)


def warm_up() -> None:
    """Start the process that jobs are forked from, so that the first job does not wait for its imports."""
    Job(int, "start of the process for computations").add_listener(run_now, lambda update: None)


def _exit_text(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status}; the machine may have too little memory"
    return f"exit status {status}"
