"""Dry runs in threads of this process: one thread for each mesh, without torch and with empty messages."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from meshwave.engine.costs import Costs, PeakMemory
from meshwave.engine.document import Design
from meshwave.engine.document.unsupported import dry_run_problems
from meshwave.engine.findings import Problem
from meshwave.engine.runs.dry_run import action_durations, dry_run_note, plan_waits
from meshwave.engine.runs.dry_run_threads import run_step_in_threads
from meshwave.engine.runs.launchers._base import Capabilities, launchers
from meshwave.engine.runs.launchers._threaded import ThreadedLauncher
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Verdict, success_verdict
from meshwave.engine.runs.recording import Recorder
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_folder import Bundle

NOTE = "one thread for each mesh, in one process: messages are empty, and all devices of a mesh wait together"


@launchers.register("threads")
class ThreadsLauncher(ThreadedLauncher):
    """Launcher of dry runs in threads of this process; the runs end with the process.

    It does not need torch, and supports designs with more devices than processes can be started.
    """

    name: ClassVar[str] = "threads"
    title: ClassVar[str] = "Threads of this process (dry runs only)"
    trains: ClassVar[bool] = False

    def probe(self) -> Capabilities:
        return Capabilities(most_processes=4096, note="each mesh is one thread, which waits instead of computing")

    def problems(self, design: Design, memory: PeakMemory | None = None, data: Path | None = None) -> list[Problem]:
        return [Problem("", "rehearsal_only", {}), *super().problems(design, memory, data)]

    def refusals(
        self, design: Design, options: Options, memory: PeakMemory | None = None, data: Path | None = None
    ) -> list[Problem]:
        if options.rehearse is None:
            return self.problems(design, memory, data)
        if options.hosts is not None:
            return [Problem("", "no_network", {})]
        return dry_run_problems(design)

    def run_steps(self, bundle: Bundle, stop: threading.Event) -> Verdict:
        _run_steps(bundle, stop)
        return success_verdict(Run(self.record, bundle.run, self).progress)


def _run_steps(bundle: Bundle, stop: threading.Event) -> None:
    design, program, dry_run = bundle.design, bundle.program, bundle.options.rehearse
    assert dry_run is not None and dry_run.scale is not None, "the time-dilation factor must be set before launch"
    costs, scale = bundle.prediction.costs, dry_run.scale
    waits = plan_waits(program, costs, scale)
    _write_event(bundle, event="started", time=time.time(), pid=os.getpid(), device="none", note=NOTE)
    note = dry_run_note(action_durations(program, costs), scale, costs.unit)
    _write_event(bundle, event="chosen", time=time.time(), note=note)
    recorders = [*_open_recorders(bundle, scale)]
    origin_ns = time.perf_counter_ns()
    for step in range(design.training.steps):
        times = run_step_in_threads(waits, stop)
        for rank, recorder in enumerate(recorders):
            if recorder.is_due(step):
                rows = program.rows(rank)
                recorder.write(step, times.start[rows] - origin_ns, times.end[rows] - origin_ns, times.wait[rows])
        _write_step(bundle, costs, step, times.seconds / scale)
    for recorder in recorders:
        recorder.close()


def _open_recorders(bundle: Bundle, scale: float) -> Iterator[Recorder]:
    """Yield a recorder for each rank, with the number of the first process of the rank."""
    names, process = [mesh.name for mesh in bundle.design.meshes], 0
    for rank, mesh in enumerate(bundle.design.meshes):
        yield Recorder(bundle.folder, bundle.program, names, process, rank, "rehearsed", scale=scale, arrivals=True)
        process += len(mesh.devices)


def _write_step(bundle: Bundle, costs: Costs, step: int, seconds: float) -> None:
    """Write the metrics, event and log line of a step; ``seconds`` is its modelled time in seconds or units."""
    rate = costs.tokens / seconds if seconds else 0.0
    _append_record(bundle.folder / "metrics.jsonl", step=step, seconds=seconds, unit=costs.unit, tokens_per_s=rate)
    _write_event(bundle, event="step", time=time.time(), step=step)
    with (bundle.folder / "rank-0.log").open("a") as log:
        log.write(f"step {step + 1}: dry run, modelled time {seconds:.4g} {costs.unit}\n")


def _write_event(bundle: Bundle, **event: Any) -> None:
    _append_record(bundle.folder / "events-0.jsonl", **event)


def _append_record(path: Path, **values: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
