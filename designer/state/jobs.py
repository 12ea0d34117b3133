"""Jobs: functions that run in their own processes, with progress and cancellation.

Each job has a process, which frees its memory when it ends; a job without listeners is killed. Processes are forked
from one that has imported the engine (:mod:`meshwave.designer.pages.warm_up`).
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import isgenerator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import IO, Any, BinaryIO

from bokeh.document import Document

from meshwave.designer.kit.defects import defect_text
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.progress import report_progress_to

PROCESS_LIMIT = max(4, os.cpu_count() or 1)
"""Number of concurrent processes; further jobs wait."""
PROGRESS_INTERVAL_S = 0.25
"""Interval of progress reports; a shorter job reports none."""
_CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()

_numbers = itertools.count(1)
_running: set[Job] = set()
_slots = threading.BoundedSemaphore(PROCESS_LIMIT)
_processes: Any = multiprocessing.get_context("forkserver" if _CAN_FORK else "spawn")
_processes.set_forkserver_preload(["meshwave.designer.pages.warm_up"])


@dataclass(frozen=True)
class Progress:
    """Progress of a job: the completed fraction from 0 to 1, and the current activity."""

    share: float
    activity: str


@dataclass(frozen=True)
class PartialResult:
    """One of the results of a job whose function is a generator."""

    value: Any


@dataclass(frozen=True)
class Done:
    """The result of a job, after which the job sends no more updates."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The reason why a job failed, after which the job sends no more updates."""

    reason: str


JobUpdate = Progress | PartialResult | Done | Failed
UpdateHandler = Callable[[JobUpdate], None]
Later = Callable[[Callable[[], None]], Any]
"""Schedules a callback in the event loop of a page; may be called from any thread."""


def run_now(call: Callable[[], None]) -> None:
    """Run a callback in the calling thread: a :data:`Later` for callers without a page."""
    call()


class PageCallbacks:
    """A :data:`Later` for the event loop of a page; after the page is closed it drops its callbacks."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __call__(self, call: Callable[[], None]) -> None:
        """Schedule a callback."""
        # A session may end at any moment of the calling thread. Bokeh then deletes the attributes of its document.
        with suppress(AttributeError):
            self.document.add_next_tick_callback(call)


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

    def __init__(self, work: Callable[[], Any], title: str = "computation") -> None:
        """Create a job that starts with its first listener.

        Args:
            work: a picklable function; each value that a generator yields is a :class:`PartialResult`.
            title: the computation, for administrators.
        """
        self._work, self.title = work, title
        self.number = next(_numbers)
        """Number among the jobs of this process."""
        self.started_s = time.time()
        """Unix time at which the job was created."""
        self._stopped = ""  # why it was stopped
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._process: Any = None
        self._is_over = False
        self._last: JobUpdate | None = None
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)

    @property
    def is_over(self) -> bool:
        """True if the job has a result, has failed or was stopped."""
        return self._is_over

    @property
    def pid(self) -> int | None:
        """Process ID, None before the process has started."""
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
        """Wait until the process has ended; return whether it has."""
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
            if self._process is not None:  # it frees its memory while listeners continue
                self._process.join()
            _slots.release()

    def _await_update(self) -> JobUpdate:
        here, there = _processes.Pipe(duplex=False)
        arrays, path = _shared_file()
        with here, arrays:
            with there:
                self._start(there, path)
            try:
                while not isinstance(update := _receive_update(here, arrays), Done | Failed):
                    self._deliver(update)
            except (EOFError, OSError):
                self._process.join()
                reason = f"the process ended early ({_exit_text(self._process.exitcode)})"
                update = Failed(self._stopped or reason)
        return update

    def _start(self, there: Connection, path: str) -> None:
        process = _start_process(there, path, self._work)
        with self._lock:
            self._process = process
            if self._is_over or self._stopped:  # stopped before it started
                process.kill()

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
    Job(int).add_listener(run_now, lambda update: None)


def _exit_text(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status}; the machine may have too little memory"
    return f"exit status {status}"


def _start_process(there: Connection, path: str, work: Callable[[], Any]) -> Any:
    """Start a process that runs a function, and if necessary the process from which it is forked."""
    arguments = there, path, os.environ.get("MESHWAVE_HOME"), work
    process = _processes.Process(target=_serve, args=arguments, daemon=True)
    with _blocked_interrupts():
        process.start()
    return process


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block SIGINT in processes that are started meanwhile: Ctrl-C is for the server, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # its start unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the job's process ----


def _serve(connection: Connection, path: str, home: str | None, work: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it cannot be blocked
    os.environ.pop("MESHWAVE_HOME", None)
    os.environ.update({"MESHWAVE_HOME": home} if home is not None else {})
    try:
        arrays = open(path, "wb")  # noqa: SIM115  open until the process ends
    except OSError:  # the server, whose file it is, has ended
        return
    channel = _Channel(connection, arrays)
    threading.Thread(target=channel.report_progress, daemon=True).start()
    with report_progress_to(channel.watch):
        channel.send(_run_work(work, channel))


def _run_work(work: Callable[[], Any], channel: _Channel) -> JobUpdate:
    try:
        result = work()
        if not isgenerator(result):
            return Done(result)
        for value in result:
            channel.send(PartialResult(value))
        return Done(None)
    except MeshwaveError as error:
        return Failed(str(error))
    except Exception as error:
        traceback.print_exc()
        return Failed(defect_text(error))


class _Channel:
    """Sends the updates of a job to the server: objects through a pipe, arrays through a shared file."""

    def __init__(self, connection: Connection, arrays: BinaryIO) -> None:
        self._connection, self._arrays = connection, arrays
        self._lock = threading.Lock()
        self._progress: Progress | None = None

    def watch(self, share: float, activity: str) -> None:
        self._progress = Progress(share, activity)

    def report_progress(self) -> None:
        """Send the latest progress at intervals, and end this process when the server ends."""
        server = multiprocessing.parent_process()
        assert server is not None
        while not wait([server.sentinel], PROGRESS_INTERVAL_S):
            if self._progress is not None:
                self.send(self._progress)
                self._progress = None
        os._exit(1)

    def send(self, update: JobUpdate) -> None:
        """Send an update; the bytes of its arrays are written to the shared file. The process ends if nobody receives it."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(update, protocol=5, buffer_callback=buffers.append)
        with self._lock:
            places = [self._write(buffer.raw()) for buffer in buffers]
            self._arrays.flush()
            try:
                self._connection.send((data, places))
            except ConnectionError:  # the server has ended
                os._exit(1)

    def _write(self, raw: memoryview) -> tuple[int, int]:
        """Append a buffer to the shared file and return its first and last offset."""
        self._arrays.write(b"\0" * (-self._arrays.tell() % ALIGNMENT_BYTES))
        begin = self._arrays.tell()
        self._arrays.write(raw)
        return begin, begin + raw.nbytes


# ---- the shared file ----

MAPPED_BYTES = 1 << 20
"""Size of the file from which its arrays are mapped instead of read."""
ALIGNMENT_BYTES = 64
"""Alignment of each array in the file."""


def _shared_file() -> tuple[IO[bytes], str]:
    """Open an in-memory file (a temporary file where the system has none) and return the path by which a job opens it."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("meshwave-job")
        return open(number, "rb"), f"/proc/{os.getpid()}/fd/{number}"
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed with the job
    return file, file.name


def _receive_update(connection: Connection, arrays: IO[bytes]) -> JobUpdate:
    """Receive an update.

    Large arrays are mapped copy-on-write from the shared file. Small ones are read, since a mapping keeps a file
    descriptor open for the lifetime of its arrays.
    """
    data, places = connection.recv()
    if not places:
        update: JobUpdate = pickle.loads(data)
        return update
    end = places[-1][1]
    if end < MAPPED_BYTES:
        whole = memoryview(bytearray(os.pread(arrays.fileno(), end, 0)))
    else:
        whole = memoryview(mmap.mmap(arrays.fileno(), 0, access=mmap.ACCESS_COPY))
    update = pickle.loads(data, buffers=[whole[begin:end] for begin, end in places])
    return update
