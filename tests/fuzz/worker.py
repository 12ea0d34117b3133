"""A process that reads inputs under limits, so that a hang or a memory error is a finding and nothing else ends.

It also reports writes outside its folder, and counts the lines of the product that an input is the first to execute.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

from tests.fuzz.oracle import Act, Complaint, complaints_about, is_product
from tests.fuzz.target import NAMES, Target, UnfitError, target_called

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([f"tests.fuzz.targets.{name}" for name in NAMES])
WATCHED_FACTOR = 3
PATIENCE = 100_000
"""Events without a new line after which the lines of a call are no longer counted, because it repeats itself."""
BEGIN_S = 120.0
"""Seconds that a worker may take to import its modules."""


class Limits(NamedTuple):
    """Limits on time and memory of a call."""

    seconds: int = 20  # of processor time
    memory_bytes: int = 4_000_000_000  # of address space beyond what the imports take
    elapsed_factor: int = 10  # seconds of a clock for one of processor time: the machine may be busy

    def call_seconds(self, is_watched: bool) -> int:
        """Return the limit of processor time of a call in seconds, which is higher if its lines are counted."""
        return self.seconds * (WATCHED_FACTOR if is_watched else 1)


USUAL = Limits()


class Finding(NamedTuple):
    """A broken rule, and the call that broke it."""

    call: str
    rule: str
    detail: str

    @property
    def signature(self) -> tuple[str, str]:
        return self.call, self.rule


class Report(NamedTuple):
    """Result of reading an input."""

    calls: int
    accepted: bool
    seconds: float  # processor time of the slowest call whose lines were not counted
    findings: tuple[Finding, ...]
    new_lines: int = 0  # lines of the product that no input of this worker had run before


class Worker:
    """Process that reads the inputs of one target one by one; after an input that ended it, it is started again."""

    def __init__(self, target: str, limits: Limits = USUAL) -> None:
        self._target, self._limits = target, limits
        self._begin()

    def _begin(self) -> None:
        self._connection, end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=serve, args=(end, self._target, self._limits))  # it may have jobs
        self._process.start()
        end.close()
        if not self._connection.poll(BEGIN_S) or self._connection.recv() != "ready":
            raise RuntimeError(f"no worker for {self._target} came up within {BEGIN_S:g} s")

    def examine(self, content: bytes, is_watched: bool = False) -> Report:
        """Read an input and return the findings; if the process ends, the finding is about the current call.

        With ``is_watched``, the report counts the lines that no earlier watched input executed.
        """
        self._connection.send((content, is_watched))
        call, calls, seconds = "begin", 0, self._limits.call_seconds(is_watched)
        while True:
            told = self._next(seconds * self._limits.elapsed_factor)
            if isinstance(told, Report):
                return told
            if told is None:
                return Report(calls, False, float(seconds), (self._restart(call, seconds),))
            call, calls = told, calls + 1

    def _next(self, patience_s: float) -> str | Report | None:
        """Return the next call, or the report; None if the worker ended or hangs."""
        try:
            if self._connection.poll(patience_s):
                found: str | Report = self._connection.recv()
                return found
        except (EOFError, ConnectionResetError):
            pass
        return None

    def _restart(self, call: str, seconds: int) -> Finding:
        """Start the process again, and return the reason why it ended."""
        was_alive = self._process.is_alive() and not self._connection.poll(0)
        self.close()
        code = self._process.exitcode
        self._begin()
        if was_alive:
            return Finding(call, "hangs", f"no answer in {seconds * self._limits.elapsed_factor} s")
        if code in (-24, -9):  # SIGXCPU, and SIGKILL where that was not enough
            return Finding(call, "time limit", f"over {seconds} s of processor time")
        return Finding(call, "process ended", f"exit code {code}")

    def close(self) -> None:
        self._process.join(0.2)
        self._process.kill()
        self._process.join()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---- in the process ----


def serve(connection: Connection, name: str, limits: Limits) -> None:
    """Read inputs until the connection is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="meshwave-fuzz-") as folder:
        tempfile.tempdir = folder
        os.chdir(folder)
        os.environ["MESHWAVE_HOME"] = str(Path(folder, "home"))
        examiner = Examiner(connection, target_called(name), Path(folder).resolve(), limits)
        _limit_memory(limits)
        path = Path(folder, f"input{examiner.target.suffix}")
        connection.send("ready")
        while True:
            try:
                content, is_watched = connection.recv()
            except EOFError:
                return
            path.write_bytes(content)
            connection.send(examiner.examine(path, is_watched))


class Examiner:
    """Passes inputs to the calls of a target, and observes them."""

    def __init__(self, connection: Connection, target: Target, folder: Path, limits: Limits) -> None:
        self.target, self._connection, self._limits = target, connection, limits
        self._lines, self._writes = Lines(), Writes(folder)

    def examine(self, path: Path, is_watched: bool) -> Report:
        """Read the input at ``path`` and return the findings; with ``is_watched``, count executed lines."""
        findings: list[Finding] = []
        calls, slowest, lines = 0, 0.0, self._lines.count
        with suppress(UnfitError):
            for call, act in self.target.calls(path):
                self._connection.send(call)
                calls += 1
                begun = time.process_time()
                _limit_time(self._limits.call_seconds(is_watched))
                with self._lines.counted() if is_watched else nullcontext():
                    found = _find_complaints(act)
                findings += [Finding(call, each.rule, each.detail) for each in (*found, *self._writes.complaints())]
                slowest = max(slowest, 0.0 if is_watched else time.process_time() - begun)
        return Report(calls, calls > self.target.entrance, slowest, tuple(findings), self._lines.count - lines)


class Lines:
    """Lines of the product that were executed; a function is observed until all its lines were."""

    def __init__(self) -> None:
        self.count = 0
        self._repeated = 0
        self._left: dict[CodeType, set[int]] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Observe the calls of this thread."""
        self._repeated = 0
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._left:
            lines = {line for _, _, line in code.co_lines() if line} if is_product(code.co_filename) else set()
            self._left[code] = lines
        self._stop_if_repetitive()
        return self._step if self._left[code] else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self._left[frame.f_code]
        if frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.count += 1
            self._repeated = 0
        self._stop_if_repetitive()
        return self._step

    def _stop_if_repetitive(self) -> None:
        self._repeated += 1
        if self._repeated > PATIENCE:
            sys.settrace(None)


class Writes:
    """Files that this process wrote, renamed or deleted outside a folder."""

    def __init__(self, folder: Path) -> None:
        self._folders = (folder, Path(multiprocessing.util.get_temp_dir()).resolve())
        self._outside = set[str]()
        sys.addaudithook(self._note)

    def complaints(self) -> list[Complaint]:
        """Return the writes since the last call."""
        found = [Complaint("writes outside its folder", path) for path in sorted(self._outside)]
        self._outside.clear()
        return found

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            paths = [path] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else []
        else:
            paths = [arguments[at] for at in CHANGES.get(event, ())]
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)) and not self._may_write(Path(os.fsdecode(path))):
                self._outside.add(os.fsdecode(path))

    def _may_write(self, path: Path) -> bool:
        is_cache = "__pycache__" in (path.name, path.parent.name)
        place = path.parent.resolve() / path.name
        return is_cache or path == Path(os.devnull) or any(place.is_relative_to(folder) for folder in self._folders)


def _find_complaints(act: Act) -> list[Complaint]:
    try:
        return complaints_about(act)
    except MemoryError:  # while the answer was looked at
        return [Complaint("MemoryError in the answer", "")]


CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.chmod": (0,),
    "os.symlink": (1,), "os.link": (1,), "shutil.rmtree": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
"""Audit events of changes to the file system, with the positions of the changed paths in their arguments."""


def _limit_time(seconds: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, hard))


def _limit_memory(limits: Limits) -> None:
    """Limit the address space on systems that report how much is in use."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
