"""Offsets between the clocks of the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine.run_files import Nanoseconds, RunFile, read_document, write_document
from meshwave.engine.units import quantity

FORMAT = "meshwave-clocks/1"
Int64s = NDArray[np.int64]


class ClockOffset(NamedTuple):
    """Offset of a clock from that of process 0, measured by the message with the shortest round trip."""

    at_ns: Nanoseconds  # time of the measurement on that clock
    ahead_ns: Nanoseconds  # offset from the clock of process 0
    round_trip_ns: Annotated[Nanoseconds, Field(ge=0)]


@dataclass(frozen=True)
class ProcessClock:
    """Clock of one process; processes on the host of process 0 share its clock."""

    same_host: bool = True
    seen: tuple[ClockOffset, ...] = ()  # before and after the run

    @property
    def uncertainty_ns(self) -> float:
        """Half of the longest round trip; 0 for a shared clock."""
        return 0.0 if self.same_host else max((each.round_trip_ns / 2 for each in self.seen), default=0.0)

    def convert(self, ns: Int64s) -> Int64s:
        """Convert times to the clock of process 0, assuming a constant drift between two measurements."""
        if self.same_host or not self.seen:
            return ns
        at, ahead, _ = zip(*self.seen, strict=True)
        converted: Int64s = ns - np.interp(ns, at, ahead).astype(np.int64)
        return converted


@dataclass(frozen=True)
class Clocks:
    """Clocks of all processes of a run; empty if they were not compared."""

    of: tuple[ProcessClock, ...] = ()

    def __getitem__(self, process: int) -> ProcessClock:
        return self.of[process] if process < len(self.of) else ProcessClock()

    @property
    def uncertainty_s(self) -> float:
        """Largest possible offset between spans of different processes, in seconds."""
        return max((clock.uncertainty_ns for clock in self.of), default=0.0) / 1e9

    @property
    def note(self) -> str:
        """Text on the alignment of the clocks and its accuracy; empty if they were not compared."""
        if len(self.of) < 2:
            return ""
        others = [clock for clock in self.of if not clock.same_host]
        if others:
            ahead = max(abs(each.ahead_ns) for clock in others for each in clock.seen)
            return (
                f"the clocks of {len(others)} of {len(self.of)} processes, up to {quantity(ahead / 1e9, 's')} apart, "
                f"were aligned to within {quantity(self.uncertainty_s, 's')}"
            )
        seen = [each for clock in self.of for each in clock.seen]
        offset, trip = (max((abs(each[column]) for each in seen), default=0) / 1e9 for column in (1, 2))
        return (
            f"all processes share one clock (measured offset at most {quantity(offset, 's')}, resolution "
            f"{quantity(trip / 2, 's')})"
        )


def write_clocks(folder: Path, clocks: Clocks) -> None:
    """Write the clock offsets to the run folder."""
    processes = [{"same_host": clock.same_host, "seen": clock.seen} for clock in clocks.of]
    write_document(folder / "clocks.json", {"format": FORMAT, "processes": processes})


class _File(RunFile):
    format: Literal["meshwave-clocks/1"]
    processes: tuple[ProcessClock, ...]


def read_clocks(folder: Path) -> Clocks:
    """Read the clocks of a run; empty if they were not compared.

    Raises:
        RunFolderError: the file is damaged.
    """
    found = read_document(folder / "clocks.json", _File)
    return Clocks(found.processes if found else ())
