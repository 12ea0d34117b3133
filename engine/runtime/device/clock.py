"""Time stamps that cost no waiting: of the host, or of a CUDA stream; and how far the clocks of hosts are apart."""

from __future__ import annotations

import socket
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from meshwave.engine.runs.recording import Clocks, ProcessClock, Sighting

PINGS = 50
"""Of each process; the one that was answered soonest says how its clock stands (Cristian, "Probabilistic clock
synchronization", 1989)."""
BASES = 3
"""Tries to stamp an event and the host's clock at once, of which the closest counts: an interrupt spoils one."""
SAME_HOST_PINGS = 5
"""Enough to see that one clock is read: nothing is corrected there."""
Stamp = Any  # nanoseconds of the host, or a CUDA event that will know them


class Clock(ABC):
    """Takes stamps during a step and turns them into nanoseconds after it.

    The nanoseconds are those of ``time.perf_counter_ns``, one clock for all processes of a host.
    """

    @abstractmethod
    def begin(self) -> None:
        """Start a step."""

    @abstractmethod
    def stamp(self) -> Stamp:
        """Mark the place in the work that has been issued so far."""

    @abstractmethod
    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        """When the work before each stamp was done. May wait for that work."""


class HostClock(Clock):
    """For work that is done when the call returns."""

    def begin(self) -> None:
        pass

    stamp = staticmethod(time.perf_counter_ns)  # three an action

    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        return np.array(stamps, np.int64)


class CudaClock(Clock):
    """For work that is only queued when the call returns: events on the current stream.

    A base event between two host stamps maps the GPU's time to the host's, to half of what lies between
    them; of several the closest pair counts. An event is recorded again only in a later step, when whoever
    wanted its time has asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.cuda.Event] = []  # making an event costs more than recording it
        self._used: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._spare += self._used
        self._used = []
        torch.cuda.synchronize(self._device)
        _, self._base_ns, self._base = min((self._between() for _ in range(BASES)), key=lambda found: found[0])

    def _between(self) -> tuple[int, int, torch.cuda.Event]:
        """How far the host's stamps before and after an event on an idle GPU are apart, their middle, the event."""
        before = time.perf_counter_ns()
        event = self.stamp()
        event.synchronize()
        after = time.perf_counter_ns()
        return after - before, (before + after) // 2, event

    def stamp(self) -> Stamp:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._used.append(event)
        return event

    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        torch.cuda.synchronize(self._device)
        found = {id(s): self._ns(s) for s in stamps if not isinstance(s, int)}  # one is often in many places
        return np.array([s if isinstance(s, int) else found[id(s)] for s in stamps], np.int64)

    def _ns(self, event: torch.cuda.Event) -> int:
        return self._base_ns + int(self._base.elapsed_time(event) * 1e6)


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()


class ClockWatch:
    """Compares the clocks of all processes of a run with that of process 0, as often as it is asked to."""

    def __init__(self, process: int, size: int, backend: str) -> None:
        """To be made by all processes; messages of other kinds must not be on their way meanwhile."""
        self._process, self._size = process, size
        self._group = dist.new_group(backend="gloo") if backend != "gloo" and size > 1 else None
        hosts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        if size > 1:
            dist.all_gather(hosts, torch.tensor([_host()]), group=self._group)
        self._same = [bool(host == hosts[0]) for host in hosts]
        self._seen: list[list[Sighting]] = [[] for _ in range(size)]

    def look(self) -> None:
        """Compare them now, one process after the other; all take part."""
        for other in range(1, self._size):
            if self._process == 0:
                seen = [self._ask(other) for _ in range(self._pings(other))]
                self._seen[other].append(min(seen, key=lambda sighting: sighting.round_trip_ns))
            elif self._process == other:
                for _ in range(self._pings(other)):
                    self._answer()

    def _pings(self, other: int) -> int:
        return SAME_HOST_PINGS if self._same[other] else PINGS

    @property
    def clocks(self) -> Clocks:
        """What process 0 has found out so far."""
        return Clocks(tuple(ProcessClock(*each) for each in zip(self._same, map(tuple, self._seen), strict=True)))

    def _ask(self, other: int) -> Sighting:
        token = torch.zeros(1, dtype=torch.int64)
        asked = time.perf_counter_ns()
        dist.send(token, other, group=self._group)
        dist.recv(token, other, group=self._group)
        answered = time.perf_counter_ns()
        at = int(token)
        return Sighting(at, at - (asked + answered) // 2, answered - asked)

    def _answer(self) -> None:
        token = torch.zeros(1, dtype=torch.int64)
        dist.recv(token, 0, group=self._group)
        token[0] = time.perf_counter_ns()
        dist.send(token, 0, group=self._group)


def _host() -> int:
    """A number for the machine whose clock this is; containers and namespaces on one machine share its clock."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = socket.gethostname()
    return zlib.crc32(name.encode())
