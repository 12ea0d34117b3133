"""Benchmarks of Meshwave on this machine: ``meshwave bench``.

A benchmark is a function that returns figures; its docstring states what it measures. The designer adds benchmarks of
the page. No figure passes or fails: compare the figures with those of ``docs/speed.md``.
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
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from meshwave.engine.bench import accuracy as accuracy_bench
from meshwave.engine.bench import papers
from meshwave.engine.bench.convergence import compare_convergence
from meshwave.engine.bench.links import measure_links
from meshwave.engine.bench.measuring import median_s, run_to_end, temporary_launcher
from meshwave.engine.bench.resharding_planner import measure_planner
from meshwave.engine.bench.simulation import measure_contention, measure_simulation
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import example, import_path
from meshwave.engine.findings import Refusal, RunRefusal, unknown_member_params
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runtime.calibration.machine_profile import count_gpus
from meshwave.engine.units import quantity

Figures = dict[str, float]
Say = Callable[[str], None]
Part = Callable[[], Mapping[str, Any]]
LongPart = Callable[[Sequence[str], Path | None, Say], Mapping[str, Any]]
"""Benchmark of several designs.

Its arguments are words that select designs, the result file, and a function that reports progress.
"""
TimedPart = Callable[[float, Say], Mapping[str, Any]]
"""Benchmark of a given duration; its arguments are the minutes to measure for, and a function that reports progress."""

CLOCK_READS = 3
"""Clock reads per action: before its inputs, when they are ready, and when it ends."""
TURNS = 25
"""Number of measured steps of each runtime."""
PAIRS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "1f1b": ({"schedule": "1f1b"}, "Schedule1F1B"),
    "interleaved-1f1b": ({"schedule": "interleaved-1f1b", "chunks": 2}, "ScheduleInterleaved1F1B"),
    "zb-v": ({"schedule": "zb-v"}, "ScheduleZBVZeroBubble"),
    "hanayo, two waves": ({"schedule": "hanayo", "waves": 2}, "_PipelineScheduleRuntime"),
}
"""Pipelines, each with the class of ``torch.distributed.pipelining.schedules`` that executes the same order."""


def run_benchmarks(
    parts: Sequence[str],
    say: Say,
    only: Sequence[str] = (),
    out: Path | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run the named benchmarks and return their figures.

    Args:
        parts: names of benchmarks; if empty, all except the long and the timed ones.
        say: function that reports progress.
        only: for long benchmarks: words, one of which is in the name or group of each design to measure.
        out: for long benchmarks: the result file.
        minutes: for timed benchmarks: their duration.

    Raises:
        Refusal: a benchmark does not exist, or an option applies to none of them.
    """
    _check_options(parts, (*PARTS, *LONG_PARTS, *TIMED_PARTS), bool(only or out), minutes)
    long = {name: partial(part, only, out, say) for name, part in LONG_PARTS.items()}
    timed = {name: partial(part, minutes or DEFAULT_MINUTES, say) for name, part in TIMED_PARTS.items()}
    known: dict[str, Part] = {**PARTS, **long, **timed}
    measured: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}}
    for name in parts or PARTS:
        part = known[name]
        say(f"{name}: {_summary_line(part)}")
        try:
            measured[name] = part()
        except MeshwaveError as error:
            if parts:
                raise
            say(f"skipped: {error}")
    return measured


def _check_options(parts: Sequence[str], known: Sequence[str], has_file: bool, minutes: float | None) -> None:
    for name in parts:
        if name not in known:
            raise Refusal("unknown_member", unknown_member_params("benchmark", name, known))
    options = (
        (("--only", "--out"), has_file, LONG_PARTS),
        (("--minutes",), minutes is not None, TIMED_PARTS),
    )
    for names, is_given, takers in options:
        if is_given and not any(name in takers for name in parts):
            raise Refusal(
                "option_of_other_parts", {"options": names, "parts": list(takers) or ["parts of the designer"]}
            )
    if minutes is not None and not 0 < minutes < float("inf"):
        raise Refusal("out_of_range", {"value": f"{minutes:g}", "above": 0}, "--minutes")


def _summary_line(part: Callable[..., Any]) -> str:
    doc = (part.func if isinstance(part, partial) else part).__doc__
    return (doc or "").splitlines()[0]


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """Format figures as lines of text for a terminal."""
    lines = []
    for part, values in figures.items():
        lines.append(part)
        if part in TEXTS:
            lines += import_module(TEXTS[part]).to_text(values)
        else:
            lines += [f"  {name:<58}{_format_figure(name, value):>12}" for name, value in values.items()]
    return lines


def _format_figure(name: str, value: float) -> str:
    if name.endswith("_s"):
        return quantity(value, "s")
    if name.endswith("_bytes"):
        return quantity(value, "B")
    return f"{value:.2%}" if name.endswith("_share") else f"{value:.4g}"


# ---- parts ----


def measure_command() -> Figures:
    """Measure the wall time of a ``meshwave`` command."""
    path = str(example("01-first-wave"))
    call = [sys.executable, "-m", "meshwave.engine.cli.main", "simulate", path, "--json"]
    environment = {**os.environ, "PYTHONPATH": import_path()}
    return {
        "meshwave simulate of a small design_s": median_s(
            lambda: subprocess.run(call, env=environment, check=True, capture_output=True)
        )
    }


def measure_edit() -> Figures:
    """Predict an edited design of 8 meshes and 32 microbatches, from the document to the numbers, without the page."""
    design = load_design(example("11-eight-by-32"))

    microbatches = iter(range(24, 48))  # a different design each time, so that no cache is used

    def edit() -> None:
        document = design.model_dump(mode="json")
        document["pipeline"]["microbatches"] = next(microbatches)
        _ = predict(parse_design(document)).numbers

    return {"8 x 32: predict_s": median_s(edit, 20)}


def measure_launch() -> Figures:
    """Launch and cancel a run of four processes, cold and warm."""
    from meshwave.engine.bench.launch_figures import measure_launch_times

    document = load_design(example("01-first-wave")).model_dump(mode="json")
    document["training"]["steps"] = 10_000
    return measure_launch_times(predict(parse_design(document)))


def measure_recording() -> Figures:
    """Record every action of a training step; the time is also given as a share of the step time."""
    from meshwave.engine.runs.launchers import specify_run
    from meshwave.engine.runs.recording import Recorder

    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["training"]["steps"] = 6
    prediction = predict(parse_design(document))
    with temporary_launcher() as launcher:
        run = run_to_end(launcher, specify_run(prediction), "recording", timeout_s=120)
        step_s = statistics.median(row["seconds"] for row in run.metrics())
    with tempfile.TemporaryDirectory() as folder:
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


def measure_runtime() -> Figures:
    """Run the same steps alternately in Meshwave's runtime and in torch.distributed.pipelining."""
    found = count_gpus()
    uses_gpus = found > 1  # NCCL needs one GPU per rank
    ranks = 4 if (found if uses_gpus else os.cpu_count() or 1) >= 4 else 2
    size = {"hidden": 2048, "sequence": 1024} if uses_gpus else {"hidden": 256, "sequence": 64}
    return compare_runtimes({name: schedule_pair(ranks, size, *pair) for name, pair in PAIRS.items()}, ranks, TURNS)


def print_progress(line: str) -> None:
    """Print a line about the progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def measure_moe() -> dict[str, Any]:
    """Measure and predict expert schedules on two emulated nodes (five minutes; less on several GPUs)."""
    from meshwave.engine.bench.expert_schedules import benchmark_expert_schedules

    return benchmark_expert_schedules(count_gpus(), say=print_progress)


def measure_convergence() -> dict[str, Any]:
    """Train PPMoE and expert parallelism on two emulated nodes, loss against steps and time (one minute)."""
    return compare_convergence(say=print_progress)


def measure_resharding() -> dict[str, Any]:
    """Measure and predict transfer strategies on three emulated nodes (one minute)."""
    from meshwave.engine.runtime.benchmarks.resharding import benchmark_resharding

    return benchmark_resharding(on_line=print_progress)


def measure_gpu() -> dict[str, Any]:
    """Train a GPT of 1.3 billion parameters on one GPU with several options (five minutes, needs a GPU)."""
    from meshwave.engine.runtime.benchmarks.gpu import benchmark_gpu

    return benchmark_gpu(count_gpus(), print_progress)


def compare_runtimes(pairs: Mapping[str, Mapping[str, Any]], ranks: int, turns: int) -> Figures:
    """Return the figures of each pair of :func:`schedule_pair`, averaged over the ranks.

    Raises:
        RunError: a process failed, or the runtimes compute different losses or gradients.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.json").write_text(json.dumps({"pairs": pairs, "turns": turns, "steps": 1}))
        _run_processes(ranks, "meshwave.engine.runtime.benchmarks.torch_pipelining", folder)
        found = json.loads((Path(folder) / "figures.json").read_text())
    figures: Figures = {"ranks": ranks, "GPUs": found["gpus"]}
    for pair in pairs:
        of_ranks = [measured[pair] for measured in found["ranks"]]
        for name in of_ranks[0]:
            figures[f"{pair}: {name}"] = statistics.mean(measured[name] for measured in of_ranks)
    return figures


def schedule_pair(
    ranks: int, size: Mapping[str, int], pipeline: Mapping[str, Any], torch_schedule: str
) -> dict[str, Any]:
    """Return the document of a design with a model of this size, and the equivalent schedule class of torch."""
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
    return {"design": design, "torch": torch_schedule}


def _run_processes(count: int, module: str, folder: str) -> None:
    """Run a module in ``count`` processes until all have ended.

    Raises:
        RunError: a process failed; the message has the last line of its log.
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
            log = (Path(folder) / f"{rank}.log").read_text().strip().splitlines()
            reason = log[-1] if log else f"exit status {process.returncode}"
            raise RunRefusal("benchmark_process_failed", {"process": rank, "reason": reason})


PARTS: dict[str, Part] = {
    "contention": measure_contention,
    "simulation": measure_simulation,
    "command": measure_command,
    "edit": measure_edit,
    "launch": measure_launch,
    "recording": measure_recording,
    "runtime": measure_runtime,
    "links": measure_links,
    "planner": measure_planner,
    "papers": papers.papers,
    "moe": measure_moe,
    "convergence": measure_convergence,
    "reshard": measure_resharding,
    "gpu": measure_gpu,
}
LONG_PARTS: Mapping[str, LongPart] = {
    "accuracy": accuracy_bench.measure_accuracy,
    "rehearsal": accuracy_bench.measure_dry_runs,
}
"""Benchmarks that run only if they are named."""
TIMED_PARTS: dict[str, TimedPart] = {}
"""Benchmarks that run only if they are named, for a given time; the designer registers them."""
DEFAULT_MINUTES = 5.0
TEXTS: Mapping[str, str] = {
    "accuracy": "meshwave.engine.bench.accuracy",
    "rehearsal": "meshwave.engine.bench.accuracy",
    "papers": "meshwave.engine.bench.papers",
    "moe": "meshwave.engine.bench.expert_schedules",
    "convergence": "meshwave.engine.bench.convergence",
    "reshard": "meshwave.engine.runtime.benchmarks.resharding",
    "gpu": "meshwave.engine.runtime.benchmarks.gpu",
}
"""Modules whose ``to_text`` formats the figures of a benchmark; others print one figure per line."""
