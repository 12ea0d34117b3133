"""Benchmarks of one GPU: throughput of GPT models by size and training options, and properties the runtime relies on."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.memory import peak_memory
from meshwave.engine.costs.model_flops import model_flops
from meshwave.engine.costs.presets import presets
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import MeshwaveError, unknown_word_hint
from meshwave.engine.findings import Refusal
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster
from meshwave.engine.units import quantity

Figures = dict[str, Any]

MICROBATCHES = 4
WARM_UP_STEPS, STEPS = 3, 8
"""Number of warm-up steps, which compile and fill caches and are not counted, and number of measured steps."""
PROFILE = "this-machine.json"
"""Name of the profile that ``meshwave calibrate`` writes."""
ONE_GPU, NO_GPU = ProcessCluster(1, 1, uses_gpus=True), ProcessCluster(1, 1)
SHARING = (2, 4, 8)
"""Numbers of processes that share the GPU and communicate over gloo."""
MESSAGE_BYTES, TURNS = 64 * 2**20, 5
STAMPS = 1000
MULTI_RANK_NCCL = (2, 30)
"""First version of NCCL in which several ranks can share a GPU, if ``NCCL_MULTI_RANK_GPU_ENABLE`` is 1."""


@dataclass(frozen=True)
class TrainingCase:
    """GPT model and its training options, as a benchmark case."""

    name: str
    layers: int = 24
    hidden: int = 2048
    sequence: int = 2048
    micro_batch_size: int = 4
    vocab: int = 50304
    precision: Literal["bf16", "fp32"] = "bf16"
    recompute: Literal["none", "full"] = "none"
    compile: bool = False

    @property
    def design(self) -> Design:
        """Design of this case on one device. The rates of its cluster are not used, because the run is measured."""
        link = {"latency_s": 1e-5, "bandwidth": 1e11}
        device = {"peak_flops": 1e15, "memory_bytes": 1e11, "memory_bandwidth": 1e12}
        one = {"nodes": 1, "devices_per_node": 1, "device": device, "intra_node": link, "inter_node": link}
        size = {"layers": self.layers, "hidden": self.hidden, "heads": self.hidden // 128, "sequence": self.sequence}
        training = {"micro_batch_size": self.micro_batch_size, "precision": self.precision, "compile": self.compile}
        return parse_design(
            {
                "format": "meshwave/1",
                "name": self.name,
                "cluster": one,
                "model": {"kind": "gpt", "vocab": self.vocab, **size},
                "meshes": [{"name": "GPU", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
                "pipeline": {"schedule": "1f1b", "microbatches": MICROBATCHES, "recompute": self.recompute},
                "training": {**training, "steps": WARM_UP_STEPS + STEPS, "clip_norm": 1.0},
                "cost": {"kind": "unit"},
            }
        )

    @property
    def small_version(self) -> TrainingCase:
        """Return the same training options with a model that one core trains in seconds."""
        return replace(self, layers=2, hidden=128, sequence=32, micro_batch_size=1, vocab=256)


LARGE = "1.3 B parameters"
"""The reference case: GPT-3 XL (Brown et al., arXiv:2005.14165, table 2.1) with heads of 128."""
CASES = (
    TrainingCase(LARGE),
    TrainingCase(f"{LARGE}, compiled", compile=True),
    TrainingCase(f"{LARGE}, recomputed", recompute="full"),
    TrainingCase(f"{LARGE}, compiled and recomputed", recompute="full", compile=True),
    TrainingCase(f"{LARGE}, microbatches of 1", micro_batch_size=1),
    TrainingCase(f"{LARGE}, compiled, microbatches of 8", micro_batch_size=8, compile=True),
    TrainingCase("0.36 B parameters", hidden=1024),
    TrainingCase("0.36 B parameters, compiled", hidden=1024, compile=True),
    TrainingCase("0.12 B parameters", layers=12, hidden=768),
    TrainingCase("0.12 B parameters in fp32", layers=12, hidden=768, precision="fp32"),
)


def benchmark_gpu(
    gpus: int, on_piece: Callable[[str], None] = lambda name: None, cases: Sequence[TrainingCase] = CASES
) -> Figures:
    """Measure the device, then train every case on it. A failed measurement is recorded, and the others continue.

    Raises:
        InputError: there is no GPU.
    """
    if not gpus:
        raise Refusal("no_nvidia_gpu")
    found = {}
    for name, measure in benchmark_pieces(cases).items():
        on_piece(name)
        found[name] = result_or_failure(measure)
    device = found[DEVICE]
    shared = [found[_sharing_case_name(ranks)] for ranks in SHARING]
    return {
        "device": device,
        "gloo": shared,
        "cases": [{**asdict(case), **found[case.name], **utilization(found[case.name], device)} for case in cases],
    }


DEVICE = "the device and its clock"


def _sharing_case_name(ranks: int) -> str:
    return f"the device shared by {ranks} processes"


def benchmark_pieces(
    cases: Sequence[TrainingCase] = CASES, cluster: ProcessCluster = ONE_GPU
) -> dict[str, Callable[[], Figures]]:
    """Return the functions that run each measurement, by name."""
    return {
        DEVICE: partial(_run_device_benchmark, cluster),
        **{_sharing_case_name(ranks): partial(_run_sharing_benchmark, ranks, cluster) for ranks in SHARING},
        **{case.name: partial(_run_training_benchmark, case, cluster) for case in cases},
    }


def result_or_failure(measure: Callable[[], Figures]) -> Figures:
    """Return the figures of a measurement, or its error message under ``failed``."""
    try:
        return measure()
    except MeshwaveError as error:
        return {"failed": str(error)}


def utilization(result: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, float]:
    """Return the model FLOPs utilization (MFU) of a case, relative to the measured rate and to the data-sheet peak."""
    if "step_s" not in result or "failed" in device:
        return {}
    flops_per_s = result["model_flops"] / result["step_s"]
    rates = {
        "mfu_of_measured": device["matrix_flops"].get(result["precision"]),
        "mfu_of_peak": device["peak_flops"] if result["precision"] == "bf16" else None,
    }
    return {name: flops_per_s / rate for name, rate in rates.items() if rate is not None}


def _run_device_benchmark(cluster: ProcessCluster) -> Figures:
    (found,) = run_in_cluster("meshwave.engine.runtime.benchmarks.gpu:measure_device", cluster)
    return {**found}


def _run_sharing_benchmark(ranks: int, cluster: ProcessCluster) -> Figures:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] if cluster.uses_gpus else None
    function = "meshwave.engine.runtime.benchmarks.gpu:time_host_all_reduce"
    seconds = run_in_cluster(function, ProcessCluster(1, ranks), visible)
    return {"ranks": ranks, "bytes_per_s": MESSAGE_BYTES / max(seconds)}


def _run_training_benchmark(case: TrainingCase, cluster: ProcessCluster) -> Figures:
    (found,) = run_in_cluster("meshwave.engine.runtime.benchmarks.gpu:train_case", cluster, asdict(case))
    flops = model_flops(case.design.model, case.design.sequences_per_step)
    memory_bytes = _predicted_memory_bytes(case.design)
    return {"precision": case.precision, **found, "model_flops": flops, "formulas_memory_bytes": memory_bytes}


def _predicted_memory_bytes(design: Design) -> float:
    """Return the peak memory of one device that the cost model predicts."""
    program = lower(design)
    return float(peak_memory(program, estimate(design, program)).total_bytes[0])


# ---- in the processes ----


def measure_device(cluster: ProcessCluster, _: Any) -> Figures:
    """Return properties and rates of the device, and the accuracy of its clock."""
    import torch

    from meshwave.engine.runtime.calibration.collective_timing import process_device
    from meshwave.engine.runtime.calibration.device_timing import matrix_flops_per_s

    device = process_device(cluster)
    precisions = (
        ("bf16", "fp32") if cluster.uses_gpus else ("fp32",)
    )  # bf16 takes minutes on a core without instructions for it
    return {
        "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        **(_gpu_properties(device) if cluster.uses_gpus else {"name": "CPU", "peak_flops": None}),
        "matrix_flops": {precision: matrix_flops_per_s(precision, device) for precision in precisions},
        **_clock_accuracy(device),
    }


def _gpu_properties(device: Any) -> Figures:
    import torch

    from meshwave.engine.runtime.device.accelerator import device_name
    from meshwave.engine.runtime.device.memory import use_expandable_segments
    from meshwave.engine.runtime.device.report import are_segments_expandable, device_memory_bytes, nccl_version

    use_expandable_segments()
    torch.zeros(2**24, device=device)  # the allocator keeps its segment
    name, nccl = device_name(device), nccl_version()
    return {
        "name": name,
        "memory_bytes": device_memory_bytes(device),
        "peak_flops": preset_peak_flops(name),
        "nccl": ".".join(map(str, nccl)),
        "nccl_takes_several_ranks": nccl[:2] >= MULTI_RANK_NCCL,
        "segments_grow": are_segments_expandable(),
    }


def preset_peak_flops(name: str) -> float | None:
    """Return the peak FLOP/s in the preset of a device, such as ``H200`` for ``NVIDIA H200``; None without a preset."""
    words = set(name.replace("-", " ").split())
    known = (preset.cluster.device for preset in presets().values())
    return max((device.peak_flops for device in known if device.name.split("-")[0] in words), default=None)


def _clock_accuracy(device: Any) -> dict[str, float]:
    """Return the host time that recording a stamp takes, and the difference between stamps of the GPU and of the host."""
    from meshwave.engine.runtime.device.clock import make_clock

    clock, differences_ns = make_clock(device), []
    for _ in range(TURNS * 4):
        clock.begin()
        host_ns, stamp = time.perf_counter_ns(), clock.stamp()
        differences_ns.append(abs(int(clock.nanoseconds([stamp])[0]) - host_ns))
    clock.begin()
    for _ in range(STAMPS):  # creates the events, which are reused below
        clock.stamp()
    clock.begin()
    start = time.perf_counter()
    for _ in range(STAMPS):
        clock.stamp()
    stamp_s = (time.perf_counter() - start) / STAMPS
    return {"stamp_s": stamp_s, "clocks_apart_s": statistics.median(differences_ns) / 1e9}


def train_case(cluster: ProcessCluster, argument: Mapping[str, Any]) -> Figures:
    """Train one case and return its figures, or ``out_of_memory`` if the device has too little memory."""
    import torch

    from meshwave.engine.runtime.calibration.collective_timing import process_device
    from meshwave.engine.runtime.communication.world import World
    from meshwave.engine.runtime.device.accelerator import device_backend
    from meshwave.engine.runtime.device.memory import peak_allocated_bytes, use_expandable_segments
    from meshwave.engine.runtime.execution.job import Job
    from meshwave.engine.runtime.execution.trainer import Trainer

    use_expandable_segments()
    design, device = TrainingCase(**argument).design, process_device(cluster)
    job = Job(design, lower(design), layers_per_stage(design))
    try:
        trainer = Trainer(job, World(0, 1, device, device_backend(device) or "gloo", ""))
        steps = [trainer.step(number) for number in range(WARM_UP_STEPS + STEPS)]
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    seconds = sorted(step.seconds for step in steps[WARM_UP_STEPS:])
    step_s = statistics.median(seconds)
    return {
        "parameters": sum(parameter.numel() for parameter in trainer.parameters().values()),
        "first_step_s": steps[0].seconds,
        "step_s": step_s,
        "step_s_range": [seconds[0], seconds[-1]],
        "tokens_per_s": design.sequences_per_step * design.model.sequence / step_s,
        "peak_memory_bytes": peak_allocated_bytes(device),
        "losses": [steps[0].loss, steps[-1].loss],
    }


def time_host_all_reduce(cluster: ProcessCluster, visible: str | None) -> float:
    """Return the median time in seconds of an all-reduce over gloo by processes that share a GPU. The sum is checked."""
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible  # torch has not looked for GPUs yet
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.calibration.collective_timing import synchronized_time_s
    from meshwave.engine.runtime.device.accelerator import accelerator_device

    device = torch.device("cpu") if visible is None else accelerator_device(0)
    tensor = torch.empty(MESSAGE_BYTES // 4, device=device)
    seconds: list[float] = []
    for _ in range(1 + TURNS):  # the first opens the connections
        tensor.fill_(dist.get_rank() + 1)
        synchronized_time_s(device)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(synchronized_time_s(device) - start)
        assert bool((tensor == cluster.ranks * (cluster.ranks + 1) / 2).all()), "the sum over all processes"
    return statistics.median(seconds[1:])


# ---- text ----


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """Return text lines: the device, the processes that share it, and one line per case."""
    lines = [*_device_lines(figures["device"]), *map(_sharing_line, figures["gloo"])]
    lines.append(f"  {'':<46}{'tokens/s':>10}{'step':>10}{'memory':>10}{'of measured':>13}{'of peak':>9}")
    return [*lines, *(_case_line(case) for case in figures["cases"])]


def _device_lines(device: Mapping[str, Any]) -> list[str]:
    if "failed" in device:
        return [f"  measurement of the device failed: {device['failed']}"]
    rates = ", ".join(f"{quantity(rate, 'FLOP/s')} in {name}" for name, rate in device["matrix_flops"].items())
    ranks = "several ranks per GPU (opt-in)" if device["nccl_takes_several_ranks"] else "one rank per GPU"
    return [
        f"  {device['name']}, {device['software']}: large matrix products reach {rates}",
        f"  a time stamp costs {quantity(device['stamp_s'], 's')}; clock skew to the host "
        f"{quantity(device['clocks_apart_s'], 's')}; NCCL {device['nccl']} supports {ranks}",
    ]


def _sharing_line(each: Mapping[str, Any]) -> str:
    if "failed" in each:
        return f"  all-reduce of processes that share the GPU failed: {each['failed']}"
    speed = quantity(each["bytes_per_s"], "B/s")
    return f"  {each['ranks']} processes share the GPU: all-reduce through the host at {speed}"


def _case_line(case: Mapping[str, Any]) -> str:
    if "failed" in case:
        return f"  {case['name']:<46}failed: {case['failed']}"
    if case.get("out_of_memory"):
        return f"  {case['name']:<46}out of memory"
    measured, peak = (f"{case[key]:.1%}" if key in case else "unknown" for key in ("mfu_of_measured", "mfu_of_peak"))
    step, memory = quantity(case["step_s"], "s"), quantity(case["peak_memory_bytes"], "B")
    return f"  {case['name']:<46}{case['tokens_per_s']:>10,.0f}{step:>10}{memory:>10}{measured:>13}{peak:>9}"


# ---- one piece ----


def main() -> None:
    """Print the figures of one measurement or the names of all measurements, or write the designs of the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("piece", nargs="?", help="default: print the names of all pieces")
    parser.add_argument("--cpu", action="store_true", help="measure a small version on the CPU")
    parser.add_argument(
        "--designs", type=Path, metavar="FOLDER", help="write the designs of all cases, with calibrated costs"
    )
    options = parser.parse_args()
    cases = [case.small_version if options.cpu else case for case in CASES]
    known = benchmark_pieces(cases, NO_GPU if options.cpu else ONE_GPU)
    if options.designs:
        found: Any = _write_designs(cases, options.designs)
    elif options.piece is None:
        found = [*known]
    elif options.piece in known:
        found = result_or_failure(known[options.piece])
    else:
        sys.exit(f"unknown piece {options.piece!r}. {unknown_word_hint(options.piece, known)}")
    print(json.dumps(found, indent=2))


def _write_designs(cases: Sequence[TrainingCase], folder: Path) -> dict[str, str]:
    """Write the design of each case to a file in ``folder`` and return the paths by case name."""
    paths = {}
    for number, case in enumerate(cases):
        document = case.design.model_dump(mode="json")
        path = folder / f"case-{number}.json"
        path.write_text(json.dumps({**document, "cost": {"kind": "calibrated", "profile": PROFILE}}), "utf-8")
        paths[case.name] = str(path)
    return paths


if __name__ == "__main__":
    main()
