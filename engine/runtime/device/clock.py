"""Time stamps of work on a CPU or an accelerator, and the offset between the clocks of processes."""

from __future__ import annotations

import socket
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from meshwave.engine.runs.recording import ClockOffset, Clocks, ProcessClock
from meshwave.engine.runtime.device.accelerator import is_accelerator

PINGS = 50
"""Number of pings per process. The ping with the shortest round trip gives the offset of its clock (Cristian,
"Probabilistic clock synchronization", 1989)."""
SAME_HOST_PINGS = 5
"""Number of pings to a process on the same host, which reads the same clock; its offset is zero, so fewer pings
suffice."""
BASE_EVENTS = 3
"""Number of pairs of an event and a host time. The closest pair counts, because an interrupt can delay one of them."""
Stamp = int | torch.Event
"""Time stamp: nanoseconds of the host's clock, or an event whose time is known when its work is done."""


class Clock(ABC):
    """Source of time stamps during a step, which are converted to nanoseconds after the step.

    The nanoseconds are those of ``time.perf_counter_ns``, one clock for all processes of a host.
    """

    @abstractmethod
    def begin(self) -> None:
        """Prepare the clock for a step."""

    @abstractmethod
    def stamp(self) -> Stamp:
        """Return a stamp for the end of the work issued so far, without waiting for that work."""

    @abstractmethod
    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        """Return the times ``[stamps]`` in nanoseconds at which the stamped work was done. May wait for that work."""


class HostClock(Clock):
    """Clock for work that is complete when the call returns."""

    def begin(self) -> None:
        """Do nothing: host time needs no reference."""

    stamp = staticmethod(time.perf_counter_ns)  # without a wrapper, since every action takes three stamps

    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        """Return the stamps, which already are nanoseconds."""
        return np.array(stamps, np.int64)


class AcceleratorClock(Clock):
    """Clock for queued work: its stamps are events on the current stream.

    At the start of a step, an event on the idle device between two readings of the host's clock relates the device's
    time to the host's. The error is at most half of the time between the readings. Events are reused in the next step,
    after their times have been read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.Event] = []  # creating an event costs more than recording it
        self._used: list[torch.Event] = []

    def begin(self) -> None:
        """Wait until the device is idle, and relate its time to the host's."""
        self._spare += self._used
        self._used = []
        torch.accelerator.synchronize(self._device)
        bases = (self._base_event() for _ in range(BASE_EVENTS))
        _, self._base_ns, self._base = min(bases, key=lambda base: base[0])

    def _base_event(self) -> tuple[int, int, torch.Event]:
        """Return the duration of an event on the idle device in ns, the host time at its middle, and the event."""
        before = time.perf_counter_ns()
        event = self.stamp()
        event.synchronize()
        after = time.perf_counter_ns()
        return after - before, (before + after) // 2, event

    def stamp(self) -> torch.Event:
        """Record an event on the current stream and return it."""
        event = self._spare.pop() if self._spare else torch.Event(self._device, enable_timing=True)
        event.record()
        self._used.append(event)
        return event

    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        """Return the times of events and host stamps as host times in nanoseconds, when the device is idle."""
        torch.accelerator.synchronize(self._device)
        # One event often stands for several stamps.
        times = {id(stamp): self._host_ns(stamp) for stamp in stamps if not isinstance(stamp, int)}
        return np.array([stamp if isinstance(stamp, int) else times[id(stamp)] for stamp in stamps], np.int64)

    def _host_ns(self, event: torch.Event) -> int:
        return self._base_ns + int(self._base.elapsed_time(event) * 1e6)


def make_clock(device: torch.device) -> Clock:
    """Return a clock for work on a device."""
    return AcceleratorClock(device) if is_accelerator(device) else HostClock()


class ClockComparison:
    """Offsets of the clocks of all processes of a run from the clock of process 0."""

    def __init__(self, process: int, size: int, backend: str) -> None:
        """Find the processes that share a host. All processes call this while no other messages are in flight.

        Args:
            process: number of this process.
            size: number of processes.
            backend: backend of the default group.
        """
        self._process, self._size = process, size
        self._group = dist.new_group(backend="gloo") if backend != "gloo" and size > 1 else None
        hosts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        if size > 1:
            dist.all_gather(hosts, torch.tensor([_clock_host_id()]), group=self._group)
        self._shares_host = [bool(host == hosts[0]) for host in hosts]
        self._sightings: list[list[ClockOffset]] = [[] for _ in range(size)]

    def measure_offsets(self) -> None:
        """Compare the clocks of all processes, one process after the other; all processes call this method."""
        for other in range(1, self._size):
            pings = SAME_HOST_PINGS if self._shares_host[other] else PINGS
            if self._process == 0:
                sightings = [self._measure_offset(other) for _ in range(pings)]
                self._sightings[other].append(min(sightings, key=lambda sighting: sighting.round_trip_ns))
            elif self._process == other:
                for _ in range(pings):
                    self._answer_pings()

    @property
    def clocks(self) -> Clocks:
        """Clock offsets measured so far; available on process 0."""
        rows = zip(self._shares_host, map(tuple, self._sightings), strict=True)
        return Clocks(tuple(ProcessClock(*row) for row in rows))

    def _measure_offset(self, other: int) -> ClockOffset:
        token = torch.zeros(1, dtype=torch.int64)
        asked = time.perf_counter_ns()
        dist.send(token, other, group=self._group)
        dist.recv(token, other, group=self._group)
        answered = time.perf_counter_ns()
        at = int(token)
        return ClockOffset(at, at - (asked + answered) // 2, answered - asked)

    def _answer_pings(self) -> None:
        token = torch.zeros(1, dtype=torch.int64)
        dist.recv(token, 0, group=self._group)
        token[0] = time.perf_counter_ns()
        dist.send(token, 0, group=self._group)


def _clock_host_id() -> int:
    """Return a number that identifies the host whose clock this process reads; containers of a host share its clock."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = socket.gethostname()
    return zlib.crc32(name.encode())
