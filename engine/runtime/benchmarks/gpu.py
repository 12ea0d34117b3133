"""One GPU measured: what a GPT reaches on it by its size and by what may be chosen, and what the runtime rests on there.

Each case is real training of one rank, by the trainer that every run has, in a process of its own: one that fails, or
asks for more memory than there is, says so and harms no other. The model FLOPs utilisation is given twice: of the rate
that a large matrix product reached on this very device a moment before, and of the data sheet's peak where
:mod:`meshwave.engine.costs.presets` knows the device.

``python -m meshwave.engine.runtime.benchmarks.gpu PIECE`` measures one thing alone and prints it as JSON, for ``scripts/gpu.py``; with
``--cpu`` small, on a machine without a GPU, which shows that all of it can run.
"""

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

from meshwave.engine.costs.model_flops import model_flops
from meshwave.engine.costs.presets import presets
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError, MeshwaveError, nearest
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, run
from meshwave.engine.units import quantity

Say = Callable[[str], None]
Figures = dict[str, Any]

MICROBATCHES = 4
WARM, STEPS = 3, 8
"""Steps that compile, fill caches and are not counted; and those that are."""
PROFILE = "this-machine.json"
"""What ``meshwave calibrate`` keeps."""
ONE_GPU, NO_GPU = Cluster(1, 1, gpus=True), Cluster(1, 1)
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
    vocab: int = 50304
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
                "model": {"kind": "gpt", "vocab": self.vocab, **size},
                "meshes": [{"name": "GPU", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
                "pipeline": {"schedule": "1f1b", "microbatches": MICROBATCHES, "recompute": self.recompute},
                "training": {**training, "steps": WARM + STEPS, "clip_norm": 1.0},
                "cost": {"kind": "unit"},
            }
        )

    @property
    def small(self) -> Case:
        """As it is computed, of a size that a core has done in a moment."""
        return replace(self, layers=2, hidden=128, sequence=32, micro_batch_size=1, vocab=256)


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


def gpu(gpus: int, say: Say = lambda line: None, cases: Sequence[Case] = CASES) -> Figures:
    """Measure the device, then every case on it. What fails is told in its place, and the rest goes on.

    Raises:
        InputError: there is no GPU.
    """
    if not gpus:
        raise InputError("gpu needs an NVIDIA GPU that nvidia-smi lists, and this machine shows none")
    found = {}
    for name, piece in pieces(cases).items():
        say(name)
        found[name] = tried(piece)
    device = found[DEVICE]
    shared = [found[_shared_by(ranks)] for ranks in SHARING]
    return {
        "device": device,
        "gloo": shared,
        "cases": [{**asdict(case), **found[case.name], **utilisation(found[case.name], device)} for case in cases],
    }


DEVICE = "the device and its clock"


def _shared_by(ranks: int) -> str:
    return f"the device shared by {ranks} processes"


def pieces(cases: Sequence[Case] = CASES, cluster: Cluster = ONE_GPU) -> dict[str, Callable[[], Figures]]:
    """Everything that can be measured, by its name."""
    return {
        DEVICE: partial(_measured, cluster),
        **{_shared_by(ranks): partial(_shared, ranks, cluster) for ranks in SHARING},
        **{case.name: partial(_trained, case, cluster) for case in cases},
    }


def tried(piece: Callable[[], Figures]) -> Figures:
    """Its figures; or, where it fails, what it says."""
    try:
        return piece()
    except MeshwaveError as error:
        return {"failed": str(error)}


def utilisation(found: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, float]:
    """Of a case, model FLOPs against what the device does at most, in the precision that the case computes in."""
    if "step_s" not in found or "failed" in device:
        return {}
    done = found["model_flops"] / found["step_s"]
    rates = {
        "mfu_of_measured": device["matrix_flops"].get(found["precision"]),
        "mfu_of_peak": device["peak_flops"] if found["precision"] == "bf16" else None,
    }
    return {name: done / rate for name, rate in rates.items() if rate is not None}


def _measured(cluster: Cluster) -> Figures:
    (found,) = run("meshwave.engine.runtime.benchmarks.gpu:measure", cluster)
    return {**found}


def _shared(ranks: int, cluster: Cluster) -> Figures:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] if cluster.gpus else None
    seconds = run("meshwave.engine.runtime.benchmarks.gpu:sum_through_the_host", Cluster(1, ranks), visible)
    return {"ranks": ranks, "bytes_per_s": MESSAGE_BYTES / max(seconds)}


def _trained(case: Case, cluster: Cluster) -> Figures:
    (found,) = run("meshwave.engine.runtime.benchmarks.gpu:train", cluster, asdict(case))
    flops = model_flops(case.design.model, case.design.sequences_per_step)
    return {"precision": case.precision, **found, "model_flops": flops, "formulas_memory_bytes": _memory(case.design)}


def _memory(design: Design) -> float:
    """What the formulas say that one device holds at most."""
    from meshwave.engine.costs import estimate
    from meshwave.engine.costs.memory import peak_memory
    from meshwave.engine.lowering.lower import lower

    program = lower(design)
    return float(peak_memory(program, estimate(design, program)).total_bytes[0])


# ---- in the processes ----


def measure(cluster: Cluster, _: Any) -> Figures:
    """What the device is and reaches, and how its clock stands to the host's."""
    import torch

    from meshwave.engine.runtime.calibration.collective_timing import device_of
    from meshwave.engine.runtime.calibration.device_timing import matrix_rate

    device = device_of(cluster)
    rates = ("bf16", "fp32") if cluster.gpus else ("fp32",)  # a core without instructions for bf16 takes minutes
    return {
        "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        **(_gpu(device) if cluster.gpus else {"name": "CPU", "peak_flops": None}),
        "matrix_flops": {precision: matrix_rate(precision, device) for precision in rates},
        **_clocks(device),
    }


def _gpu(device: Any) -> Figures:
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
        "peak_flops": peak_of(name),
        "nccl": ".".join(map(str, nccl)),
        "nccl_takes_several_ranks": nccl[:2] >= SEVERAL_RANKS,
        "segments_grow": are_segments_expandable(),
    }


def peak_of(name: str) -> float | None:
    """The peak of the preset that is named after the device, such as ``H200`` in ``NVIDIA H200``; none if none is."""
    words = set(name.replace("-", " ").split())
    known = (preset.cluster.device for preset in presets().values())
    return next((device.peak_flops for device in known if device.name.split("-")[0] in words), None)


def _clocks(device: Any) -> dict[str, float]:
    """What a time stamp costs the host, and how far the GPU's stamps are from the host's."""
    from meshwave.engine.runtime.device.clock import make_clock

    clock, apart = make_clock(device), []
    for _ in range(TURNS * 4):
        clock.begin()
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


def train(cluster: Cluster, argument: Mapping[str, Any]) -> Figures:
    """Train one case; what it took, or that there is not the memory for it."""
    import torch

    from meshwave.engine.costs import layers_per_stage
    from meshwave.engine.lowering.lower import lower
    from meshwave.engine.runtime.calibration.collective_timing import device_of
    from meshwave.engine.runtime.communication.world import World
    from meshwave.engine.runtime.device.accelerator import device_backend
    from meshwave.engine.runtime.device.memory import peak_allocated_bytes, use_expandable_segments
    from meshwave.engine.runtime.execution.job import Job
    from meshwave.engine.runtime.execution.trainer import Trainer

    use_expandable_segments()
    design, device = Case(**argument).design, device_of(cluster)
    job = Job(design, lower(design), layers_per_stage(design))
    try:
        trainer = Trainer(job, World(0, 1, device, device_backend(device) or "gloo", ""))
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
        "peak_memory_bytes": peak_allocated_bytes(device),
        "losses": [taken[0].loss, taken[-1].loss],
    }


def sum_through_the_host(cluster: Cluster, visible: str | None) -> float:
    """Seconds in which tensors of one GPU, or of none, are summed over all processes that share it; the sum is right."""
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible  # nothing has looked for a GPU before
    import torch
    import torch.distributed as dist

    from meshwave.engine.runtime.calibration.collective_timing import now
    from meshwave.engine.runtime.device.accelerator import accelerator_device

    device = torch.device("cpu") if visible is None else accelerator_device(0)
    tensor = torch.empty(MESSAGE_BYTES // 4, device=device)
    taken = []
    for _ in range(1 + TURNS):  # the first opens the connections
        tensor.fill_(dist.get_rank() + 1)
        now(device)  # when that is done
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(now(device) - began)
        assert bool((tensor == cluster.ranks * (cluster.ranks + 1) / 2).all()), "the sum of all"
    return statistics.median(taken[1:])


# ---- in words ----


def to_text(figures: Mapping[str, Any]) -> list[str]:
    lines = [*_of_device(figures["device"]), *map(_of_sharing, figures["gloo"])]
    lines.append(f"  {'':<46}{'tokens/s':>10}{'step':>10}{'memory':>10}{'of measured':>13}{'of peak':>9}")
    return [*lines, *(_row(case) for case in figures["cases"])]


def _of_device(device: Mapping[str, Any]) -> list[str]:
    if "failed" in device:
        return [f"  the device could not be measured: {device['failed']}"]
    rates = ", ".join(f"{quantity(rate, 'FLOP/s')} in {name}" for name, rate in device["matrix_flops"].items())
    several = "several ranks a GPU, where asked for" if device["nccl_takes_several_ranks"] else "one rank a GPU"
    return [
        f"  {device['name']}, {device['software']}: large matrix products reach {rates}",
        f"  a time stamp takes {quantity(device['stamp_s'], 's')}; the GPU's are {quantity(device['clocks_apart_s'], 's')} "
        f"from the host's; NCCL {device['nccl']} takes {several}",
    ]


def _of_sharing(each: Mapping[str, Any]) -> str:
    if "failed" in each:
        return f"  processes that share the GPU failed: {each['failed']}"
    speed = quantity(each["bytes_per_s"], "B/s")
    return f"  {each['ranks']} processes share the GPU: a sum through the host goes at {speed}"


def _row(case: Mapping[str, Any]) -> str:
    if "failed" in case:
        return f"  {case['name']:<46}failed: {case['failed']}"
    if case.get("out_of_memory"):
        return f"  {case['name']:<46}needs more memory than there is"
    measured, peak = (f"{case[of]:.1%}" if of in case else "unknown" for of in ("mfu_of_measured", "mfu_of_peak"))
    step, memory = quantity(case["step_s"], "s"), quantity(case["peak_memory_bytes"], "B")
    return f"  {case['name']:<46}{case['tokens_per_s']:>10,.0f}{step:>10}{memory:>10}{measured:>13}{peak:>9}"


# ---- one piece ----


def main() -> None:
    """Print the figures of a piece, or what pieces there are; or write the designs of the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("piece", nargs="?", help="default: print the names of all")
    parser.add_argument("--cpu", action="store_true", help="small, and on the CPU")
    parser.add_argument(
        "--designs", type=Path, metavar="FOLDER", help="write those of all cases, their costs calibrated"
    )
    options = parser.parse_args()
    cases = [case.small if options.cpu else case for case in CASES]
    known = pieces(cases, NO_GPU if options.cpu else ONE_GPU)
    if options.designs:
        found: Any = _write_designs(cases, options.designs)
    elif options.piece is None:
        found = [*known]
    elif options.piece in known:
        found = tried(known[options.piece])
    else:
        sys.exit(f"there is no piece called {options.piece!r}. {nearest(options.piece, known)}")
    print(json.dumps(found, indent=2))


def _write_designs(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """A file for each case; their names by the cases'."""
    paths = {}
    for number, case in enumerate(cases):
        document = case.design.model_dump(mode="json")
        path = folder / f"case-{number}.json"
        path.write_text(json.dumps({**document, "cost": {"kind": "calibrated", "profile": PROFILE}}), "utf-8")
        paths[case.name] = str(path)
    return paths


if __name__ == "__main__":
    main()
