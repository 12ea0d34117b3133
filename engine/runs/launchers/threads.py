"""Rehearsals in threads of this process: a thread a mesh, no torch, no messages but in words."""

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
from meshwave.engine.runs.dry_run import Lengths, Waits, in_words
from meshwave.engine.runs.dry_run_threads import play
from meshwave.engine.runs.launchers._base import Capabilities, launchers
from meshwave.engine.runs.launchers._threaded import ThreadedLauncher
from meshwave.engine.runs.options import Options
from meshwave.engine.runs.outcome import Verdict
from meshwave.engine.runs.recording import Recorder
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import State
from meshwave.engine.runs.run_folder import Bundle

NOTE = "in threads of one process, one a mesh, beside what else it does: messages hold nothing, and all devices of a mesh wait as one"


@launchers.register("threads")
class ThreadsLauncher(ThreadedLauncher):
    """Rehearses in the process that holds this object, where there is no torch, or more devices than processes
    can be started. It belongs to that process, and ends with it."""

    name: ClassVar[str] = "threads"
    title: ClassVar[str] = "Threads of this process (rehearsals only)"
    trains: ClassVar[bool] = False

    def probe(self) -> Capabilities:
        return Capabilities(most_processes=4096, note="a thread for each mesh, which waits and computes nothing")

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

    def see_through(self, bundle: Bundle, stop: threading.Event) -> Verdict:
        _rehearse(bundle, stop)
        return Verdict(State.SUCCEEDED, str(Run(self.record, bundle.run, self).progress))


def _rehearse(bundle: Bundle, stop: threading.Event) -> None:
    design, program, rehearsal = bundle.design, bundle.program, bundle.options.rehearse
    assert rehearsal is not None and rehearsal.scale is not None, "settled when it was launched"
    costs, scale = bundle.prediction.costs, rehearsal.scale
    waits = Waits.of(program, costs, scale)
    _tell(bundle, event="started", time=time.time(), pid=os.getpid(), device="none", note=NOTE)
    note = in_words(Lengths.of(program, costs), scale, costs.unit)
    _tell(bundle, event="chosen", time=time.time(), note=note)
    recorders = [*_recorders(bundle, scale)]
    origin_ns = time.perf_counter_ns()
    for step in range(design.training.steps):
        played = play(waits, stop)
        for rank, recorder in enumerate(recorders):
            if recorder.is_due(step):
                rows = program.rows(rank)
                recorder.write(step, played.start[rows] - origin_ns, played.end[rows] - origin_ns, played.wait[rows])
        _tell_of_a_step(bundle, costs, step, played.seconds / scale)
    for recorder in recorders:
        recorder.close()


def _recorders(bundle: Bundle, scale: float) -> Iterator[Recorder]:
    """One for each rank, in the name of its first process."""
    names, process = [mesh.name for mesh in bundle.design.meshes], 0
    for rank, mesh in enumerate(bundle.design.meshes):
        yield Recorder(bundle.folder, bundle.program, names, process, rank, "rehearsed", scale=scale, arrivals=True)
        process += len(mesh.devices)


def _tell_of_a_step(bundle: Bundle, costs: Costs, step: int, seconds: float) -> None:
    rate = costs.tokens / seconds if seconds else 0.0
    _append(bundle.folder / "metrics.jsonl", step=step, seconds=seconds, unit=costs.unit, tokens_per_s=rate)
    _tell(bundle, event="step", time=time.time(), step=step)
    with (bundle.folder / "rank-0.log").open("a") as log:
        log.write(f"step {step + 1}: rehearsed, stands for {seconds:.4g} {costs.unit}\n")


def _tell(bundle: Bundle, **event: Any) -> None:
    _append(bundle.folder / "events-0.jsonl", **event)


def _append(path: Path, **values: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
