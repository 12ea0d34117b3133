"""Description of this machine, and its load by other processes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from meshwave.engine.machine import processor_name
from meshwave.engine.units import quantity

SAMPLE_S = 0.25


def describe_machine() -> str:
    """Return a text such as ``2 cores of AMD EPYC, 25 GB, Linux 6.18, Python 3.11.7, torch 2.13.0+cpu``."""
    return ", ".join(_machine_properties())


def _machine_properties() -> Iterator[str]:
    cores = os.cpu_count() or 1
    yield f"{cores} core{'s' * (cores != 1)} of {processor_name()}"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield quantity(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "B", 2)
    yield f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    yield f"Python {platform.python_version()}"
    try:
        yield f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        yield "no torch"


def busy_share(sample_s: float = SAMPLE_S) -> float:
    """Return the fraction of CPU time, 0 to 1, that other processes use while this one sleeps.

    If the system does not report CPU time, return the load average of the last minute per core.
    """
    before = _busy_and_total_ticks()
    if before is None:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else 0.0
    time.sleep(sample_s)
    after = _busy_and_total_ticks() or before
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def steal_ticks() -> tuple[int, int]:
    """Return the CPU ticks that the hypervisor took from this virtual machine, and all CPU ticks, since boot.

    Both are 0 if the system does not report them.
    """
    ticks = _cpu_ticks()
    return (ticks[7], sum(ticks)) if ticks else (0, 0)


def steal_share(since: tuple[int, int]) -> float:
    """Return the fraction of CPU time, 0 to 1, that the hypervisor took since a call of :func:`steal_ticks`."""
    now = steal_ticks()
    return (now[0] - since[0]) / max(1, now[1] - since[1])


def _busy_and_total_ticks() -> tuple[int, int] | None:
    """Return the busy CPU ticks, and all CPU ticks, since boot."""
    ticks = _cpu_ticks()
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if ticks else None  # without idle and iowait


def _cpu_ticks() -> list[int]:
    """Return the CPU ticks of all cores since boot; empty if the system does not report them.

    Order: user, nice, system, idle, iowait, irq, softirq, steal.
    """
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return []
    return ticks if len(ticks) == 8 else []
