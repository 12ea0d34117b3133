"""Traces of a small cluster on this machine, found from outside of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

GONE_S = 20.0


def namespace() -> int:
    """Return the number of the network namespace of this process; 0 on systems without namespaces."""
    path = Path("/proc/self/ns/net")
    return path.stat().st_ino if path.exists() else 0


def namespaces() -> set[int]:
    """Return the network namespaces that processes are in or hold open."""
    found = set()
    for path in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        try:
            if path.name == "net" or os.readlink(path).startswith("net:["):
                found.add(path.stat().st_ino)
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def links() -> list[str]:
    """Return the network interfaces of this machine."""
    folder = Path("/sys/class/net")
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def is_alive(pid: int) -> bool:
    """Return whether a process is running; one that has ended but was not waited for is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_true_in_time(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + GONE_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
