"""Runs on this machine, from a warm process that forks their own."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import meshwave.engine
from meshwave.engine.costs import PeakMemory
from meshwave.engine.document import Design
from meshwave.engine.errors import RunError
from meshwave.engine.files import write_private
from meshwave.engine.findings import Problem
from meshwave.engine.machine import has_gpu, memory_bytes
from meshwave.engine.runs.emulation.hosts import check_emulation, host_topology
from meshwave.engine.runs.emulation.topology import FILE as NETWORK_FILE
from meshwave.engine.runs.launchers._base import MOST_PROCESSES, Capabilities, OwningLauncher, launchers
from meshwave.engine.runs.launchers._environment import environment
from meshwave.engine.runs.launchers._threaded import CLOSING_S
from meshwave.engine.runs.launchers._warm_process import Zygote
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Exit, Verdict, cancelled, judge
from meshwave.engine.runs.process_identity import handle, own_handle
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record, State
from meshwave.engine.runs.run_folder import Bundle, process_count


@launchers.register("local")
class LocalLauncher(OwningLauncher):
    """Runs all processes of a design on this machine, one a device.

    The runs belong to the process that holds this object and end with it; closing a page does
    not end them. Nothing listens on a public interface: processes meet over a file, and talk
    over the loopback, or over emulated links that lead nowhere else.
    """

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "This machine"

    def __init__(
        self,
        record: Record,
        *,
        start: Literal["fork", "spawn"] | None = None,
        worker: str = "meshwave.engine.runtime.processes.worker",
        path: Path | None = None,
    ) -> None:
        """``start``: fork a warm process, or start fresh ones; by default what is safe here.
        ``worker`` is the module of the processes, found in the folder ``path`` if that is given.
        """
        super().__init__(record)
        self._start_method = start or _safe_start()
        self._worker = worker
        self._path = path
        self._lock = threading.RLock()
        self._zygote: Zygote | None = None
        self._code_s = 0.0  # of the code that the zygote has imported
        self._own: dict[str, tuple[Bundle, Zygote]] = {}  # the runs of this object that are not over
        self._settled = threading.Condition(self._lock)
        self._is_closed = False

    def probe(self) -> Capabilities:
        if os.name != "posix":
            return Capabilities(Problem("", "unsupported_system", {}))
        if find_spec("torch") is None:
            return Capabilities(Problem("", "runs_without_torch", {}))
        how = "a warm process" if self._start_method == "fork" else "a fresh interpreter each"
        return Capabilities(most_processes=MOST_PROCESSES, note=f"processes start from {how}")

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        found = super().problems(design, memory, data)
        return found if memory is None or has_gpu() else [*found, *_memory(design, memory, memory_bytes())]

    def warm(self) -> None:
        """Let torch be imported now, in another process. Returns at once."""
        with self._lock:
            if self.probe().can_launch:
                self._ready_zygote()

    def check_requirements(self, design: Design, drawn: Design, options: Options) -> None:
        if options.hosts is not None:
            host_topology(design, drawn, options)
            check_emulation()

    def launch(self, bundle: Bundle) -> None:
        if bundle.options.hosts is not None:
            emulated = host_topology(bundle.design, bundle.drawn, bundle.options)
            write_private(bundle.folder / NETWORK_FILE, emulated.to_json())
        with self._lock:
            zygote = self._ready_zygote()
            zygote.launch(bundle.run, bundle.folder, bundle.processes)
            self._own[bundle.run] = bundle, zygote

    def cancel(self, run: Run) -> None:
        self._cancel(run, "")

    def close(self) -> None:
        """Cancel the runs of this object, and end the process that it keeps warm."""
        with self._lock:
            for run in list(self._own):
                with suppress(RunError):
                    self._cancel(Run(self.record, run, self), "Meshwave was closed")
            self._settled.wait_for(lambda: not self._own, CLOSING_S)
            zygote, self._zygote = self._zygote, None
            self._is_closed = True
        if zygote is not None:
            zygote.close()
        atexit.unregister(self.close)

    def _cancel(self, run: Run, why: str) -> None:
        if run.state.is_over:
            return
        try:
            write_private(run.folder / "cancel", why)  # seen by whoever watches its processes
        except FileNotFoundError:  # who watches sees that, too: without its folder a run is ended
            pass
        except OSError as error:
            raise RunError(f"run {run.id} cannot be told to end: {error.strerror} ({run.folder})") from None
        self.wake(run)
        with self._lock:
            _, zygote = self._own.get(run.id, (None, None))
            if zygote is not None and not zygote.is_ready:  # then there are none to wait for
                self._settle(run.id, Verdict(State.CANCELLED, cancelled("before it started", why)), [])

    def _ready_zygote(self) -> Zygote:
        """The warm process: a new one where there is none, or where the code has changed since."""
        code_s = _code_s()
        if self._zygote is not None and code_s > self._code_s and not self._own:
            self._zygote.close()
        if self._zygote is None or not self._zygote.is_alive:
            seen = environment(self._path)
            self._zygote = Zygote(self._start_method, self._worker, seen, self._on_event, self._on_end)
            self._code_s = code_s
            atexit.register(self.close)
        return self._zygote

    def _on_event(self, event: Mapping[str, Any]) -> None:
        """Called from the thread that listens to the zygote."""
        with self._lock:
            bundle, zygote = self._own.get(event.get("run", ""), (None, None))
            if bundle is None or zygote is None:
                return
            if event["event"] == "started" and event["pids"]:
                handles = [found for pid in event["pids"] if (found := handle(pid))]
                named = {"owner": own_handle(), "starter": handle(zygote.pid), "processes": handles}
                with suppress(RunError):  # the disk is full: its result will say how it ended
                    self.record.hold(bundle.run, named)
                    self.record.move(bundle.run, State.RUNNING)
            elif event["event"] == "finished":
                exits = [Exit(*exit) for exit in event["exits"]]
                self._settle(bundle.run, self._judge(bundle, event, exits), exits)

    def _judge(self, bundle: Bundle, event: Mapping[str, Any], exits: list[Exit]) -> Verdict:
        if event["error"]:
            return Verdict(State.FAILED, event["error"])
        steps = str(Run(self.record, bundle.run).progress)
        return judge(bundle.folder, bundle.design, exits, was_cancelled=event["cancelled"], steps=steps)

    def _on_end(self, zygote: Zygote, why: str) -> None:
        """The zygote is gone, and with it whatever it had started."""
        with self._lock:
            if self._zygote is zygote:
                self._zygote = None
            for run in [run for run, (_, its) in self._own.items() if its is zygote]:
                if zygote.is_ready:
                    reason = f"{why}, after {Run(self.record, run).progress}; what it wrote is kept"
                    self._settle(run, Verdict(State.LOST, reason), [])
                else:  # it could not import what it needs, so nothing was started
                    self._settle(run, Verdict(State.FAILED, why), [])

    def _settle(self, run: str, verdict: Verdict, exits: list[Exit]) -> None:
        bundle, _ = self._own.pop(run)
        self.settle(bundle, verdict, exits)
        self._settled.notify_all()


def _memory(design: Design, memory: PeakMemory, available: float) -> Iterator[Problem]:
    """Check that the devices fit in the memory of a machine without GPU, which they share."""
    held = memory.total_bytes * [len(mesh.devices) for mesh in design.meshes]
    if held.sum() > available:
        needed = {"needed_bytes": float(held.sum()), "available_bytes": float(available)}
        yield Problem("model", "machine_memory", {"processes": process_count(design), **needed})


def _safe_start() -> Literal["fork", "spawn"]:
    """Apple's libraries do not survive a fork."""
    return "fork" if sys.platform.startswith("linux") else "spawn"


def _code_s() -> float:
    """When the newest file of the engine was changed: a warm process holds what was there before."""
    return max(path.stat().st_mtime for path in Path(meshwave.engine.__file__).parent.rglob("*.py"))
