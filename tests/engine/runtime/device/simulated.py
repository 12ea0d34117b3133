"""Simulated accelerator with torch's interface of streams, events and memory, for tests without a device.

Its type is ``xpu``, so that code that works only with CUDA fails. Work takes no time; each stream keeps a log.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Self

import pytest
import torch
import torch.distributed as dist

DEVICE = torch.device("xpu", 0)
EPOCH_NS = 10**15
"""Offset of the device's clock from the host's clock."""


class Accelerator:
    """State of the device that the functions of ``torch.accelerator`` and ``torch.xpu`` report."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.selected: int | None = None
        self.allocated_bytes = self.peak_bytes = 0
        self.synchronized = 0
        self.waits: list[tuple[str, str]] = []
        """Pairs of streams, of which the first waits for the second."""
        self.events_made = 0
        self.current = self.main = Stream(self, "main")

    def allocate(self, size: int) -> None:
        self.allocated_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def install(self, patch: pytest.MonkeyPatch) -> Self:
        """Let torch report this accelerator until the test ends."""
        module: Any = torch.accelerator
        found = torch.device("xpu") if self.count else None
        patch.setattr(module, "current_accelerator", lambda check_available=False: found)
        patch.setattr(module, "current_device_index", lambda: self.selected or 0)
        patch.setattr(module, "current_stream", lambda device=None: self.current)
        patch.setattr(module, "set_stream", lambda stream: setattr(self, "current", stream))
        patch.setattr(module, "synchronize", self._synchronize)
        patch.setattr(module, "memory_allocated", lambda device: self.allocated_bytes)
        patch.setattr(module, "max_memory_allocated", lambda device: self.peak_bytes)
        patch.setattr(module, "reset_peak_memory_stats", self._reset_peak)
        patch.setattr(torch.xpu, "device_count", lambda: self.count)
        patch.setattr(torch.xpu, "set_device", lambda index: setattr(self, "selected", index))
        patch.setattr(torch.xpu, "get_device_name", lambda device: "simulated")
        patch.setattr(torch, "Stream", lambda device: Stream(self, "side"))
        patch.setattr(torch, "Event", lambda device=None, enable_timing=False: Event(self))
        patch.setattr(dist, "is_xccl_available", lambda: True)
        return self

    def _synchronize(self, device: torch.device) -> None:
        self.synchronized += 1

    def _reset_peak(self, device: torch.device) -> None:
        self.peak_bytes = self.allocated_bytes


class Stream:
    """Stream whose work is done at once."""

    def __init__(self, owner: Accelerator, name: str) -> None:
        self._owner, self.name, self.device = owner, name, DEVICE

    def wait_stream(self, other: Stream) -> None:
        self._owner.waits.append((self.name, other.name))

    def synchronize(self) -> None:
        self._owner.waits.append(("host", self.name))


class Event:
    """Event with a time of the device's own clock."""

    def __init__(self, owner: Accelerator) -> None:
        self._owner = owner
        self.stream = ""
        self._at_ns: int | None = None
        owner.events_made += 1

    def record(self) -> None:
        self.stream, self._at_ns = self._owner.current.name, EPOCH_NS + time.perf_counter_ns()

    def synchronize(self) -> None:
        assert self._at_ns is not None, "an event that was recorded"

    def elapsed_time(self, end: Event) -> float:
        assert self._at_ns is not None and end._at_ns is not None, "events that were recorded"
        return (end._at_ns - self._at_ns) / 1e6


def stream_log(accelerator: Accelerator) -> tuple[dict[str, list[str]], Any]:
    """Return the work that ran on each stream, and a function that creates computations which record themselves."""
    log: dict[str, list[str]] = defaultdict(list)

    def computation(name: str) -> Any:
        return lambda: log[accelerator.current.name].append(name)

    return log, computation
