"""A process that reads inputs under limits, so that a hang or a memory error is a finding and ends nothing else."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Self

from tests.fuzz.oracle import Act, Complaint, complaints_about
from tests.fuzz.target import NAMES, UnfitError, target_called

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([f"tests.fuzz.targets.{name}" for name in NAMES])
BEGIN_S = 120.0
"""Seconds that a worker may take to import what it needs."""


class Limits(NamedTuple):
    """What one call may take."""

    seconds: int = 20  # of processor time
    memory_bytes: int = 4_000_000_000  # of address space beyond what the imports take
    elapsed_factor: int = 10  # seconds of a clock for one of processor time: the machine may be busy


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
    """How an input was answered."""

    calls: int
    accepted: bool
    seconds: float  # processor time of the slowest call
    findings: tuple[Finding, ...]


class Worker:
    """Reads inputs of one target, one after another; begins anew after one that ended it."""

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

    def examine(self, content: bytes) -> Report:
        """Return how an input is answered; what ends the worker is a finding at the call that was under way."""
        self._connection.send(content)
        call, calls = "begin", 0
        while True:
            told = self._next()
            if isinstance(told, Report):
                return told
            if told is None:
                return Report(calls, False, float(self._limits.seconds), (self._ended(call),))
            call, calls = told, calls + 1

    def _next(self) -> str | Report | None:
        """The next call, the report, or None where the worker ended or hangs."""
        try:
            if self._connection.poll(self._limits.seconds * self._limits.elapsed_factor):
                found: str | Report = self._connection.recv()
                return found
        except (EOFError, ConnectionResetError):
            pass
        return None

    def _ended(self, call: str) -> Finding:
        """Begin anew, and say what ended the worker before."""
        limits = self._limits
        was_alive = self._process.is_alive() and not self._connection.poll(0)
        self.close()
        code = self._process.exitcode
        self._begin()
        if was_alive:
            return Finding(call, "hangs", f"no answer in {limits.seconds * limits.elapsed_factor} s")
        if code in (-24, -9):  # SIGXCPU, and SIGKILL where that was not enough
            return Finding(call, "time limit", f"over {limits.seconds} s of processor time")
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
    """Read inputs until nobody sends any."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="meshwave-fuzz-") as folder:
        os.environ["MESHWAVE_HOME"] = str(Path(folder, "home"))
        target = target_called(name)
        _limit_memory(limits)
        path = Path(folder, f"input{target.suffix}")
        connection.send("ready")
        while True:
            try:
                path.write_bytes(connection.recv())
            except EOFError:
                return
            connection.send(_examined(connection, name, path, limits))


def _examined(connection: Connection, name: str, path: Path, limits: Limits) -> Report:
    target = target_called(name)
    findings: list[Finding] = []
    calls, slowest = 0, 0.0
    with suppress(UnfitError):
        for call, act in target.calls(path):
            connection.send(call)
            calls += 1
            begun = time.process_time()
            _limit_time(limits)
            findings += [Finding(call, each.rule, each.detail) for each in _guarded(act)]
            slowest = max(slowest, time.process_time() - begun)
    return Report(calls, calls > target.entrance, slowest, tuple(findings))


def _guarded(act: Act) -> list[Complaint]:
    try:
        return complaints_about(act)
    except MemoryError:  # while the answer was looked at
        return [Complaint("MemoryError in the answer", "")]


def _limit_time(limits: Limits) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + limits.seconds, hard))


def _limit_memory(limits: Limits) -> None:
    """Limit the address space where the system tells how much is in use."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
