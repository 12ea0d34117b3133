"""Calibration of this machine: measures all parts of a profile in separate processes and reports progress."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

import numpy as np

from meshwave.engine.costs.line_fits import fit_line, fit_terms
from meshwave.engine.costs.profile import (
    Block,
    BlockSample,
    Fit,
    KeptActivations,
    LinkLine,
    Machine,
    MatrixRate,
    OptimizerLine,
    Pair,
    Phase,
    Profile,
    Term,
)
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.machine import processor_name
from meshwave.engine.runtime.calibration.collective_plan import COLLECTIVE_BYTES, CollectivePlan
from meshwave.engine.runtime.calibration.contention_timing import measure_contention
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster, run_in_cluster

PARTS = ("blocks", "links", "collectives", "contention")
"""Parts of a calibration that can be measured alone. *blocks* includes optimizer, memory and the rates of the device.
"""
BLOCKS_S = 90.0
"""Time for the rounds of blocks in seconds; a few rounds are measured even if they take longer."""
LINK_BYTES = tuple(4**n for n in range(5, 12))  # 1 KiB to 4 MiB
PART_SHARES: Mapping[str, float] = {"blocks": 0.68, "links": 0.08, "collectives": 0.2, "contention": 0.04}
"""Approximate fraction of the duration that each part takes."""
TERMS: Mapping[str, tuple[Term, ...]] = {
    "layer": ("action", "block", "products", "attention", "bytes"),
    "experts": ("block", "products", "attention", "bytes"),
    "joining": ("action", "block", "products", "attention", "bytes"),
    "embedding": ("action", "bytes"),
    "head": ("action", "products", "bytes"),
}
"""Cost terms of each kind of block. A stage has at most one embedding and one head, so their constant is that of the
action."""
ALL_REDUCE_RANKS = (2, 4)
"""Group sizes whose all-reduce is measured in addition to that of all processes."""
DEFAULT_RANKS = 8
BUSY_LOAD = 0.7
"""Load average, in cores, above which a measurement is reported as disturbed."""


class CalibrationProgress(NamedTuple):
    """Completed fraction of a calibration, and a description of the current measurement."""

    share: float
    message: str


ProgressListener = Callable[[CalibrationProgress], None]
"""Callback for progress. An exception that it raises ends the calibration and its processes."""


@dataclass(frozen=True)
class CalibrationOptions:
    """Options of a calibration."""

    cluster: ProcessCluster
    """Processes that measure links, collectives and contention."""
    layouts: Sequence[tuple[int, int]]
    """Pairs of ``mp`` and ``esp`` whose collectives are measured."""
    parts: Sequence[str] = PARTS
    sizes: Sequence[int] = COLLECTIVE_BYTES
    """Buffer sizes of collectives in bytes."""
    rounds: int = 7
    """Number of rounds in which links, collectives and contention are measured."""
    precisions: Sequence[str] | None = None
    """Precisions of the measured blocks; None selects those suited to the device."""
    has_experts: bool = False
    """True to measure blocks with experts as well."""
    uses_gpu: bool = False
    """True to measure blocks on a GPU."""
    blocks_s: float = BLOCKS_S
    stages: Sequence[Sequence[Any]] | None = None
    """Fields of :class:`.stage_sizes.StageSize` for each stage to measure; None selects the sizes for the device."""
    message_bytes: int | None = None
    """Size in bytes of the messages that measure contention, a multiple of 4; None selects a sufficient size."""
    all_reduce_ranks: Sequence[int] = ()
    """Sizes of smaller groups within a node whose all-reduce is measured."""


def default_options() -> CalibrationOptions:
    """Return the options for calibrating this machine without emulated links."""
    cluster = gpu_cluster(ProcessCluster(1, DEFAULT_RANKS))
    layouts = [(cluster.ranks, cluster.ranks)]
    return CalibrationOptions(cluster, layouts, uses_gpu=count_gpus() > 0, all_reduce_ranks=ALL_REDUCE_RANKS)


def gpu_cluster(cluster: ProcessCluster) -> ProcessCluster:
    """Return a cluster with one GPU per process if this machine has several GPUs; otherwise ``cluster``.

    It has as many processes as ``cluster``, but at most the largest power of two that does not exceed the number of
    GPUs. Emulated clusters use no GPUs.
    """
    gpus = count_gpus()
    if cluster.is_emulated or cluster.nodes > 1 or gpus < 2:
        return cluster
    return ProcessCluster(1, min(cluster.ranks, 1 << gpus.bit_length() - 1), uses_gpus=True)


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs visible to child processes, without importing torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed if visible is None else min(listed, len([name for name in visible.split(",") if name]))


def describe_machine(cluster: ProcessCluster) -> Machine:
    """Return a description of this machine and its load before the measurements."""
    return Machine(
        ranks=cluster.ranks,
        ranks_per_node=cluster.ranks_per_node,
        backend="nccl" if cluster.uses_gpus else "gloo",
        network=str(cluster),
        cores=os.cpu_count(),
        processor=processor_name(),
        load_before=os.getloadavg()[0],
        software=f"torch {metadata.version('torch')}, {sys.platform}",
    )


def calibrate_machine(options: CalibrationOptions, on_progress: ProgressListener = lambda progress: None) -> Profile:
    """Measure all requested parts of a profile, one after the other.

    Raises:
        InputError: a part cannot be measured on this machine.
        RunError: torch is not installed, or a process failed.
    """
    if len({*options.parts} - {*PARTS}) or not options.parts:
        params = {"parts": ", ".join(options.parts) or "none", "known": ", ".join(PARTS)}
        raise Refusal("unknown_parts", params)
    if "collectives" in options.parts:
        CollectivePlan.for_layouts(options.cluster.ranks, options.layouts, options.sizes)  # rejects invalid layouts
    if find_spec("torch") is None:
        raise RunRefusal("torch_not_installed")
    machine = describe_machine(options.cluster).model_copy(update={"made_s": time.time()})
    load = machine.load_before or 0.0
    if load > BUSY_LOAD:
        on_progress(
            CalibrationProgress(0.0, f"other processes use {load:.1f} cores, so measured times may be too long")
        )
    profile = Profile(machine=machine)
    whole, done = sum(PART_SHARES[part] for part in options.parts), 0.0
    for part in options.parts:
        on_progress(CalibrationProgress(done / whole, f"measuring {part}"))
        on_line = _line_listener(on_progress, done / whole, PART_SHARES[part] / whole)
        profile = MEASUREMENTS[part](options, profile, on_line)
        done += PART_SHARES[part]
    on_progress(CalibrationProgress(1.0, "measured"))
    return profile


def _line_listener(on_progress: ProgressListener, start: float, share: float) -> Callable[[str], None]:
    """Return a callback for the output lines of a measurement that reports progress after each line."""
    last = CalibrationProgress(start, "starting the processes")

    def on_line(line: str) -> None:
        nonlocal last
        if line.startswith("share "):
            done, _, message = line.removeprefix("share ").partition(" ")
            last = CalibrationProgress(start + share * float(done), message)
        on_progress(last)

    return on_line


# ---- parts ----


OnLine = Callable[[str], None]


def _measure_blocks(options: CalibrationOptions, profile: Profile, on_line: OnLine) -> Profile:
    cluster = ProcessCluster(1, 1, uses_gpus=options.uses_gpu)
    plan = {
        "precisions": options.precisions,
        "sizes": options.stages,
        "experts": options.has_experts,
        "seconds": options.blocks_s,
    }
    function = "meshwave.engine.runtime.calibration.stage_timing:measure_stages"
    found = run_in_cluster(function, cluster, plan, on_line)[0]
    return profile.model_copy(
        update={
            "machine": profile.machine.model_copy(update={"device": found["device"]}),
            "matrix": tuple(MatrixRate(**each) for each in found["matrix"]),
            "links": (*profile.links, fit_link("same_device", found["copies"])),
            "blocks": tuple(fit_blocks(found["blocks"])),
            "optimizer": tuple(fit_optimizer(**each) for each in found["optimizer"]),
            "memory": tuple(KeptActivations.model_validate(each, strict=False) for each in found["memory"]),
        }
    )


def _measure_links(options: CalibrationOptions, profile: Profile, on_line: OnLine) -> Profile:
    cluster = options.cluster
    pairs: dict[Pair, tuple[int, int]] = {}
    if cluster.ranks_per_node > 1:
        pairs["same_node"] = (0, 1)
    if cluster.nodes > 1:
        pairs["across_nodes"] = (cluster.ranks_per_node - 1, cluster.ranks_per_node)
    if cluster.nodes == 1 and cluster.ranks > 2:  # others are not needed
        cluster = ProcessCluster(1, 2, uses_gpus=cluster.uses_gpus)
    plan = {"pairs": list(pairs.values()), "sizes": LINK_BYTES, "rounds": options.rounds}
    function = "meshwave.engine.runtime.calibration.link_timing:measure_links"
    found = run_in_cluster(function, cluster, plan, on_line)[0]
    lines = [
        fit_link(pair, [*zip(map(float, LINK_BYTES), seconds, strict=True)])
        for pair, seconds in zip(pairs, found, strict=True)
    ]
    return profile.model_copy(update={"links": (*profile.links, *lines)})


def _measure_collectives(options: CalibrationOptions, profile: Profile, on_line: OnLine) -> Profile:
    """Measure the planned collectives, and the all-reduce of smaller groups.

    Each smaller group is measured in a cluster of its own, because several groups at once would share the machine.
    """
    cluster = options.cluster
    smaller = () if cluster.is_emulated else [size for size in options.all_reduce_ranks if size < cluster.ranks]
    plans = [(cluster, CollectivePlan.for_layouts(cluster.ranks, options.layouts, options.sizes))]
    plans += [
        (ProcessCluster(1, size, uses_gpus=cluster.uses_gpus), _all_reduce_plan(size, options.sizes))
        for size in smaller
    ]
    found = [
        _run_plan(options, profile, each, plan, _round_listener(on_line, number, len(plans)))
        for number, (each, plan) in enumerate(plans)
    ]
    collectives = tuple(line for each in found for line in each.collectives)
    return profile.model_copy(update={"rates": found[0].rates, "collectives": collectives})


def _measure_contention(options: CalibrationOptions, profile: Profile, on_line: OnLine) -> Profile:
    on_round = _round_listener(on_line, 0, 1, "contention")
    found = measure_contention(options.cluster, options.rounds, options.message_bytes, on_round)
    return profile.model_copy(update={"contention": found})


def _round_listener(on_line: OnLine, number: int, count: int, part: str = "collectives") -> OnLine:
    """Return a callback for the output lines of measurement ``number`` of ``count`` that reports the total progress."""

    def on_round(line: str) -> None:
        words = line.split()
        done = int(words[1]) / int(words[3]) if words[:1] == ["round"] else 0.0
        on_line(f"share {(number + done) / count:.3f} {part}, {line}" if done else line)

    return on_round


def _all_reduce_plan(ranks: int, sizes: Sequence[int]) -> CollectivePlan:
    plan = CollectivePlan.for_layouts(ranks, [(ranks, ranks)], sizes, only={("all_reduce", "mp")})
    cases = {case: kinds for case, kinds in plan.cases.items() if case.collective == "all_reduce"}
    return CollectivePlan(cases, plan.sizes)


def _run_plan(
    options: CalibrationOptions, profile: Profile, cluster: ProcessCluster, plan: CollectivePlan, on_line: OnLine
) -> Profile:
    arguments = {**plan.arguments, "rounds": options.rounds}
    function = "meshwave.engine.runtime.calibration.collective_timing:measure_collectives"
    return plan.to_profile(cluster, profile.machine, run_in_cluster(function, cluster, arguments, on_line)[0])


MEASUREMENTS: Mapping[str, Callable[[CalibrationOptions, Profile, OnLine], Profile]] = {
    "blocks": _measure_blocks,
    "links": _measure_links,
    "collectives": _measure_collectives,
    "contention": _measure_contention,
}


# ---- fitted lines ----


def fit_blocks(found: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Yield each kind of block in each precision with its samples and the lines fitted to them.

    A layer that joins a skip connection is a layer with one more matrix product, so its lines are fitted to the samples
    of both kinds.
    """
    samples_by_kind = {
        (each["precision"], each["kind"]): [BlockSample.model_validate(one, strict=False) for one in each["samples"]]
        for each in found
    }
    for (precision, kind), samples in samples_by_kind.items():
        layers = samples_by_kind.get((precision, "layer"), []) if kind == "joining" else []
        fits = {phase: fit_phase(kind, phase, [*samples, *layers]) for phase in get_args(Phase)}
        yield Block(kind=kind, precision=precision, fits=fits, samples=tuple(samples))


def fit_phase(kind: str, phase: Phase, samples: Sequence[BlockSample]) -> Fit:
    """Fit the cost terms of a phase to all samples of that phase."""
    terms = TERMS[kind]
    rows = [sample.phases[phase].terms(sample.blocks) for sample in samples if phase in sample.phases]
    seconds = np.array([sample.phases[phase].seconds for sample in samples if phase in sample.phases])
    coefficients, r2 = fit_terms(np.array([[row[term] for term in terms] for row in rows]), seconds)
    return Fit(per=dict(zip(terms, coefficients, strict=True)), r2=r2)


def fit_link(pair: Pair, samples: Sequence[Sequence[float]]) -> LinkLine:
    """Fit latency and seconds per byte to samples of message size in bytes and time in seconds."""
    points = tuple((float(size), float(seconds)) for size, seconds in samples)
    line = fit_line(points)
    return LinkLine(pair=pair, alpha_s=line.alpha_s, beta_s_per_byte=line.beta_s_per_byte, r2=line.r2, samples=points)


def fit_optimizer(optimizer: Any, precision: Any, clipped: bool, samples: Sequence[Sequence[float]]) -> OptimizerLine:
    """Fit a constant and seconds per parameter to samples of parameter count and time in seconds."""
    points = tuple((float(parameters), float(seconds)) for parameters, seconds in samples)
    line = fit_line(points)
    return OptimizerLine(
        optimizer=optimizer,
        precision=precision,
        clipped=clipped,
        alpha_s=line.alpha_s,
        s_per_parameter=line.beta_s_per_byte,
        r2=line.r2,
        samples=points,
    )
