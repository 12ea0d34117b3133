"""How long stages take, and what they keep: the runtime's own, one process, all sizes in turns.

Each stage consists of blocks of one kind alone. Its microbatches go forward one after the other and then back,
as in a schedule, so that what is kept of one has left the caches when its backward comes. Every round plays
all stages in all ways, so that whatever else the machine does meets all of them alike; medians count.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from meshwave.engine.costs import operators as flops
from meshwave.engine.costs.device_sizes import workload
from meshwave.engine.costs.expert_blocks import expert_block
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.costs.profile import BlockKind, BlockSample, Phase
from meshwave.engine.costs.profile_prices import PHASES, timed
from meshwave.engine.document import Design
from meshwave.engine.runtime.calibration.device_timing import copies, matrix_rate, optimizer_samples
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster
from meshwave.engine.runtime.calibration.stage_sizes import (
    ACCELERATOR_EXPERTS,
    ACCELERATOR_SIZES,
    CPU_EXPERTS,
    CPU_SIZES,
    MICROBATCHES,
    Size,
    design_of,
)
from meshwave.engine.runtime.device.accelerator import accelerator_device, device_name, is_accelerator
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.memory import AllocationCount, keep_freed_memory
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.modules.deferred_gradients import compute_deferred

WARM_UP = 1  # rounds that do not count
LEAST_ROUNDS, MOST_ROUNDS = 2, 15
Way = Literal["whole", "split", "recomputed"]
WAYS: tuple[Way, ...] = ("whole", "split", "recomputed")


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks, optimizer, memory and matrix rate of this process's device, as the sections of a profile.

    ``plan`` has ``precisions`` (null: those that the device is for), ``sizes`` (null: those for the device),
    whether ``experts`` are asked for, and the ``seconds`` that the rounds may take.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # as a process of a run has
    keep_freed_memory()
    device = accelerator_device(0) if cluster.gpus else torch.device("cpu")
    on_gpu = is_accelerator(device)
    precisions = plan["precisions"] or (["fp32", "bf16"] if on_gpu else ["fp32"])
    given = (
        [Size(*each) for each in plan["sizes"]] if plan["sizes"] else [*(ACCELERATOR_SIZES if on_gpu else CPU_SIZES)]
    )
    if plan["experts"]:
        given += ACCELERATOR_EXPERTS if on_gpu else CPU_EXPERTS
    print("share 0.000 the device's rates and the optimizer", flush=True)
    matrix = [{"precision": precision, "flops": matrix_rate(precision, device)} for precision in precisions]
    copied = list(copies(device))
    updates = [line for precision in precisions for line in optimizer_samples(precision, device)]
    blocks, kept = [], []
    for number, precision in enumerate(precisions):
        say = partial(_say, precision=precision, number=number, of=len(precisions))
        found = measured_blocks(given, precision, device, plan["seconds"] / len(precisions), say)
        for kind, samples in found.samples.items():
            told = [sample.model_dump(mode="json", exclude_none=True) for sample in samples]
            blocks.append({"kind": kind, "precision": precision, "samples": told})
        kept += [{"kind": kind, "precision": precision, "samples": bytes} for kind, bytes in found.kept.items()]
    return {
        "device": device_name(device),
        "matrix": matrix,
        "copies": copied,
        "optimizer": updates,
        "blocks": blocks,
        "memory": kept,
    }


def _say(rounds: int, share: float, precision: str, number: int, of: int) -> None:
    print(f"share {(number + share) / of:.3f} blocks in {precision}, round {rounds}", flush=True)


# ---- blocks ----


@dataclass(frozen=True)
class Blocks:
    samples: Mapping[BlockKind, list[BlockSample]]
    kept: Mapping[BlockKind, list[tuple[float, float]]]  # bytes that the formulas say, and that were allocated


def measured_blocks(
    sizes: Sequence[Size], precision: str, device: torch.device, seconds: float, say: Callable[[int, float], None]
) -> Blocks:
    """Play the stages in rounds until ``seconds`` are over; ``say`` hears of each and of the share that is done."""
    stages = [StageOf(size, precision, device) for size in sizes]
    gc.collect()
    gc.freeze()  # as in a run: no collection need look through torch's modules
    kept = [stage.kept_bytes() for stage in stages]
    began, rounds = time.perf_counter(), 0
    while rounds < WARM_UP + LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.perf_counter() - began < seconds):
        for stage in stages:
            stage.play(counts=rounds >= WARM_UP)
            print("on the way", flush=True)  # whoever wants to end this can at each stage
        rounds += 1
        share = max(rounds / MOST_ROUNDS, (time.perf_counter() - began) / seconds if rounds > WARM_UP else 0.0)
        say(rounds, min(1.0, share))
    samples: dict[BlockKind, list[BlockSample]] = defaultdict(list)
    memory: dict[BlockKind, list[tuple[float, float]]] = defaultdict(list)
    for stage, bytes in zip(stages, kept, strict=True):
        samples[stage.size.kind].append(stage.sample())
        memory[stage.size.kind].append(bytes)
    return Blocks(samples, memory)


class StageOf:
    """A stage of blocks of one kind, in all ways that a stage can be played."""

    def __init__(self, size: Size, precision: str, device: torch.device) -> None:
        self.size, self._device = size, device
        self._clock = make_clock(device)
        design = design_of(size, precision)
        self.operators = operators_of(size, design)
        self._inputs = Inputs.of(size, design, device)
        self._module = module_of(size, design, device)
        self._locals = {way: self._local(design, device, way) for way in WAYS}
        self._seconds: dict[Phase, list[float]] = defaultdict(list)

    def _local(self, design: Design, device: torch.device, way: Way) -> LocalStage:
        precision = design.training.precision
        module = module_of(self.size, design, device) if way == "split" else self._module
        how = {"splits_backward": way == "split", "recomputes": way == "recomputed"}
        return LocalStage(module, precision, device, 1 / MICROBATCHES, **how)

    def play(self, *, counts: bool) -> None:
        """One round: the microbatches forward, then backward, in every way."""
        for way, local in self._locals.items():
            for phase, seconds in self._played(way, local):
                if counts:
                    self._seconds[phase] += seconds
            local.drop_cast_weights()

    def _played(self, way: Way, local: LocalStage) -> Iterator[tuple[Phase, list[float]]]:
        given = [self._inputs.fresh() for _ in range(MICROBATCHES)]
        saved = self._timed(lambda mb: local.forward(given[mb], self._inputs.targets)[1])
        if way == "whole":
            yield "forward", saved.seconds
        gradient = self._inputs.gradient
        if way != "split":
            phase: Phase = "backward" if way == "whole" else "recomputed"
            yield phase, self._timed(lambda mb: local.backward(saved.made[mb], gradient)).seconds
            return
        due = self._timed(lambda mb: local.input_gradient(saved.made[mb], gradient)[1])
        yield "input_gradient", due.seconds
        yield "weight_gradient", self._timed(lambda mb: compute_deferred(due.made[mb])).seconds

    def _timed(self, work: Callable[[int], Any]) -> Made:
        """What ``work`` makes of each microbatch, and how long that takes."""
        stamp = self._clock.stamp
        self._clock.begin()
        made, stamps = [], [stamp()]
        for mb in range(MICROBATCHES):
            made.append(work(mb))
            stamps.append(stamp())
        times = self._clock.nanoseconds(stamps)
        return Made(made, [(end - start) / 1e9 for start, end in zip(times[:-1], times[1:], strict=True)])

    def sample(self) -> BlockSample:
        """The medians of all rounds."""
        size, model = self.size, self._inputs.design.model
        phases = {
            phase: timed(self.operators, phase, size.blocks, max(1e-9, median(self._seconds[phase])))
            for phase in PHASES
        }
        return BlockSample(
            blocks=size.blocks,
            batch=size.batch,
            sequence=size.sequence,
            hidden=size.hidden,
            ffn_hidden=model.ffn_hidden,
            heads=size.heads,
            vocab=size.vocab,
            experts=size.experts or None,
            phases=phases,
        )

    def kept_bytes(self) -> tuple[float, float]:
        """What the formulas say a forward keeps, and what it does keep."""
        said = self.size.blocks * sum(operator.kept_bytes for operator in self.operators)
        local, targets = self._locals["whole"], self._inputs.targets
        local.forward(self._inputs.fresh(), targets)  # makes the copies of the weights
        x = self._inputs.fresh()
        with AllocationCount(self._device) as allocated:
            y, saved = local.forward(x, targets)
        came = 0 if self.size.kind == "joining" else x.nbytes  # with skips beside it: counted as what came in
        kept = allocated.bytes + came - y.nbytes  # what goes out is the next stage's to keep
        del y, saved  # here: freed within the next one's count it would be taken off that
        local.drop_cast_weights()
        return float(said), float(kept)


class Made(NamedTuple):
    made: list[Any]
    seconds: list[float]


@dataclass(frozen=True)
class Inputs:
    """What goes into a stage, and the gradient that comes back to it."""

    design: Design
    x: Tensor
    targets: Tensor | None
    gradient: Tensor | None

    @classmethod
    def of(cls, size: Size, design: Design, device: torch.device) -> Inputs:
        dtype = MESSAGE_DTYPES[design.training.precision]
        shape = (size.batch, size.sequence)
        tokens = torch.randint(size.vocab, shape, device=device)
        width = size.hidden * (1 + size.blocks if size.kind == "joining" else 1)
        hidden = torch.randn(*shape, width, device=device, dtype=dtype)
        back = torch.randn(*shape, size.hidden, device=device, dtype=dtype)
        return cls(
            design,
            tokens if size.kind == "embedding" else hidden,
            tokens if size.kind == "head" else None,
            None if size.kind == "head" else back,
        )

    def fresh(self) -> Tensor:
        """As it comes off the communicator: a tensor that is the stage's to keep."""
        return self.x.clone()


def module_of(size: Size, design: Design, device: torch.device) -> Stage:
    """The blocks alone, as the stage of a model whose other stages have the rest."""
    split, stage = {
        "layer": ([0, size.blocks, 0], 1),
        "experts": ([0, size.blocks, 0], 1),
        "joining": ([size.blocks, size.blocks, 0], 1),
        "embedding": ([0, size.blocks], 0),
        "head": ([size.blocks, 0], 1),
    }[size.kind]
    dtype = DTYPES[design.training.precision]
    make = single_process_factory(design, 1 / MICROBATCHES, dtype) if size.experts else None
    return build_stage(design.model, split, stage, design.training.seed, dtype, device, experts=make)


def operators_of(size: Size, design: Design) -> tuple[Operator, ...]:
    """Of one of its blocks, as the formulas have them."""
    mesh = design.meshes[0]
    load = workload(design, mesh)
    if size.kind == "experts":
        block = expert_block(design, mesh, load)
        assert block is not None, "the model has experts"
        return block.operators
    of_kind: dict[str, Callable[[Workload], tuple[Operator, ...]]] = {
        "layer": flops.layer,
        "joining": flops.joining_layer,
        "embedding": flops.embedding,
        "head": lambda load: flops.ends(load, first=False, last=True),
    }
    return of_kind[size.kind](load)
