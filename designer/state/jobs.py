"""Jobs: functions that run in processes of their own beside the page, with progress, and with an end.

A process ends with its job, so that what a large job took is given back, and a job that nobody wants any more is
killed. Processes are forked from one that has imported the engine already (:mod:`meshwave.designer.pages.warm_up`).
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import isgenerator
from multiprocessing.connection import Connection, wait
from typing import IO, Any, BinaryIO

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.progress import watched

AT_ONCE = max(4, os.cpu_count() or 1)
"""Processes that run at once; further jobs wait."""
TOLD_EVERY_S = 0.25
"""A job that ends sooner tells no progress."""
_CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()

_slots = threading.BoundedSemaphore(AT_ONCE)
_processes: Any = multiprocessing.get_context("forkserver" if _CAN_FORK else "spawn")
_processes.set_forkserver_preload(["meshwave.designer.pages.warm_up"])


@dataclass(frozen=True)
class Progress:
    """The share of a job that is done, and what is done now."""

    share: float
    words: str


@dataclass(frozen=True)
class Part:
    """One of several results of a job."""

    value: Any


@dataclass(frozen=True)
class Done:
    """The result of a job; the last news of it."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The reason, in words, why a job has no result; the last news of it."""

    words: str


News = Progress | Part | Done | Failed
Hear = Callable[[News], None]
Later = Callable[[Callable[[], None]], Any]
"""Runs something in the page's own turn; called from any thread."""


def at_once(call: Callable[[], None]) -> None:
    """Run something in the thread that asks: a :data:`Later` of what belongs to no page."""
    call()


class Listener:
    """Somebody who waits for a job."""

    def __init__(self, job: Job, later: Later, hear: Hear) -> None:
        self.job = job
        self._later, self._hear = later, hear
        self._is_over = False

    def tell(self, news: News) -> None:
        """Hand news to the listener, in its own turn."""
        self._later(lambda: None if self._is_over else self._hear(news))

    def stop(self) -> None:
        """Wait no longer; the process of a job for which nobody waits is killed."""
        self._is_over = True
        self.job.leave(self)


class Job:
    """A function in a process of its own, and those who wait for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        """Args:
        work: can be pickled, as a function of a module can. Each value that a generator yields is told as a part.
        """
        self._work = work
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._process: Any = None
        self._is_over = False
        self._last: News | None = None
        self._thread = threading.Thread(target=self._run, name="job", daemon=True)

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return self._process.pid if self._process is not None else None

    def listen(self, later: Later, hear: Hear) -> Listener:
        """Wait for the job, which the first listener starts."""
        listener = Listener(self, later, hear)
        with self._lock:
            self._listeners.append(listener)
            news = self._last
            if self._thread.ident is None:
                self._thread.start()
        if news is not None:
            listener.tell(news)
        return listener

    def leave(self, listener: Listener) -> None:
        """Let a listener go; with the last one the process ends."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and not self._is_over:
                self._is_over = True
                if self._process is not None:
                    self._process.kill()

    def join(self, timeout_s: float) -> bool:
        """Wait until the process is gone; return whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- in a thread of this process ----

    def _run(self) -> None:
        if not _slots.acquire(timeout=TOLD_EVERY_S):
            self._tell(Progress(0.0, "waiting for other computations"))
            _slots.acquire()
        try:
            self._end(self._follow())
        except Exception as error:  # a defect of ours: whoever waits must not wait for ever
            traceback.print_exc()
            self._end(Failed(_defect(error)))
        finally:
            if self._process is not None:  # which gives its memory back meanwhile
                self._process.join()
            _slots.release()

    def _follow(self) -> News:
        here, there = _processes.Pipe(duplex=False)
        arrays, path = _shared_file()
        with here, arrays:
            with there:
                self._start(there, path)
            try:
                while not isinstance(news := _receive(here, arrays), Done | Failed):
                    self._tell(news)
            except (EOFError, OSError):
                self._process.join()
                news = Failed(f"its process ended early ({_ending(self._process.exitcode)})")
        return news

    def _start(self, there: Connection, path: str) -> None:
        process = _processes.Process(target=_serve, args=(there, path, _home(), self._work), daemon=True)
        process.start()
        with self._lock:
            self._process = process
            if self._is_over:  # stopped before it began
                process.kill()

    def _end(self, news: News) -> None:
        with self._lock:
            self._is_over, self._last = True, news
        self._tell(news)

    def _tell(self, news: News) -> None:
        for listener in list(self._listeners):
            listener.tell(news)


def warm_up() -> None:
    """Start the process that others are forked from, so that the first job does not wait for its imports."""
    Job(int).listen(at_once, lambda news: None)


def _defect(error: BaseException) -> str:
    return f"it went wrong inside Meshwave ({error!r}); the terminal says more"


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status}; the machine may have too little memory"
    return f"exit status {status}"


def _home() -> str | None:
    return os.environ.get("MESHWAVE_HOME")


# ---- in the process of a job ----


def _serve(connection: Connection, path: str, home: str | None, work: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    os.environ.pop("MESHWAVE_HOME", None)
    os.environ.update({"MESHWAVE_HOME": home} if home is not None else {})
    voice = _Voice(connection, open(path, "wb"))  # noqa: SIM115  this process ends with it
    threading.Thread(target=voice.tell_progress, daemon=True).start()
    with watched(voice.watch):
        voice.send(_worked(work, voice))


def _worked(work: Callable[[], Any], voice: _Voice) -> News:
    try:
        result = work()
        if not isgenerator(result):
            return Done(result)
        for value in result:
            voice.send(Part(value))
        return Done(None)
    except MeshwaveError as error:
        return Failed(str(error))
    except Exception as error:
        traceback.print_exc()
        return Failed(_defect(error))


class _Voice:
    """The end of the pipe at which a job talks."""

    def __init__(self, connection: Connection, arrays: BinaryIO) -> None:
        self._connection, self._arrays = connection, arrays
        self._lock = threading.Lock()
        self._progress: Progress | None = None

    def watch(self, share: float, words: str) -> None:
        self._progress = Progress(share, words)

    def tell_progress(self) -> None:
        """Tell the latest progress from time to time, and end this process with the server."""
        server = multiprocessing.parent_process()
        assert server is not None
        while not wait([server.sentinel], TOLD_EVERY_S):
            if self._progress is not None:
                with suppress(OSError):  # nobody listens any more
                    self.send(self._progress)
                self._progress = None
        os._exit(1)

    def send(self, news: News) -> None:
        """Send news; its arrays go into the shared file, as they lie in memory."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(news, protocol=5, buffer_callback=buffers.append)
        with self._lock:
            places = [self._write(buffer.raw()) for buffer in buffers]
            self._arrays.flush()
            self._connection.send((data, places))

    def _write(self, raw: memoryview) -> tuple[int, int]:
        """Append a buffer to the shared file; return where it begins and ends."""
        self._arrays.write(b"\0" * (-self._arrays.tell() % ALIGNED))
        begin = self._arrays.tell()
        self._arrays.write(raw)
        return begin, begin + raw.nbytes


# ---- between both ----

MAPPED_BYTES = 1 << 20
"""From this size on arrays are mapped."""
ALIGNED = 64
"""Bytes of which the place of every array is a multiple."""


def _shared_file() -> tuple[IO[bytes], str]:
    """Open a file that is nowhere but in memory, where there are such files, and that a job opens by its path."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("meshwave-job")
        return open(number, "rb"), f"/proc/{os.getpid()}/fd/{number}"
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed with the job
    return file, file.name


def _receive(connection: Connection, arrays: IO[bytes]) -> News:
    """Receive news. Large arrays are mapped from the shared file, and are copied only where they are written to; small
    ones are read, since every mapping holds an open file for as long as its arrays are kept."""
    data, places = connection.recv()
    if not places:
        news: News = pickle.loads(data)
        return news
    end = places[-1][1]
    if end < MAPPED_BYTES:
        whole = memoryview(bytearray(os.pread(arrays.fileno(), end, 0)))
    else:
        whole = memoryview(mmap.mmap(arrays.fileno(), 0, access=mmap.ACCESS_COPY))
    news = pickle.loads(data, buffers=[whole[begin:end] for begin, end in places])
    return news
