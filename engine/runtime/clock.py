"""Time stamps that cost no waiting: of the host, or of a CUDA stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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

    A base event next to a host stamp maps the GPU's time to the host's, to about 20 us.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.cuda.Event] = []  # making an event costs more than recording it
        self._used: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._spare += self._used
        self._used = []
        torch.cuda.synchronize(self._device)
        self._base = self.stamp()
        torch.cuda.synchronize(self._device)
        self._base_ns = time.perf_counter_ns()

    def stamp(self) -> Stamp:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._used.append(event)
        return event

    def nanoseconds(self, stamps: Sequence[Stamp]) -> NDArray[np.int64]:
        torch.cuda.synchronize(self._device)
        return np.array([s if isinstance(s, int) else self._ns(s) for s in stamps], np.int64)

    def _ns(self, event: torch.cuda.Event) -> int:
        return self._base_ns + int(self._base.elapsed_time(event) * 1e6)


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
