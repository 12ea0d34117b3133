"""Naming a process for good: its number is used again after it ends, its birth is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

LINUX = sys.platform.startswith("linux")


class Handle(NamedTuple):
    """A process of this machine, told from any later one that is given the same number."""

    boot: str  # which start of the machine
    pid: int
    born: str  # when the process started, as the system writes it

    def is_alive(self) -> bool:
        return handle(self.pid) == self

    def kill(self) -> bool:
        """End the process if it still is the one that was meant; say whether it was signalled."""
        try:
            if LINUX:
                return self._kill_held()
            if self.is_alive():
                os.kill(self.pid, signal.SIGKILL)
                return True
        except (ProcessLookupError, PermissionError):
            pass
        return False

    def _kill_held(self) -> bool:
        """While the descriptor is open its number names one process, so looking first is safe."""
        descriptor = os.pidfd_open(self.pid)
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return True
        finally:
            os.close(descriptor)


def handle(pid: int) -> Handle | None:
    """The process that has this number now; None where there is none, or one that has ended."""
    born = _born_linux(pid) if LINUX else _born_posix(pid)
    return Handle(_boot(), pid, born) if born else None


def own_handle() -> Handle:
    """This process."""
    found = handle(os.getpid())
    assert found is not None, "a process that runs has a birth"
    return found


def _born_linux(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    state, ticks = fields[0], fields[19]
    return "" if state in "ZX" else ticks


def _born_posix(pid: int) -> str:
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    state, _, born = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    return "" if state.startswith("Z") else born.strip()


@cache
def _boot() -> str:
    if LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    command = ["sysctl", "-n", "kern.boottime"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
