"""Runs on this machine, whose processes are forked from a warm process."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import meshwave.engine
from meshwave.engine.document import Design
from meshwave.engine.errors import RunError
from meshwave.engine.files import write_private
from meshwave.engine.findings import RunRefusal
from meshwave.engine.messages import render
from meshwave.engine.runs.emulation.hosts import check_emulation, host_topology
from meshwave.engine.runs.emulation.topology import FILE as NETWORK_FILE
from meshwave.engine.runs.launchers._base import MOST_PROCESSES, Capabilities, launchers
from meshwave.engine.runs.launchers._environment import process_environment
from meshwave.engine.runs.launchers._limits import MachineOptions, TargetLimits
from meshwave.engine.runs.launchers._machine import MachineLauncher
from meshwave.engine.runs.launchers._owning import OwningLauncher
from meshwave.engine.runs.launchers._threaded import CLOSING_S
from meshwave.engine.runs.launchers._warm_process import WarmProcess
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Exit, Verdict, judge
from meshwave.engine.runs.process_identity import handle, own_handle
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import State
from meshwave.engine.runs.run_folder import Bundle
from meshwave.engine.runs.time_limit import write_time_limit


@launchers.register("local")
class LocalLauncher(MachineLauncher, OwningLauncher):
    """Launcher that runs all processes of a design on this machine, one for each device.

    The runs end with the process that created the launcher; closing a page does not end them. Processes find each other
    through a file and communicate over the loopback or over emulated links, never over a public interface.
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "This machine"
    target_options: ClassVar = MachineOptions

    def __init__(
        self,
        record: Record,
        options: MachineOptions | None = None,
        target: str = "",
        *,
        start: Literal["fork", "spawn"] | None = None,
        worker: str = "meshwave.engine.runtime.processes.worker",
        path: Path | None = None,
    ) -> None:
        """Initialize the launcher.

        Args:
            record: the run database.
            options: the options of this machine as a launch target; None for the defaults.
            target: the name of the launch target, which is that of the launcher.
            start: ``fork`` processes from a warm process, or ``spawn`` new interpreters; by default whichever is safe
                here.
            worker: the module that each process executes.
            path: a folder that contains the module, in addition to Meshwave's.
        """
        super().__init__(record)
        self._options = options or MachineOptions()
        self._start_method = start or _safe_start_method()
        self._worker = worker
        self._path = path
        self._lock = threading.RLock()
        self._warm_process: WarmProcess | None = None
        self._source_time_s = 0.0  # modification time of the code that the warm process has imported
        self._own: dict[str, tuple[Bundle, WarmProcess]] = {}  # active runs of this launcher
        self._settled = threading.Condition(self._lock)

    @property
    def limits(self) -> TargetLimits:
        return self._options.limits

    def probe(self) -> Capabilities:
        if refusal := self.missing():
            return Capabilities(refusal)
        how = "a warm process" if self._start_method == "fork" else "a new interpreter for each process"
        return Capabilities(most_processes=MOST_PROCESSES, note=f"processes start from {how}")

    def warm(self) -> None:
        """Start a process that imports torch. Returns at once."""
        with self._lock:
            if self.probe().can_launch:
                self._ensure_warm_process()

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        if options.hosts is not None:
            host_topology(design, drawn, options)
            check_emulation()

    def launch(self, bundle: Bundle) -> None:
        if bundle.options.hosts is not None:
            emulated = host_topology(bundle.design, bundle.drawn, bundle.options)
            write_private(bundle.folder / NETWORK_FILE, emulated.to_json())
        if self.limits.minutes is not None:
            write_time_limit(bundle.folder, self.limits.minutes, self.name)
        with self._lock:
            warm_process = self._ensure_warm_process()
            warm_process.launch(bundle.run, bundle.folder, bundle.processes)
            self._own[bundle.run] = bundle, warm_process

    def close(self) -> None:
        """Cancel the runs of this launcher, and end its warm process. Queued runs stay queued."""
        super().close()
        with self._lock:
            for run in list(self._own):
                with suppress(RunError):
                    self.end_run(Run(self.record, run, self), render("meshwave_closed", {}))
            self._settled.wait_for(lambda: not self._own, CLOSING_S)
            warm_process, self._warm_process = self._warm_process, None
        if warm_process is not None:
            warm_process.close()
        atexit.unregister(self.close)

    def end_run(self, run: Run, why: str) -> None:
        if run.state.is_over:
            return
        try:
            write_private(run.folder / "cancel", why)  # the warm process ends the run when this file appears
        except FileNotFoundError:  # the warm process also ends a run whose folder was removed
            pass
        except OSError as error:
            params = {"run": run.id, "reason": error.strerror, "folder": str(run.folder)}
            raise RunRefusal("not_cancelled", params) from None
        self.wake(run)
        with self._lock:
            _, warm_process = self._own.get(run.id, (None, None))
            if warm_process is not None and not warm_process.is_ready:  # the run has no processes to wait for
                verdict = Verdict(State.CANCELLED, "cancelled_before_start", {"why": why} if why else {})
                self._finish_run(run.id, verdict, [])

    def _ensure_warm_process(self) -> WarmProcess:
        """Return the warm process; start a new one if there is none, or if the source code has changed since."""
        source_time_s = _source_time_s()
        if self._warm_process is not None and source_time_s > self._source_time_s and not self._own:
            self._warm_process.close()
        if self._warm_process is None or not self._warm_process.is_alive:
            variables = process_environment(self._path)
            self._warm_process = WarmProcess(
                self._start_method, self._worker, variables, self._handle_event, self._handle_warm_process_end
            )
            self._source_time_s = source_time_s
            atexit.register(self.close)
        return self._warm_process

    def _handle_event(self, event: Mapping[str, Any]) -> None:
        """Handle an event of the warm process; called from the thread that receives events."""
        with self._lock:
            bundle, warm_process = self._own.get(event.get("run", ""), (None, None))
            if bundle is None or warm_process is None:
                return
            if event["event"] == "started" and event["pids"]:
                handles = [found for pid in event["pids"] if (found := handle(pid))]
                processes = {"owner": own_handle(), "starter": handle(warm_process.pid), "processes": handles}
                with suppress(RunError):  # the disk is full; the result is written to reserved space
                    self.record.set_handle(bundle.run, processes)
                    self.record.change_state(bundle.run, State.RUNNING)
            elif event["event"] == "finished":
                exits = [Exit(*exit) for exit in event["exits"]]
                self._finish_run(bundle.run, self._judge(bundle, event, exits), exits)

    def _judge(self, bundle: Bundle, event: Mapping[str, Any], exits: list[Exit]) -> Verdict:
        if event["error"]:
            return Verdict(State.FAILED, "error", {"reason": event["error"]})
        progress = Run(self.record, bundle.run).progress
        return judge(bundle.folder, bundle.design, exits, was_cancelled=event["cancelled"], progress=progress)

    def _handle_warm_process_end(self, warm_process: WarmProcess, reason: str) -> None:
        """Settle the runs of a warm process that has ended; its processes ended with it."""
        with self._lock:
            if self._warm_process is warm_process:
                self._warm_process = None
            for run in [run for run, (_, its) in self._own.items() if its is warm_process]:
                if warm_process.is_ready:
                    params = {"reason": reason, **Run(self.record, run).progress._asdict()}
                    self._finish_run(run, Verdict(State.LOST, "warm_process_ended", params), [])
                else:  # its imports failed, so nothing was started
                    self._finish_run(run, Verdict(State.FAILED, "error", {"reason": reason}), [])

    def _finish_run(self, run: str, verdict: Verdict, exits: list[Exit]) -> None:
        bundle, _ = self._own.pop(run)
        self.finish_or_restart(bundle, verdict, exits)
        self._settled.notify_all()


def _safe_start_method() -> Literal["fork", "spawn"]:
    """Return the process start method that is safe on this machine; Apple's libraries are not fork-safe."""
    return "fork" if sys.platform.startswith("linux") else "spawn"


def _source_time_s() -> float:
    """Return the modification time of the newest source file of the engine, in Unix seconds."""
    return max(path.stat().st_mtime for path in Path(meshwave.engine.__file__).parent.rglob("*.py"))
