"""Processes of one run: their exits, and their end when one of them fails or the run is cancelled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshwave.engine.errors import RunError
from meshwave.engine.runs.emulation.network import Builder, Network
from meshwave.engine.runs.emulation.topology import read_topology
from meshwave.engine.runs.time_limit import Deadline

GRACE_S = 0.1
"""Time in seconds between SIGTERM and SIGKILL."""


@dataclass
class RunProcesses:
    """Processes of one run. They start together, and if one fails, all are terminated."""

    run: str
    folder: Path
    size: int  # number of processes to start
    builder: Builder | None = None  # builder of the network while it runs
    network: Network | None = None
    alive: dict[int, int] = field(default_factory=dict)  # process number by pid
    sessions: set[int] = field(default_factory=set)  # session ids, equal to the pids
    # process, exit status, True if ended on request, time
    exits: list[tuple[int, int, bool, float]] = field(default_factory=list)
    deadline: Deadline = field(init=False)
    is_cancelled: bool = False
    error: str = ""
    kill_at: float | None = None  # deadline after a request to end
    is_killed: bool = False

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.folder)

    @property
    def is_ending(self) -> bool:
        """True if the processes have been requested to end."""
        return self.kill_at is not None

    def end(self) -> None:
        """Send SIGTERM to all processes, once. Their pids remain valid until they are reaped."""
        if not self.is_ending:
            self.kill_at = time.monotonic() + GRACE_S
            for pid in self.pids:
                os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to all processes."""
        self.is_killed = True
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)

    @property
    def pids(self) -> list[int]:
        """Pids of all current processes, including the builder of the network."""
        return [*self.alive, *([self.builder.pid] if self.builder else [])]

    def start_network(self) -> None:
        """Start to build the emulated network, if the run has one."""
        topology = read_topology(self.folder)
        if topology is not None:
            self.builder = Builder(topology)
            self.sessions.add(self.builder.pid)

    def take_network(self) -> None:
        """Take over the network from its builder, which has ended."""
        assert self.builder is not None
        builder, self.builder = self.builder, None
        try:
            self.network = builder.network()
        except RunError as error:
            self.fail(str(error))

    def fail(self, error: str) -> None:
        """End the run with an error message, unless it is already ending."""
        if not self.is_ending:
            self.error = error
            self.end()

    def record_exits(self, ended: Mapping[int, int]) -> None:
        """Record the processes of this run that have ended, and end the run if one of them failed.

        Args:
            ended: exit statuses by pid, including those of processes of other runs.
        """
        own = {pid: status for pid, status in ended.items() if pid in self.alive}
        now = time.time()
        self.exits += [(self.alive.pop(pid), status, self._was_requested(status), now) for pid, status in own.items()]
        if any(own.values()):
            self.end()

    def _was_requested(self, status: int) -> bool:
        """Return True if a process ended because of a request.

        A process that is killed from outside may be reported after the others, which fail without it and are ended
        while the kernel still releases its memory.
        """
        return self.is_ending and (status != -signal.SIGKILL or self.is_killed)

    def check(self) -> None:
        """End the run if it is cancelled, overdue or without a folder, and kill its processes if they did not end in time."""
        if not self.is_ending:
            self.deadline.cancel_overdue()
        if not self.is_ending and (self.folder / "cancel").exists():
            self.is_cancelled = True
            self.end()
        if not self.folder.exists():
            self.fail("the run folder was removed during the run")
        if self.kill_at is not None and time.monotonic() > self.kill_at:
            self.kill()
