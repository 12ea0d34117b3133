"""Everything that a profile holds, measured part by part in processes that end with it, with progress."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

import numpy as np

from meshwave.engine.costs.line_fits import fit, fit_line
from meshwave.engine.costs.profile import (
    Block,
    BlockSample,
    Fit,
    Kept,
    LinkLine,
    MatrixRate,
    OptimizerLine,
    Pair,
    Phase,
    Profile,
    Term,
)
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.calibration.collectives import BUSY, SIZES, Plan, machine_of
from meshwave.engine.runtime.calibration.contention_timing import measure_contention
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster, run

PARTS = ("blocks", "links", "collectives", "contention")
"""What can be measured on its own: *blocks* with optimizer, memory and the device's rates."""
SECONDS = 90.0
"""That blocks are measured in, unless a round takes too long for that."""
LINK_SIZES = tuple(4**n for n in range(5, 12))  # 1 KiB to 4 MiB
SHARES: Mapping[str, float] = {"blocks": 0.68, "links": 0.08, "collectives": 0.2, "contention": 0.04}
"""Of the time that each part takes."""
TERMS: Mapping[str, tuple[Term, ...]] = {
    "layer": ("action", "block", "products", "attention", "bytes"),
    "experts": ("block", "products", "attention", "bytes"),
    "joining": ("action", "block", "products", "attention", "bytes"),
    "embedding": ("action", "bytes"),
    "head": ("action", "products", "bytes"),
}
"""What a kind of block is priced by; the ends of a model come once a stage, so that their constant is the action's."""


ALL_REDUCED = (2, 4)
"""Sizes of groups whose all-reduce is measured besides that of all processes."""
RANKS = 8


class Told(NamedTuple):
    """How far a calibration is."""

    share: float
    words: str


Heard = Callable[[Told], None]
"""Hears of progress; what it raises ends the calibration, and the processes with it."""


@dataclass(frozen=True)
class Wanted:
    """What to measure."""

    cluster: Cluster  # of links and collectives
    layouts: Sequence[tuple[int, int]]  # of collectives; see Plan.of
    parts: Sequence[str] = PARTS
    sizes: Sequence[int] = SIZES
    """Of collectives, in bytes."""
    rounds: int = 7
    """Of links, collectives and contention."""
    precisions: Sequence[str] | None = None
    """Null: those that the device is for."""
    experts: bool = False
    on_gpu: bool = False
    """Whether blocks are measured on a GPU."""
    seconds: float = SECONDS
    stages: Sequence[Sequence[Any]] | None = None
    """Of blocks, as :class:`meshwave.engine.runtime.calibration.stage_sizes.Size` has them; null: those for the device."""
    message_bytes: int | None = None
    """Of a message whose contention is measured, a multiple of 4; null: one that takes long enough on these links."""
    all_reduced: Sequence[int] = ()
    """Sizes of smaller groups inside a node of which the all-reduce alone is measured."""


def usual() -> Wanted:
    """Everything, on this machine as it is."""
    cluster = on_gpus(Cluster(1, RANKS))
    return Wanted(cluster, [(cluster.ranks, cluster.ranks)], on_gpu=gpus() > 0, all_reduced=ALL_REDUCED)


def on_gpus(cluster: Cluster) -> Cluster:
    """The same with a GPU a process, fewer of them where there are not as many; one GPU has nobody to talk to."""
    found = gpus()
    if cluster.is_shaped or cluster.nodes > 1 or found < 2:
        return cluster
    ranks = min(cluster.ranks, 1 << found.bit_length() - 1)
    return Cluster(1, ranks, gpus=True)


def gpus() -> int:
    """How many GPUs processes would see, asked without torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed if visible is None else min(listed, len([name for name in visible.split(",") if name]))


def calibrate_machine(wanted: Wanted, heard: Heard = lambda told: None) -> Profile:
    """Measure part after part.

    Raises:
        InputError: a part cannot be measured here.
        RunError: there is no torch, or a process failed.
    """
    if len({*wanted.parts} - {*PARTS}) or not wanted.parts:
        raise InputError(f"there are the parts {', '.join(PARTS)}, not {', '.join(wanted.parts) or 'none'}")
    if "collectives" in wanted.parts:
        Plan.of(wanted.cluster.ranks, wanted.layouts, wanted.sizes)  # what cannot be is refused before anything runs
    if find_spec("torch") is None:
        raise RunError("measuring needs torch, which is not installed: pip install torch (see meshwave doctor)")
    machine = machine_of(wanted.cluster).model_copy(update={"made_s": time.time()})
    busy = machine.load_before or 0.0
    if busy > BUSY:
        heard(Told(0.0, f"others' work wants {busy:.1f} cores: all will seem slower than it is"))
    profile = Profile(machine=machine)
    whole, done = sum(SHARES[part] for part in wanted.parts), 0.0
    for part in wanted.parts:
        heard(Told(done / whole, f"measuring {part}"))
        profile = MEASURE[part](wanted, profile, _within(heard, done / whole, SHARES[part] / whole))
        done += SHARES[part]
    heard(Told(1.0, "measured"))
    return profile


def _within(heard: Heard, start: float, share: float) -> Callable[[str], None]:
    """Hears the lines of a part's processes: how far they are, or just that they are on the way."""
    last = Told(start, "starting the processes")

    def say(line: str) -> None:
        nonlocal last
        if line.startswith("share "):
            done, _, words = line.removeprefix("share ").partition(" ")
            last = Told(start + share * float(done), words)
        heard(last)

    return say


# ---- parts ----


def _blocks(wanted: Wanted, profile: Profile, say: Callable[[str], None]) -> Profile:
    cluster = Cluster(1, 1, gpus=wanted.on_gpu)
    plan = {
        "precisions": wanted.precisions,
        "sizes": wanted.stages,
        "experts": wanted.experts,
        "seconds": wanted.seconds,
    }
    found = run("meshwave.engine.runtime.calibration.stage_timing:measure", cluster, plan, say)[0]
    return profile.model_copy(
        update={
            "machine": profile.machine.model_copy(update={"device": found["device"]}),
            "matrix": tuple(MatrixRate(**each) for each in found["matrix"]),
            "links": (*profile.links, link_line("same_device", found["copies"])),
            "blocks": tuple(blocks_of(found["blocks"])),
            "optimizer": tuple(optimizer_line(**each) for each in found["optimizer"]),
            "memory": tuple(Kept.model_validate(each, strict=False) for each in found["memory"]),
        }
    )


def _links(wanted: Wanted, profile: Profile, say: Callable[[str], None]) -> Profile:
    cluster = wanted.cluster
    pairs: dict[Pair, tuple[int, int]] = {}
    if cluster.ranks_per_node > 1:
        pairs["same_node"] = (0, 1)
    if cluster.nodes > 1:
        pairs["across_nodes"] = (cluster.ranks_per_node - 1, cluster.ranks_per_node)
    if cluster.nodes == 1 and cluster.ranks > 2:  # the others would only wait
        cluster = Cluster(1, 2, gpus=cluster.gpus)
    plan = {"pairs": list(pairs.values()), "sizes": LINK_SIZES, "rounds": wanted.rounds}
    found = run("meshwave.engine.runtime.calibration.link_timing:measure", cluster, plan, say)[0]
    lines = [
        link_line(pair, [*zip(map(float, LINK_SIZES), seconds, strict=True)])
        for pair, seconds in zip(pairs, found, strict=True)
    ]
    return profile.model_copy(update={"links": (*profile.links, *lines)})


def _collectives(wanted: Wanted, profile: Profile, say: Callable[[str], None]) -> Profile:
    """Those that are asked for, and the all-reduce of smaller groups, each in as many processes as it has: several
    groups at once would share what one has to itself."""
    more = () if wanted.cluster.is_shaped else wanted.all_reduced
    alone = [Cluster(1, size, gpus=wanted.cluster.gpus) for size in more if size < wanted.cluster.ranks]
    plans = [(wanted.cluster, Plan.of(wanted.cluster.ranks, wanted.layouts, wanted.sizes))]
    plans += [(cluster, _all_reduce_of(cluster.ranks, wanted.sizes)) for cluster in alone]
    found = [
        _played(wanted, profile, each, plan, _counted(say, number, len(plans)))
        for number, (each, plan) in enumerate(plans)
    ]
    together = tuple(line for each in found for line in each.collectives)
    return profile.model_copy(update={"rates": found[0].rates, "collectives": together})


def _contention(wanted: Wanted, profile: Profile, say: Callable[[str], None]) -> Profile:
    heard = _counted(say, 0, 1, "contention")
    found = measure_contention(wanted.cluster, wanted.rounds, wanted.message_bytes, heard)
    return profile.model_copy(update={"contention": found})


def _counted(say: Callable[[str], None], number: int, of: int, part: str = "collectives") -> Callable[[str], None]:
    """Hears the rounds of one of several plays as a share of all of them."""

    def hear(line: str) -> None:
        words = line.split()
        done = int(words[1]) / int(words[3]) if words[:1] == ["round"] else 0.0
        say(f"share {(number + done) / of:.3f} {part}, {line}" if done else line)

    return hear


def _all_reduce_of(ranks: int, sizes: Sequence[int]) -> Plan:
    plan = Plan.of(ranks, [(ranks, ranks)], sizes, only={("all_reduce", "mp")})
    return Plan({case: kinds for case, kinds in plan.cases.items() if case.collective == "all_reduce"}, plan.sizes)


def _played(wanted: Wanted, profile: Profile, cluster: Cluster, plan: Plan, say: Callable[[str], None]) -> Profile:
    told = {**plan.told, "rounds": wanted.rounds}
    seconds = run("meshwave.engine.runtime.calibration.collective_timing:measure", cluster, told, say)[0]
    return plan.profile(cluster, profile.machine, seconds)


MEASURE: Mapping[str, Callable[[Wanted, Profile, Callable[[str], None]], Profile]] = {
    "blocks": _blocks,
    "links": _links,
    "collectives": _collectives,
    "contention": _contention,
}


# ---- lines ----


def blocks_of(found: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Each kind of block of each precision, its samples with the lines through them.

    A layer that a skip connection ends in is a layer with one more product, so that its lines go through the
    samples of both.
    """
    read = {
        (each["precision"], each["kind"]): [BlockSample.model_validate(one, strict=False) for one in each["samples"]]
        for each in found
    }
    for (precision, kind), samples in read.items():
        alike = read.get((precision, "layer"), []) if kind == "joining" else []
        fits = {phase: fit_of(kind, phase, [*samples, *alike]) for phase in get_args(Phase)}
        yield Block(kind=kind, precision=precision, fits=fits, samples=tuple(samples))


def fit_of(kind: str, phase: Phase, samples: Sequence[BlockSample]) -> Fit:
    """The line of a phase through all samples that have it."""
    terms = TERMS[kind]
    rows = [sample.phases[phase].terms(sample.blocks) for sample in samples if phase in sample.phases]
    seconds = np.array([sample.phases[phase].seconds for sample in samples if phase in sample.phases])
    per, r2 = fit(np.array([[row[term] for term in terms] for row in rows]), seconds)
    return Fit(per=dict(zip(terms, per, strict=True)), r2=r2)


def link_line(pair: Pair, samples: Sequence[Sequence[float]]) -> LinkLine:
    points = tuple((float(size), float(seconds)) for size, seconds in samples)
    line = fit_line(points)
    return LinkLine(pair=pair, alpha_s=line.alpha_s, beta_s_per_byte=line.beta_s_per_byte, r2=line.r2, samples=points)


def optimizer_line(optimizer: Any, precision: Any, clipped: bool, samples: Sequence[Sequence[float]]) -> OptimizerLine:
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
