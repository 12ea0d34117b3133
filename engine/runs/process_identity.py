"""Identity of processes: number, start time and boot, because process numbers are reused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from meshwave.engine.messages import render
from meshwave.engine.run_files import RunFile
from meshwave.engine.runs.run_entry import Entry

LINUX = sys.platform.startswith("linux")


class Handle(NamedTuple):
    """Identity of a process of this machine, which distinguishes it from later processes with the same number."""

    boot: str  # identifies the boot of the machine
    pid: int
    born: str  # start time of the process, in the format of the system

    def is_alive(self) -> bool:
        """Return True if the process still exists."""
        return handle(self.pid) == self

    @property
    def is_stopped(self) -> bool:
        """True if a signal or a debugger has stopped the process; always False outside Linux."""
        state, born = _state_and_start_tick(self.pid) if LINUX else ("", "")
        return state in ("T", "t") and self._replace(boot=_boot_id(), born=born) == self

    def kill(self) -> bool:
        """Kill the process if it still exists; return True if the signal was sent."""
        return self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the process if it still exists; return True if the signal was sent."""
        try:
            if LINUX:
                return self._send_by_descriptor(number)
            if self.is_alive():
                os.kill(self.pid, number)
                return True
        except (ProcessLookupError, PermissionError):
            pass
        return False

    def _send_by_descriptor(self, number: signal.Signals) -> bool:
        """Send a signal through a process descriptor, which prevents the process number from being reused."""
        descriptor = os.pidfd_open(self.pid)
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
            return True
        finally:
            os.close(descriptor)


class Processes(RunFile):
    """Processes of a run, as stored in the run database."""

    owner: Handle
    """Process that launched the run."""
    starter: Handle | None = None
    """Process that starts and ends the processes of the run."""
    processes: list[Handle] = []
    """Processes of the run by process number, once they have started."""


def recorded_processes(entry: Entry) -> Processes | None:
    """Return the processes of a run; None if the entry has none, or is damaged."""
    try:
        return Processes.model_validate(entry.handle)
    except ValidationError:
        return None


def recorded_owner(entry: Entry) -> Handle | None:
    """Return the process that launched a run; None if the entry has none, or is damaged."""
    try:
        return Handle(*entry.handle["owner"])
    except (KeyError, TypeError):
        return None


def stopped_process_lines(entry: Entry) -> list[str]:
    """Return a line for each stopped process of an active run, with the remedy."""
    found = None if entry.state.is_over else recorded_processes(entry)
    if found is None:
        return []
    names = {"the process that launched it": found.owner, "the process that starts the run's workers": found.starter}
    names |= {f"process {number}": handle for number, handle in enumerate(found.processes)}
    return [
        render("stopped_process", {"name": name, "pid": handle.pid})
        for name, handle in names.items()
        if handle is not None and handle.is_stopped
    ]


def handle(pid: int) -> Handle | None:
    """Return the identity of the process with this number; None if it does not exist or has ended."""
    born = _start_time_linux(pid) if LINUX else _start_time_posix(pid)
    return Handle(_boot_id(), pid, born) if born else None


def own_handle() -> Handle:
    """Return the identity of the current process."""
    found = handle(os.getpid())
    assert found is not None, "a running process must have a start time"
    return found


def _start_time_linux(pid: int) -> str:
    state, ticks = _state_and_start_tick(pid)
    return "" if state in ("", "Z", "X") else ticks


def _state_and_start_tick(pid: int) -> tuple[str, str]:
    """Return the state letter and the start tick of a Linux process; empty strings if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()  # the preceding name may contain spaces and brackets
    return fields[0], fields[19]


def _start_time_posix(pid: int) -> str:
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    state, _, born = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    return "" if state.startswith("Z") else born.strip()


@cache
def _boot_id() -> str:
    if LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    command = ["sysctl", "-n", "kern.boottime"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
