"""Processes of jobs: functions that run in processes forked from one that has imported the engine.

Results come back through a pipe, and their arrays through a shared file. One process can wait for the next function: it
then has its memory and the programs that it lowered, so that a large prediction takes a fifth less time, and half as long if
the order of actions is the same. The process from which they are forked has imported :mod:`meshwave.designer.pages.warm_up`.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isgenerator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import IO, Any, BinaryIO, Self

from meshwave.designer.kit.defects import defect_text
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.progress import report_progress_to

PROGRESS_INTERVAL_S = 0.5
"""Interval of progress reports; a shorter job reports none, since the page would draw it while the job computes."""
IDLE_S = 60.0
"""Seconds after which a process that waits for the next function ends and frees its memory."""
_CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()

_processes: Any = multiprocessing.get_context("forkserver" if _CAN_FORK else "spawn")
_processes.set_forkserver_preload(["meshwave.designer.pages.warm_up"])
_idle: JobProcess | None = None
_idle_lock = threading.Lock()


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


class JobProcess:
    """A process that runs one function after another."""

    def __init__(self) -> None:
        """Start the process, and if necessary the one from which it is forked."""
        self._connection, there = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(there,), daemon=True)
        with there, _blocked_interrupts():
            self._process.start()
        self._is_killed = self._is_busy = False
        self._expiry: threading.Timer | None = None

    @property
    def pid(self) -> int:
        """Process ID."""
        pid: int = self._process.pid
        return pid

    def updates(self, work: Callable[[], Any]) -> Iterator[JobUpdate]:
        """Run a function, and yield its updates up to its result or failure.

        Raises:
            EOFError: the process has ended early.
            OSError: the process has ended early.
        """
        arrays, path = _shared_file()
        with arrays:
            self._connection.send((path, os.environ.get("MESHWAVE_HOME"), work))
            self._is_busy = True
            while self._is_busy:
                try:
                    update = _receive_update(self._connection, arrays)
                except (EOFError, OSError):
                    self._is_busy = False
                    raise
                self._is_busy = not isinstance(update, Done | Failed)
                yield update

    def kill(self) -> None:
        """Kill the process."""
        self._is_killed = True
        self._process.kill()

    def end(self) -> int:
        """End the process, and return its exit status when it has ended."""
        if self._is_busy:
            self.kill()
        self._connection.close()
        self._process.join()
        status: int = self._process.exitcode
        return status

    def keep(self) -> None:
        """Let the process wait for the next function if no other one does; otherwise end it."""
        global _idle
        with _idle_lock:
            is_usable = not self._is_killed and not self._is_busy and self._process.is_alive()
            if _idle is None and is_usable:
                _idle = self
                self._expiry = threading.Timer(IDLE_S, self._expire)
                self._expiry.daemon = True
                self._expiry.start()
                return
        self.end()

    def _expire(self) -> None:
        if _take_idle(self):
            self.end()


def take_process() -> JobProcess:
    """Return the process that waits for the next function, or a new one. The caller calls its ``keep`` or ``end``."""
    waiting = _idle
    if waiting is not None and _take_idle(waiting):
        if waiting._process.is_alive():
            return waiting
        waiting.end()
    return JobProcess()


def _take_idle(waiting: JobProcess) -> bool:
    """Reserve a waiting process for the caller; return False if it no longer waits."""
    global _idle
    with _idle_lock:
        if _idle is not waiting:
            return False
        _idle = None
    if waiting._expiry is not None:
        waiting._expiry.cancel()
    return True


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


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it cannot be blocked
    gc.freeze()  # collections then neither visit nor copy what the process shares with the one from which it is forked
    threading.Thread(target=_end_with_server, daemon=True).start()
    while True:
        try:
            path, home, work = connection.recv()
            arrays = open(path, "wb")  # noqa: SIM115  closed below
        except (EOFError, OSError):  # no more functions; or the server, whose file it is, has ended
            return
        os.environ.pop("MESHWAVE_HOME", None)
        os.environ.update({"MESHWAVE_HOME": home} if home is not None else {})
        with arrays:
            with _Channel(connection, arrays) as channel, report_progress_to(channel.watch):
                update = _run_work(work, channel)
            channel.send(update)  # after its last progress
        del work, channel, update
        gc.collect()


def _end_with_server() -> None:
    server = multiprocessing.parent_process()
    assert server is not None
    wait([server.sentinel])
    os._exit(1)


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
        self._is_over = threading.Event()
        self._reports = threading.Thread(target=self._report_progress, daemon=True)

    def __enter__(self) -> Self:
        self._reports.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._reports.join()

    def watch(self, share: float, activity: str) -> None:
        self._progress = Progress(share, activity)

    def _report_progress(self) -> None:
        """Send the latest progress at intervals."""
        while not self._is_over.wait(PROGRESS_INTERVAL_S):
            if self._progress is not None:
                self.send(self._progress)
                self._progress = None

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
