"""How fast Meshwave is on this machine: figures, medians of several runs, with what they are measured on.

A part is a function that returns figures; its docstring says what it measures. The designer adds
the page. Nothing here passes or fails: read it beside what ``docs/speed.md`` holds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshwave.engine.bench import accuracy as accuracy_bench
from meshwave.engine.bench import convergence as convergence_bench
from meshwave.engine.bench import links as links_bench
from meshwave.engine.bench import papers
from meshwave.engine.bench import resharding_planner as planner_bench
from meshwave.engine.bench import simulation as simulation_bench
from meshwave.engine.bench.simulation import median_s
from meshwave.engine.errors import InputError, MeshwaveError, RunError, nearest
from meshwave.engine.files import import_path
from meshwave.engine.runtime.calibration.machine_profile import count_gpus
from meshwave.engine.units import quantity

Figures = dict[str, float]
Say = Callable[[str], None]
Part = Callable[[], Mapping[str, Any]]
LongPart = Callable[[Sequence[str], Path | None, Say], Mapping[str, Any]]
"""Takes which of its designs to measure, the file that keeps their results, and who hears how far it is."""
TimedPart = Callable[[float, Say], Mapping[str, Any]]
"""Takes for how many minutes to measure, and who hears how far it is."""

REPEATS = 5
CLOCK_READS = 3  # an action: before its inputs, with them in hand, when it is done
TURNS = 25  # of each runtime
PAIRS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "1f1b": ({"schedule": "1f1b"}, "Schedule1F1B"),
    "interleaved-1f1b": ({"schedule": "interleaved-1f1b", "chunks": 2}, "ScheduleInterleaved1F1B"),
    "zb-v": ({"schedule": "zb-v"}, "ScheduleZBVZeroBubble"),
    "hanayo, two waves": ({"schedule": "hanayo", "waves": 2}, "_PipelineScheduleRuntime"),
}
"""A pipeline here, and what runs the same of ``torch.distributed.pipelining.schedules``."""


def run(
    parts: Sequence[str],
    say: Say,
    more: Mapping[str, Part] | None = None,
    only: Sequence[str] = (),
    out: Path | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Measure the named parts, or all but the long and timed ones; ``say`` hears what is being measured. ``only`` and
    ``out`` are for the long ones: words of which a design's name or group has one, and the file of their results.
    ``minutes`` is for the timed ones.

    Raises:
        InputError: there is no part of that name, or none that ``only``, ``out`` or ``minutes`` could be for.
    """
    usual = {**PARTS, **(more or {})}
    _check_options(parts, (*usual, *LONG_PARTS, *TIMED_PARTS), bool(only or out), minutes)
    long = {name: partial(part, only, out, say) for name, part in LONG_PARTS.items()}
    timed = {name: partial(part, minutes or USUAL_MINUTES, say) for name, part in TIMED_PARTS.items()}
    known: dict[str, Part] = {**usual, **long, **timed}
    measured: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}}
    for name in parts or usual:
        part = known[name]
        say(f"measuring {name}: {_what(part)}")
        try:
            measured[name] = part()
        except MeshwaveError as error:
            if parts:
                raise
            say(f"left out: {error}")
    return measured


def _check_options(parts: Sequence[str], known: Sequence[str], has_file: bool, minutes: float | None) -> None:
    for name in parts:
        if name not in known:
            raise InputError(f"there is no part called {name!r}. {nearest(name, known)}")
    options = (
        ("--only and --out apply", has_file, LONG_PARTS),
        ("--minutes applies", minutes is not None, TIMED_PARTS),
    )
    for option, is_given, takers in options:
        if is_given and not any(name in takers for name in parts):
            raise InputError(
                f"{option} only to {' and '.join(takers) or 'parts of the designer'}; name what to measure"
            )
    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"unsupported number of minutes: {minutes:g} (supported: more than 0)")


def _what(part: Callable[..., Any]) -> str:
    doc = (part.func if isinstance(part, partial) else part).__doc__
    return (doc or "").splitlines()[0]


def to_text(figures: Mapping[str, Any]) -> str:
    lines = []
    for part, values in figures.items():
        lines.append(part)
        if part in TEXTS:
            lines += TEXTS[part](values)
        else:
            lines += [f"  {name:<58}{_shown(name, value):>12}" for name, value in values.items()]
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    if name.endswith("_s"):
        return quantity(value, "s")
    if name.endswith("_bytes"):
        return quantity(value, "B")
    return f"{value:.2%}" if name.endswith("_share") else f"{value:.4g}"


# ---- parts ----


def command() -> Figures:
    """the command line from start to end"""
    from meshwave.engine.files import example

    path = str(example("01-first-wave"))
    call = [sys.executable, "-m", "meshwave.engine.cli.main", "simulate", path, "--json"]
    environment = {**os.environ, "PYTHONPATH": import_path()}
    return {
        "meshwave simulate of a small design_s": median_s(
            lambda: subprocess.run(call, env=environment, check=True, capture_output=True)
        )
    }


def edit() -> Figures:
    """one edit of an 8 x 32 design, from the document to the numbers, without the page"""
    from meshwave.engine.document import load_design, parse_design
    from meshwave.engine.files import example
    from meshwave.engine.predict.prediction import predict

    design = load_design(example("11-eight-by-32"))

    microbatches = iter(range(24, 48))  # another design each time: nothing is remembered

    def edited() -> None:
        document = design.model_dump(mode="json")
        document["pipeline"]["microbatches"] = next(microbatches)
        _ = predict(parse_design(document)).numbers

    return {"8 x 32: predict_s": median_s(edited, 20)}


def launch() -> Figures:
    """a run of four processes: from the call to the first step, and from cancel to no process left"""
    from meshwave.engine.bench.launch_latency import launch_times
    from meshwave.engine.document import load_design, parse_design
    from meshwave.engine.files import example
    from meshwave.engine.predict.prediction import predict

    document = load_design(example("01-first-wave")).model_dump(mode="json")
    document["training"]["steps"] = 10_000
    prediction = predict(parse_design(document))
    times = launch_times(prediction)
    return {
        "cold: call to the first step_s": times.cold_s,
        "warm: call to the first step_s": times.warm_s,
        "warm: call to all processes there_s": times.warm_processes_s,
        "cancel to no process left_s": times.cancel_s,
    }


def recording() -> Figures:
    """what recording every action costs, as a share of a step of the example that trains here"""
    from meshwave.engine.document import load_design, parse_design
    from meshwave.engine.files import example
    from meshwave.engine.predict.prediction import predict
    from meshwave.engine.runs import Record
    from meshwave.engine.runs.launchers import launchers, specify_run
    from meshwave.engine.runs.recording import Recorder

    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["training"]["steps"] = 6
    prediction = predict(parse_design(document))
    with tempfile.TemporaryDirectory() as folder, closing(Record(Path(folder))) as record:
        with closing(launchers["local"](record)) as launcher:
            run = launcher.submit(specify_run(prediction))
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


def runtime() -> Figures:
    """the same steps here and in torch.distributed.pipelining, in turns; see engine/runtime/bench.py"""
    found = count_gpus()
    some = found > 1  # one is none: its ranks would share it, and NCCL takes one a GPU
    ranks = 4 if (found if some else os.cpu_count() or 1) >= 4 else 2
    size = {"hidden": 2048, "sequence": 1024} if some else {"hidden": 256, "sequence": 64}
    return side_by_side({name: _pair(ranks, size, *pair) for name, pair in PAIRS.items()}, ranks, TURNS)


def moe() -> dict[str, Any]:
    """expert schedules on two emulated nodes, beside their prediction; some five minutes, on several GPUs less"""
    from meshwave.engine.bench.expert_schedules import moe

    return moe(count_gpus(), say=lambda line: print(line, file=sys.stderr, flush=True))


def convergence() -> dict[str, Any]:
    """PPMoE trained beside expert parallelism on two emulated nodes, loss against steps and time; about a minute"""
    return convergence_bench.convergence(say=lambda line: print(line, file=sys.stderr, flush=True))


def reshard() -> dict[str, Any]:
    """transfer strategies on three emulated nodes, beside their prediction; about a minute"""
    from meshwave.engine.runtime.benchmarks.resharding import benchmark_resharding

    return benchmark_resharding(on_line=lambda line: print(line, file=sys.stderr, flush=True))


def gpu() -> dict[str, Any]:
    """a GPT of 1.3 billion parameters on one GPU, beside what may be chosen; some five minutes, needs a GPU"""
    from meshwave.engine.runtime.benchmarks.gpu import benchmark_gpu

    return benchmark_gpu(count_gpus(), lambda line: print(line, file=sys.stderr, flush=True))


def _gpu_text(figures: Mapping[str, Any]) -> list[str]:
    from meshwave.engine.runtime.benchmarks.gpu import to_text

    return to_text(figures)


def _reshard_text(figures: Mapping[str, Any]) -> list[str]:
    from meshwave.engine.runtime.benchmarks.resharding import to_text

    return to_text(figures)


def _moe_text(figures: Mapping[str, Any]) -> list[str]:
    from meshwave.engine.bench.expert_schedules import to_text

    return to_text(figures)


def side_by_side(pairs: Mapping[str, Mapping[str, Any]], ranks: int, turns: int) -> Figures:
    """The figures of each pair; what differs from rank to rank is their mean.

    Raises:
        RunError: a process failed, or the two runtimes disagree about losses or gradients.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.json").write_text(json.dumps({"pairs": pairs, "turns": turns, "steps": 1}))
        _processes(ranks, "meshwave.engine.runtime.benchmarks.torch_pipelining", folder)
        found = json.loads((Path(folder) / "figures.json").read_text())
    figures: Figures = {"ranks": ranks, "GPUs": found["gpus"]}
    for pair in pairs:
        of_ranks = [measured[pair] for measured in found["ranks"]]
        for name in of_ranks[0]:
            figures[f"{pair}: {name}"] = statistics.mean(measured[name] for measured in of_ranks)
    return figures


def _pair(ranks: int, size: Mapping[str, int], pipeline: Mapping[str, Any], torchs: str) -> dict[str, Any]:
    """A design of a model of that size, and torch's class that runs the same."""
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"name": "core", "peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    one = {"nodes": 1, "devices_per_node": ranks, "device": device, "intra_node": link, "inter_node": link}
    design = {
        "format": "meshwave/1",
        "cluster": one,
        "model": {"kind": "gpt", "layers": 4 * ranks, **size, "heads": max(1, size["hidden"] // 64), "vocab": 256},
        "meshes": [{"name": f"m{rank}", "devices": [rank], "axes": {"dp": 1}} for rank in range(ranks)],
        "pipeline": {**pipeline, "microbatches": 4 * ranks},
        "training": {"micro_batch_size": 1, "precision": "fp32"},
        "cost": {"kind": "unit"},
    }
    return {"design": design, "torch": torchs}


def _processes(count: int, module: str, folder: str) -> None:
    """Run ``count`` processes of a module to their end.

    Raises:
        RunError: one failed; it holds the end of what that one said.
    """
    shared = {**os.environ, "PYTHONPATH": import_path(), "WORLD_SIZE": str(count)}
    shared |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(count)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, folder],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=(Path(folder) / f"{rank}.log").open("w"),
        )
        for rank in range(count)
    ]
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode > 0:
            said = (Path(folder) / f"{rank}.log").read_text().strip().splitlines()
            raise RunError(f"process {rank} of the bench failed: {said[-1] if said else process.returncode}")


PARTS: dict[str, Part] = {
    "contention": simulation_bench.contention,
    "simulation": simulation_bench.simulation,
    "command": command,
    "edit": edit,
    "launch": launch,
    "recording": recording,
    "runtime": runtime,
    "links": links_bench.figures,
    "planner": planner_bench.figures,
    "papers": papers.papers,
    "moe": moe,
    "convergence": convergence,
    "reshard": reshard,
    "gpu": gpu,
}
LONG_PARTS: Mapping[str, LongPart] = {"accuracy": accuracy_bench.accuracy, "rehearsal": accuracy_bench.rehearsal}
"""Measured only where they are named."""
TIMED_PARTS: dict[str, TimedPart] = {}
"""Measured only where they are named, for as long as is asked; the designer adds them."""
USUAL_MINUTES = 5.0
TEXTS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "accuracy": accuracy_bench.to_text,
    "rehearsal": accuracy_bench.to_text,
    "papers": papers.to_text,
    "moe": _moe_text,
    "convergence": convergence_bench.to_text,
    "reshard": _reshard_text,
    "gpu": _gpu_text,
}
"""Of parts that have more to show than a figure a line."""
