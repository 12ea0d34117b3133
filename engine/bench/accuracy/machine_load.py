"""The machine that measures, in words, and who else is using it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from meshwave.engine.machine import processor
from meshwave.engine.units import quantity

LOOK_S = 0.25


def in_words() -> str:
    """``2 cores of AMD EPYC, 25 GB, Linux 6.18, Python 3.11.7, torch 2.13.0+cpu``."""
    return ", ".join(_parts())


def _parts() -> Iterator[str]:
    cores = os.cpu_count() or 1
    yield f"{cores} core{'s' * (cores != 1)} of {processor()}"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield quantity(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "B", 2)
    yield f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    yield f"Python {platform.python_version()}"
    try:
        yield f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        yield "no torch"


def others(look_s: float = LOOK_S) -> float:
    """The share of the cores, 0 to 1, that is busy while we do nothing; where the system does not
    count it, its load of the last minute."""
    before = _busy_and_all()
    if before is None:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else 0.0
    time.sleep(look_s)
    after = _busy_and_all() or before
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def stolen() -> tuple[int, int]:
    """Ticks of all cores since the start: those that the machine's host gave to others, and altogether; zeros where
    the system does not count them."""
    ticks = _ticks()
    return (ticks[7], sum(ticks)) if ticks else (0, 0)


def share_stolen(since: tuple[int, int]) -> float:
    """The share of the cores' time, 0 to 1, that was taken by the host since ``stolen()`` said this."""
    now = stolen()
    return (now[0] - since[0]) / max(1, now[1] - since[1])


def _busy_and_all() -> tuple[int, int] | None:
    """Ticks of all cores since the start: busy, and altogether."""
    ticks = _ticks()
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if ticks else None  # without idle and waiting for a disk


def _ticks() -> list[int]:
    """Of all cores: user, nice, system, idle, waiting for a disk, interrupts of two kinds, stolen; none where the system
    does not count them."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return []
    return ticks if len(ticks) == 8 else []
