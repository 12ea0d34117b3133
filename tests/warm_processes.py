"""Warm processes that the launchers of all tests share, because each import of torch takes two seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from meshwave.engine.runs.launchers import local
from meshwave.engine.runs.launchers._warm_process import WarmProcess
from meshwave.engine.runtime.processes.torchrun_process import WORKER

Event = Mapping[str, Any]


class SharedWarmProcess:
    """Warm process of one launcher, whose runs are forked from a process that serves other launchers too.

    It has the interface of :class:`WarmProcess`. The shared process outlives it.
    """

    def __init__(self, process: WarmProcess, on_event: Callable[[Event], None]) -> None:
        self._process, self.on_event = process, on_event
        self._is_closed = False
        self.launch, self.pid = process.launch, process.pid

    @property
    def is_ready(self) -> bool:
        return self._process.is_ready

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and self._process.is_alive

    def close(self) -> None:
        self._is_closed = True


class WarmProcesses:
    """Shared warm processes that fork a worker, by the environment of their runs.

    Processes of other workers are not shared.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._processes: dict[frozenset[tuple[str, str]], WarmProcess] = {}
        self._users: list[SharedWarmProcess] = []

    def open(
        self,
        start: str,
        worker: str,
        environment: Mapping[str, str],
        on_event: Callable[[Event], None],
        on_end: Callable[[Any, str], None],
    ) -> WarmProcess | SharedWarmProcess:
        """Return the warm process of a launcher; the arguments are those of :class:`WarmProcess`."""
        if (start, worker) != ("fork", self._worker):
            return WarmProcess(start, worker, environment, on_event, on_end)
        variables = frozenset((name, value) for name, value in environment.items() if name != "MESHWAVE_HOME")
        process = self._processes.get(variables)
        if process is None or not process.is_alive:
            process = WarmProcess(start, worker, environment, self._forward_event, lambda process, reason: None)
            self._processes[variables] = process
        self._users = [user for user in self._users if user.is_alive]
        self._users.append(SharedWarmProcess(process, on_event))
        return self._users[-1]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _forward_event(self, event: Event) -> None:
        for user in list(self._users):
            if user.is_alive:
                user.on_event(event)  # a launcher ignores events of other launchers' runs


@contextmanager
def shared_warm_processes(worker: str = WORKER) -> Iterator[None]:
    """Let launchers of runs on this machine share warm processes that fork ``worker``."""
    processes = WarmProcesses(worker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "WarmProcess", processes.open)
        yield
    processes.close()
