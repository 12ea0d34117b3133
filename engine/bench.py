"""How fast Meshwave is on this machine: figures, medians of several runs, with what they are measured on.

A part is a function that returns figures; its docstring says what it measures. The designer adds
the page. Nothing here passes or fails: read it beside what ``docs/speed.md`` holds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import InputError, MeshwaveError, nearest
from engine.program.action import Op
from engine.program.program import Program
from engine.units import quantity

Figures = dict[str, float]
Part = Callable[[], Figures]

REPEATS = 5
CLOCK_READS = 3  # an action: before its inputs, with them in hand, when it is done
SIZES = (("1f1b", 64, 512), ("1f1b", 128, 1024), ("hanayo", 128, 1024))


def run(parts: Sequence[str], say: Callable[[str], None], more: Mapping[str, Part] | None = None) -> dict[str, Any]:
    """Measure the named parts, or all; ``say`` hears what is being measured.

    Raises:
        InputError: there is no part of that name.
    """
    known = {**PARTS, **(more or {})}
    for name in parts:
        if name not in known:
            raise InputError(f"there is no part called {name!r}. {nearest(name, known)}")
    measured: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}}
    for name in parts or known:
        say(f"measuring {name}: {(known[name].__doc__ or '').splitlines()[0]}")
        try:
            measured[name] = known[name]()
        except MeshwaveError as error:
            if parts:
                raise
            say(f"left out: {error}")
    return measured


def to_text(figures: Mapping[str, Any]) -> str:
    lines = []
    for part, values in figures.items():
        lines.append(part)
        lines += [f"  {name:<58}{_shown(name, value):>12}" for name, value in values.items()]
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    if name.endswith("_s"):
        return quantity(value, "s")
    return f"{value:.2%}" if name.endswith("_share") else f"{value:.4g}"


def median_s(action: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median wall time of a call, in seconds."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


# ---- parts ----


def simulation() -> Figures:
    """order, lower, verify and simulate large pipelines"""
    from engine.lowering.transfers import add_transfers
    from engine.lowering.updates import add_updates
    from engine.program.verify import complete, verify
    from engine.schedules import Pipe, schedules
    from engine.simulate import simulate

    figures: Figures = {}
    for name, ranks, microbatches in SIZES:

        def lowered(name: str = name, ranks: int = ranks, microbatches: int = microbatches) -> Program:
            compute = schedules[name]().program(Pipe(ranks, microbatches))
            complete(compute, microbatches)
            program = add_updates(add_transfers(compute), (1,) * ranks)
            verify(program)
            return program

        program = lowered()
        seconds = np.select([program.op == Op.F, program.op == Op.B], [1.0, 2.0])
        size = f"{name} {ranks} x {microbatches}"
        figures[f"{size}: computations"] = int(program.is_compute.sum())
        figures[f"{size}: generate, verify and simulate_s"] = median_s(
            lambda lowered=lowered, seconds=seconds: simulate(lowered(), seconds)
        )
        figures[f"{size}: another cost_s"] = median_s(
            lambda program=program, seconds=seconds: simulate(program, 2 * seconds)
        )
    return figures


def command() -> Figures:
    """the command line from start to end"""
    from engine.resources import example

    path = str(example("01-first-wave"))
    call = [sys.executable, "-m", "engine.cli", "simulate", path, "--json"]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    return {
        "meshwave simulate of a small design_s": median_s(
            lambda: subprocess.run(call, env=environment, check=True, capture_output=True)
        )
    }


def edit() -> Figures:
    """one edit of an 8 x 32 design, from the document to the numbers, without the page"""
    from engine.design import load_design, parse_design
    from engine.predict import predict
    from engine.resources import example

    design = load_design(example("11-eight-by-32"))

    microbatches = iter(range(24, 48))  # another design each time: nothing is remembered

    def edited() -> None:
        document = design.model_dump(mode="json")
        document["pipeline"]["microbatches"] = next(microbatches)
        _ = predict(parse_design(document)).numbers

    return {"8 x 32: predict_s": median_s(edited, 20)}


def launch() -> Figures:
    """a run of four processes: from the call to the first step, and from cancel to no process left"""
    from engine.design import load_design, parse_design
    from engine.launch.measure import launch_times
    from engine.predict import predict
    from engine.resources import example

    document = load_design(example("01-first-wave")).model_dump(mode="json")
    document["training"]["steps"] = 10_000
    prediction = predict(parse_design(document))
    times = launch_times(prediction.design, prediction.program, prediction.costs.layers)
    return {
        "cold: call to the first step_s": times.cold_s,
        "warm: call to the first step_s": times.warm_s,
        "warm: call to all processes there_s": times.warm_processes_s,
        "cancel to no process left_s": times.cancel_s,
    }


def recording() -> Figures:
    """what recording every action costs, as a share of a step of the example that trains here"""
    from engine.design import load_design, parse_design
    from engine.launch import Record, launchers
    from engine.predict import predict
    from engine.recording import Recorder
    from engine.resources import example

    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["training"]["steps"] = 6
    prediction = predict(parse_design(document))
    with tempfile.TemporaryDirectory() as folder, closing(Record(Path(folder))) as record:
        with closing(launchers["local"](record)) as launcher:
            run = launcher.submit(prediction.design, prediction.program, prediction.costs.layers)
            run.wait(timeout_s=120)
        step_s = statistics.median(row["seconds"] for row in run.metrics())
        recorder = Recorder(Path(folder), prediction.program, prediction.timeline.meshes, process=0, rank=0)
        actions = len(prediction.program.actions(0))
        times = np.zeros(actions, np.int64)
        write_s = median_s(lambda: recorder.write(0, times, times, times), 50)
        recorder.close()
    reads_s = median_s(lambda: [time.perf_counter_ns() for _ in range(CLOCK_READS * actions)])
    return {
        "a step_s": step_s,
        "recording a step_s": write_s + reads_s,
        "recording_share": (write_s + reads_s) / step_s,
    }


PARTS: dict[str, Part] = {
    "simulation": simulation,
    "command": command,
    "edit": edit,
    "launch": launch,
    "recording": recording,
}
