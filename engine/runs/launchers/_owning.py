"""Launchers whose runs end with the process that launched them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from meshwave.engine.messages import render
from meshwave.engine.runs.launchers._base import Launcher, check_place
from meshwave.engine.runs.process_identity import own_handle, recorded_processes
from meshwave.engine.runs.run import Run, read_result
from meshwave.engine.runs.run_entry import State


class OwningLauncher(Launcher):
    """Launcher that finds its runs by the process that launched them."""

    def handle(self) -> Mapping[str, Any]:
        return {"owner": own_handle()}

    def poll(self, run: Run) -> None:
        entry = self.record.get(run.id)
        if entry.state is State.QUEUED:
            check_place(self.record, self.place)  # the process that launched the active run may have been killed
            self.watch_queue()
        if entry.state.is_over or entry.state is State.QUEUED:
            return
        processes = recorded_processes(entry)
        if result := read_result(run.folder):  # written, but not yet entered
            self.record_end(run.id, State(result.state), result.reason)
        elif processes is None:
            self.record.change_state(run.id, State.LOST, render("launcher_unknown", {}))
        elif not processes.owner.is_alive():
            for process in processes.processes:  # already ended where the kernel ends them with their parent
                process.kill()
            reason = render("launcher_ended", {"pid": processes.owner.pid, **run.progress._asdict()})
            if not self.restart(run.id, reason, {"owner": processes.owner}):  # queued for another live process
                self.record.change_state(run.id, State.LOST, reason)

    def wake(self, run: Run) -> None:
        """Continue stopped processes, so that they notice a request to cancel the run."""
        processes = recorded_processes(run.entry)
        for handle in (processes.owner, processes.starter) if processes else ():
            if handle is not None and handle.is_stopped:
                handle.send(signal.SIGCONT)
