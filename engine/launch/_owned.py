"""Launchers whose runs belong to the process that launched them, and end with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.launch._launcher import Launcher
from engine.launch._process import Handle, own_handle
from engine.launch._run import Run, read_result
from engine.launch.record import State


class OwningLauncher(Launcher):
    """Finds its runs by the process that launched them."""

    def handle(self) -> Mapping[str, Any]:
        return {"owner": own_handle(), "processes": []}

    def poll(self, run: Run) -> None:
        entry = run.entry
        if entry.state.is_over:
            return
        if result := read_result(run.folder):  # written, but there was no time to enter it
            self.record.move(run.id, State(result["state"]), result["reason"])
        elif not (owner := Handle(*entry.handle["owner"])).is_alive():
            for process in entry.handle["processes"]:  # the kernel has ended them, where it can
                Handle(*process).kill()
            reason = f"process {owner.pid}, which launched it, ended after {run.progress}; what it wrote is kept"
            self.record.move(run.id, State.LOST, reason)
