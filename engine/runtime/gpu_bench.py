"""One GPU measured: what a GPT reaches on it by its size and by what may be chosen, and what the runtime rests on there.

Each case is real training of one rank, by the trainer that every run has, in a process of its own: a case that asks
for more memory than there is says so and harms no other. The model FLOPs utilisation is given twice: of the rate that
a large matrix product reached on this very device a moment before, and of the data sheet's peak where
:mod:`engine.cost.presets` knows the device.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.cost.flops import model_flops
from engine.cost.presets import presets
from engine.design import Design, parse_design
from engine.errors import InputError
from engine.runtime.shaped import Cluster, run
from engine.units import quantity

Say = Callable[[str], None]

MICROBATCHES = 4
WARM, STEPS = 3, 8
"""Steps that compile, fill caches and are not counted; and those that are."""
ONE_GPU = Cluster(1, 1, gpus=True)
SHARING = (2, 4, 8)
"""Processes that share the GPU, for gloo takes its tensors through the host."""
MESSAGE_BYTES, TURNS = 64 * 2**20, 5
STAMPS = 1000
SEVERAL_RANKS = (2, 30)
"""NCCL from this version on lets several ranks have one GPU, where ``NCCL_MULTI_RANK_GPU_ENABLE`` is 1."""


@dataclass(frozen=True)
class Case:
    """One training: a GPT, and how it is computed."""

    name: str
    layers: int = 24
    hidden: int = 2048
    sequence: int = 2048
    micro_batch_size: int = 4
    precision: Literal["bf16", "fp32"] = "bf16"
    recompute: Literal["none", "full"] = "none"
    compile: bool = False

    @property
    def design(self) -> Design:
        """On one device; the rates of its cluster play no part in a run."""
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
                "model": {"kind": "gpt", "vocab": 50304, **size},
                "meshes": [{"name": "GPU", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
                "pipeline": {"schedule": "1f1b", "microbatches": MICROBATCHES, "recompute": self.recompute},
                "training": {**training, "steps": WARM + STEPS, "clip_norm": 1.0},
                "cost": {"kind": "unit"},
            }
        )


LARGE = "1.3 B parameters"
"""The model that the others are held against: GPT-3 XL (Brown et al., arXiv:2005.14165, table 2.1) with heads of 128."""
CASES = (
    Case(LARGE),
    Case(f"{LARGE}, compiled", compile=True),
    Case(f"{LARGE}, recomputed", recompute="full"),
    Case(f"{LARGE}, compiled and recomputed", recompute="full", compile=True),
    Case(f"{LARGE}, microbatches of 1", micro_batch_size=1),
    Case(f"{LARGE}, compiled, microbatches of 8", micro_batch_size=8, compile=True),
    Case("0.36 B parameters", hidden=1024),
    Case("0.36 B parameters, compiled", hidden=1024, compile=True),
    Case("0.12 B parameters", layers=12, hidden=768),
    Case("0.12 B parameters in fp32", layers=12, hidden=768, precision="fp32"),
)


def gpu(gpus: int, say: Say = lambda line: None, cases: Sequence[Case] = CASES) -> dict[str, Any]:
    """Measure the device, then every case on it.

    Raises:
        InputError: there is no GPU.
    """
    if not gpus:
        raise InputError("gpu needs an NVIDIA GPU that nvidia-smi lists, and this machine shows none")
    say("the device, its clock, and messages through the host")
    (device,) = run("engine.runtime.gpu_bench:measure", ONE_GPU)
    figures: dict[str, Any] = {"device": device, "gloo": [_shared(ranks) for ranks in SHARING], "cases": []}
    for case in cases:
        say(case.name)
        (found,) = run("engine.runtime.gpu_bench:train", ONE_GPU, asdict(case))
        figures["cases"].append({**asdict(case), **found, **_utilisation(case, found, device)})
    return figures


def _utilisation(case: Case, found: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, float]:
    """Model FLOPs against what the device does at most, in the precision that the case computes in."""
    if "step_s" not in found:
        return {}
    done = model_flops(case.design.model, case.design.sequences_per_step) / found["step_s"]
    measured = {"mfu_of_measured": done / device["matrix_flops"][case.precision]}
    peak = device["peak_flops"] if case.precision == "bf16" else None
    return measured if peak is None else {**measured, "mfu_of_peak": done / peak}


def _shared(ranks: int) -> dict[str, float]:
    argument = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    seconds = run("engine.runtime.gpu_bench:sum_through_the_host", Cluster(1, ranks), argument)
    return {"ranks": ranks, "bytes_per_s": MESSAGE_BYTES / max(seconds)}


# ---- in the processes ----


def measure(cluster: Cluster, _: Any) -> dict[str, Any]:
    """What the device is and reaches, and how its clock stands to the host's."""
    import torch

    from engine.runtime.calibration.stages import matrix_rate

    device = torch.device("cuda")
    name, rates = torch.cuda.get_device_name(device), ("bf16", "fp32")
    nccl: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {
        "name": name,
        "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory,
        "matrix_flops": {precision: matrix_rate(precision, device) for precision in rates},
        "peak_flops": peak_of(name),
        "nccl": ".".join(map(str, nccl)),
        "nccl_takes_several_ranks": nccl[:2] >= SEVERAL_RANKS,
        **_clocks(device),
    }


def peak_of(name: str) -> float | None:
    """The peak of the preset that is named after the device, such as ``H200`` in ``NVIDIA H200``; none if none is."""
    words = set(name.replace("-", " ").split())
    known = (preset.cluster.device for preset in presets().values())
    return next((device.peak_flops for device in known if device.name.split("-")[0] in words), None)


def _clocks(device: Any) -> dict[str, float]:
    """What a time stamp costs the host, and how far the GPU's stamps are from the host's."""
    import torch

    from engine.runtime.clock import clock_of

    clock, apart = clock_of(device), []
    for _ in range(TURNS * 4):
        clock.begin()
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
        now, stamp = time.perf_counter_ns(), clock.stamp()
        apart.append(abs(int(clock.nanoseconds([stamp])[0]) - now))
    clock.begin()
    for _ in range(STAMPS):  # the first ones are made, later ones used again
        clock.stamp()
    clock.begin()
    began = time.perf_counter()
    for _ in range(STAMPS):
        clock.stamp()
    return {"stamp_s": (time.perf_counter() - began) / STAMPS, "clocks_apart_s": statistics.median(apart) / 1e9}


def train(cluster: Cluster, argument: Mapping[str, Any]) -> dict[str, Any]:
    """Train one case; what it took, or that there is not the memory for it."""
    import torch

    from engine.cost import layers_per_stage
    from engine.lowering import lower
    from engine.runtime.job import Job
    from engine.runtime.memory import grow_in_segments
    from engine.runtime.trainer import Trainer
    from engine.runtime.world import World

    grow_in_segments()
    design = Case(**argument).design
    device = torch.device("cuda", 0)
    job = Job(design, lower(design), layers_per_stage(design))
    try:
        trainer = Trainer(job, World(0, 1, device, "nccl", ""))
        taken = [trainer.step(number) for number in range(WARM + STEPS)]
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    seconds = sorted(step.seconds for step in taken[WARM:])
    step_s = statistics.median(seconds)
    return {
        "parameters": sum(parameter.numel() for parameter in trainer.parameters().values()),
        "first_step_s": taken[0].seconds,
        "step_s": step_s,
        "step_s_range": [seconds[0], seconds[-1]],
        "tokens_per_s": design.sequences_per_step * design.model.sequence / step_s,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device),
        "losses": [taken[0].loss, taken[-1].loss],
    }


def sum_through_the_host(cluster: Cluster, visible: str) -> float:
    """Seconds in which tensors of one GPU are summed over all processes that share it; the sum is right."""
    os.environ["CUDA_VISIBLE_DEVICES"] = visible  # nothing has looked for a GPU before
    import torch
    import torch.distributed as dist

    tensor = torch.empty(MESSAGE_BYTES // 4, device="cuda")
    taken = []
    for _ in range(1 + TURNS):  # the first opens the connections
        tensor.fill_(dist.get_rank() + 1)
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
        assert bool((tensor == cluster.ranks * (cluster.ranks + 1) / 2).all()), "the sum of all"
    return statistics.median(taken[1:])


# ---- in words ----


def to_text(figures: Mapping[str, Any]) -> list[str]:
    device = figures["device"]
    rates = ", ".join(f"{quantity(rate, 'FLOP/s')} in {name}" for name, rate in device["matrix_flops"].items())
    several = "several ranks a GPU, where asked for" if device["nccl_takes_several_ranks"] else "one rank a GPU"
    lines = [
        f"  {device['name']}, {device['software']}: large matrix products reach {rates}",
        f"  a time stamp takes {quantity(device['stamp_s'], 's')}; the GPU's are {quantity(device['clocks_apart_s'], 's')} "
        f"from the host's; NCCL {device['nccl']} takes {several}",
        *(
            f"  {each['ranks']} processes share the GPU: a sum through the host goes at {quantity(each['bytes_per_s'], 'B/s')}"
            for each in figures["gloo"]
        ),
        f"  {'':<46}{'tokens/s':>10}{'step':>10}{'memory':>10}{'of measured':>13}{'of peak':>9}",
    ]
    return [*lines, *(_row(case) for case in figures["cases"])]


def _row(case: Mapping[str, Any]) -> str:
    if case.get("out_of_memory"):
        return f"  {case['name']:<46}needs more memory than there is"
    peak = f"{case['mfu_of_peak']:.1%}" if "mfu_of_peak" in case else "unknown"
    step, memory = quantity(case["step_s"], "s"), quantity(case["peak_memory_bytes"], "B")
    return f"  {case['name']:<46}{case['tokens_per_s']:>10,.0f}{step:>10}{memory:>10}{case['mfu_of_measured']:>13.1%}{peak:>9}"
