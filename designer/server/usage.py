"""Load of the machine, and processor time and memory of processes (on Linux)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from meshwave.engine.machine import total_memory_bytes, usable_cores
from meshwave.engine.units import percent, quantity


class Usage(NamedTuple):
    """Processor time and memory of processes; None for values that cannot be measured."""

    cores: float | None
    """Processor cores in use, on average since the last measurement."""
    memory_bytes: float | None
    """Resident memory in bytes; memory pages that processes share count for each process."""

    def cells(self) -> tuple[str, str]:
        """Return processor use and memory as texts."""
        cores = "" if self.cores is None else f"{self.cores:.2f} cores"
        return cores, "" if self.memory_bytes is None else quantity(self.memory_bytes, "B")


class Meter:
    """Meter of the processor time of processes between consecutive measurements."""

    def __init__(self) -> None:
        self._before: dict[
            int, tuple[float, float]
        ] = {}  # time of the last measurement and processor time, by process ID

    def measure(self, pids: Iterable[int]) -> Usage:
        """Return the total use of processes since the last measurement."""
        cores, memory, now = [], [], time.monotonic()
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):  # the process has ended, or the system is not Linux
                cpu_s, resident = _process_times(pid)
                since, before = self._before.get(pid, (now, cpu_s))
                self._before[pid] = (now, cpu_s)
                memory.append(resident)
                if now > since:
                    cores.append((cpu_s - before) / (now - since))
        return Usage(sum(cores) if cores else None, sum(memory) if memory else None)

    def forget_ended(self) -> None:
        """Remove the data of processes that have ended."""
        self._before = {pid: seen for pid, seen in self._before.items() if Path(f"/proc/{pid}").exists()}


def _process_times(pid: int) -> tuple[float, float]:
    """Return the processor time in seconds and the resident memory in bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def machine_load(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the load of this machine as names and values; ``folder`` is on the disk whose space is reported."""
    if hasattr(os, "getloadavg"):
        yield "Load", f"{os.getloadavg()[0]:.2f} on {usable_cores()} cores"
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        yield "Memory available", f"{quantity(available, 'B')} of {quantity(total_memory_bytes(), 'B')}"
    with suppress(OSError):  # the folder was removed
        disk = shutil.disk_usage(folder)
        yield "Disk", f"{quantity(disk.free, 'B')} free, {percent(disk.used / disk.total)} used"
