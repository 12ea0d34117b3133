"""Timing and memory of stages: the runtime's own stages in one process, all sizes in turns.

Each stage consists of blocks of one kind. All its microbatches run forward and then backward, as in a schedule, so that
saved tensors have left the caches when their backward starts. Every round runs all stages in all modes, so that other
load on the machine affects all of them alike; medians count.
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

from meshwave.engine.costs import transformer_layers as flops
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.expert_blocks import expert_block
from meshwave.engine.costs.operators import Operator, Workload
from meshwave.engine.costs.profile import BlockKind, BlockSample, Phase
from meshwave.engine.costs.profile_prices import PHASES, timed_phase
from meshwave.engine.document import Design
from meshwave.engine.runtime.calibration.device_timing import matrix_flops_per_s, time_copies, time_optimizers
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.calibration.stage_sizes import (
    MICROBATCHES,
    StageSize,
    stage_design,
    stage_sizes,
)
from meshwave.engine.runtime.device.accelerator import accelerator_device, device_name, is_accelerator
from meshwave.engine.runtime.device.clock import make_clock
from meshwave.engine.runtime.device.memory import AllocationCount, keep_freed_memory
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES, LocalStage
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.modules.deferred_gradients import compute_deferred_gradients

WARM_UP_ROUNDS = 1
"""Rounds that do not count."""
MIN_ROUNDS, MAX_ROUNDS = 2, 15
Mode = Literal["whole", "split", "recomputed"]
MODES: tuple[Mode, ...] = ("whole", "split", "recomputed")


def measure_stages(cluster: ProcessCluster, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Measure blocks, optimizer, memory and matrix rate of this process's device, as the sections of a profile.

    ``plan`` has ``precisions`` (null: those suited to the device), ``sizes`` (null: those for the device), ``experts``
    (true to measure blocks with experts), and ``seconds``, the time for the rounds.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # as in a process of a run
    keep_freed_memory()
    device = accelerator_device(0) if cluster.uses_gpus else torch.device("cpu")
    precisions = plan["precisions"] or (["fp32", "bf16"] if is_accelerator(device) else ["fp32"])
    updated = [*precisions, *(["pure_bf16"] if "bf16" in precisions else [])]
    sizes = [StageSize(*size) for size in plan["sizes"] or ()]
    sizes = sizes or stage_sizes(is_accelerator=is_accelerator(device), has_experts=plan["experts"])
    print("share 0.000 the device's rates and the optimizer", flush=True)
    found: dict[str, Any] = {
        "device": device_name(device),
        "matrix": [{"precision": each, "flops": matrix_flops_per_s(each, device)} for each in precisions],
        "copies": list(time_copies(device)),
        "optimizer": [line for precision in updated for line in time_optimizers(precision, device)],
        "blocks": [],
        "memory": [],
    }
    for number, precision in enumerate(precisions):
        report = partial(_print_progress, precision=precision, number=number, count=len(precisions))
        samples = measure_blocks(sizes, precision, device, plan["seconds"] / len(precisions), report)
        for kind, times in samples.times.items():
            rows = [sample.model_dump(mode="json", exclude_none=True) for sample in times]
            found["blocks"].append({"kind": kind, "precision": precision, "samples": rows})
        for kind, kept in samples.kept_bytes.items():
            found["memory"].append({"kind": kind, "precision": precision, "samples": kept})
    return found


def _print_progress(rounds: int, share: float, precision: str, number: int, count: int) -> None:
    print(f"share {(number + share) / count:.3f} blocks in {precision}, round {rounds}", flush=True)


# ---- blocks ----


@dataclass(frozen=True)
class BlockSamples:
    """Measured samples of blocks by kind."""

    times: Mapping[BlockKind, list[BlockSample]]
    kept_bytes: Mapping[BlockKind, list[tuple[float, float]]]
    """Bytes that the formulas predict for a stage, and bytes that it kept."""


def measure_blocks(
    sizes: Sequence[StageSize],
    precision: str,
    device: torch.device,
    seconds: float,
    report: Callable[[int, float], None],
) -> BlockSamples:
    """Run the stages in rounds for about ``seconds``. ``report`` receives the number of rounds and the done fraction."""
    stages = [TimedStage(size, precision, device) for size in sizes]
    gc.collect()
    gc.freeze()  # as in a run: collections do not visit torch's modules
    kept = [stage.kept_bytes() for stage in stages]
    start, rounds = time.perf_counter(), 0
    while rounds < WARM_UP_ROUNDS + MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() - start < seconds):
        for stage in stages:
            stage.run_round(counts=rounds >= WARM_UP_ROUNDS)
            print("running", flush=True)  # the reader of these lines can stop the measurement after each stage
        rounds += 1
        elapsed = (time.perf_counter() - start) / seconds if rounds > WARM_UP_ROUNDS else 0.0
        report(rounds, min(1.0, max(rounds / MAX_ROUNDS, elapsed)))
    times: dict[BlockKind, list[BlockSample]] = defaultdict(list)
    kept_by_kind: dict[BlockKind, list[tuple[float, float]]] = defaultdict(list)
    for stage, kept_bytes in zip(stages, kept, strict=True):
        times[stage.size.kind].append(stage.median_sample())
        kept_by_kind[stage.size.kind].append(kept_bytes)
    return BlockSamples(times, kept_by_kind)


class TimedStage:
    """A stage of blocks of one kind, timed in all modes."""

    def __init__(self, size: StageSize, precision: str, device: torch.device) -> None:
        self.size, self._device = size, device
        self._clock = make_clock(device)
        design = stage_design(size, precision)
        self._operators = block_operators(size, design)
        self._inputs = StageInputs.random(size, design, device)
        self._module = make_stage(size, design, device)
        self._locals = {mode: self._make_local_stage(design, device, mode) for mode in MODES}
        self._seconds: dict[Phase, list[float]] = defaultdict(list)

    def _make_local_stage(self, design: Design, device: torch.device, mode: Mode) -> LocalStage:
        precision = design.training.precision
        module = make_stage(self.size, design, device) if mode == "split" else self._module
        splits, recomputes = mode == "split", mode == "recomputed"
        return LocalStage(module, precision, device, 1 / MICROBATCHES, splits_backward=splits, recomputes=recomputes)

    def run_round(self, *, counts: bool) -> None:
        """Run the microbatches forward, then backward, in every mode."""
        for mode, local in self._locals.items():
            for phase, seconds in self._run_mode(mode, local):
                if counts:
                    self._seconds[phase] += seconds
            local.drop_cast_weights()

    def _run_mode(self, mode: Mode, local: LocalStage) -> Iterator[tuple[Phase, list[float]]]:
        inputs = [self._inputs.copy_input() for _ in range(MICROBATCHES)]
        saved = self._time_microbatches(lambda mb: local.forward(inputs[mb], self._inputs.targets)[1])
        if mode == "whole":
            yield "forward", saved.seconds
        gradient = self._inputs.gradient
        if mode != "split":
            phase: Phase = "backward" if mode == "whole" else "recomputed"
            yield phase, self._time_microbatches(lambda mb: local.backward(saved.results[mb], gradient)).seconds
            return
        deferred = self._time_microbatches(lambda mb: local.input_gradient(saved.results[mb], gradient)[1])
        yield "input_gradient", deferred.seconds
        yield (
            "weight_gradient",
            self._time_microbatches(lambda mb: compute_deferred_gradients(deferred.results[mb])).seconds,
        )

    def _time_microbatches(self, work: Callable[[int], Any]) -> TimedResults:
        """Call ``work`` for every microbatch."""
        stamp = self._clock.stamp
        self._clock.begin()
        results, stamps = [], [stamp()]
        for mb in range(MICROBATCHES):
            results.append(work(mb))
            stamps.append(stamp())
        times = self._clock.nanoseconds(stamps)
        return TimedResults(results, [(end - start) / 1e9 for start, end in zip(times[:-1], times[1:], strict=True)])

    def median_sample(self) -> BlockSample:
        """Return the medians over all rounds except warm-up."""
        size, model = self.size, self._inputs.design.model
        phases = {
            phase: timed_phase(self._operators, phase, size.blocks, max(1e-9, median(self._seconds[phase])))
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
        """Return the bytes that a forward keeps for its backward, as predicted by the formulas and as allocated."""
        predicted = self.size.blocks * sum(operator.kept_bytes for operator in self._operators)
        local, targets = self._locals["whole"], self._inputs.targets
        local.forward(self._inputs.copy_input(), targets)  # makes the copies of the weights
        x = self._inputs.copy_input()
        with AllocationCount(self._device) as allocated:
            y, saved = local.forward(x, targets)
        # A joining layer keeps the concatenation of its input, which it allocates.
        input_bytes = 0 if self.size.kind == "joining" else x.nbytes
        kept = allocated.bytes + input_bytes - y.nbytes  # the next stage keeps the output
        del y, saved  # now, since memory freed during the next count would be subtracted from it
        local.drop_cast_weights()
        return float(predicted), float(kept)


class TimedResults(NamedTuple):
    """Results and times of a series of microbatches."""

    results: list[Any]
    seconds: list[float]


@dataclass(frozen=True)
class StageInputs:
    """Input of a stage and gradient of its output, for timing."""

    design: Design
    x: Tensor
    targets: Tensor | None
    gradient: Tensor | None

    @classmethod
    def random(cls, size: StageSize, design: Design, device: torch.device) -> StageInputs:
        """Draw random tensors with the shapes of a stage."""
        dtype = MESSAGE_DTYPES[design.training.precision]
        shape = (size.batch, size.sequence)
        tokens = torch.randint(size.vocab, shape, device=device)
        width = size.hidden * (1 + size.blocks if size.kind == "joining" else 1)
        hidden = torch.randn(*shape, width, device=device, dtype=dtype)
        gradient = torch.randn(*shape, size.hidden, device=device, dtype=dtype)
        return cls(
            design,
            tokens if size.kind == "embedding" else hidden,
            tokens if size.kind == "head" else None,
            None if size.kind == "head" else gradient,
        )

    def copy_input(self) -> Tensor:
        """Return a copy of the input; the stage keeps the copy like a received message."""
        return self.x.clone()


def make_stage(size: StageSize, design: Design, device: torch.device) -> Stage:
    """Build a stage that consists of blocks only; the other parts of the model are on other stages."""
    split, stage = {
        "layer": ([0, size.blocks, 0], 1),
        "experts": ([0, size.blocks, 0], 1),
        "joining": ([size.blocks, size.blocks, 0], 1),
        "embedding": ([0, size.blocks], 0),
        "head": ([size.blocks, 0], 1),
    }[size.kind]
    dtype = DTYPES[design.training.precision]
    experts = single_process_factory(design, 1 / MICROBATCHES, dtype) if size.experts else None
    return build_stage(design.model, split, stage, design.training.seed, dtype, device, experts=experts)


def block_operators(size: StageSize, design: Design) -> tuple[Operator, ...]:
    """Return the operators of one block in the cost model."""
    mesh = design.meshes[0]
    load = device_workload(design, mesh)
    if size.kind == "experts":
        block = expert_block(design, mesh, load)
        assert block is not None, "the model has experts"
        return block.operators
    by_kind: dict[str, Callable[[Workload], tuple[Operator, ...]]] = {
        "layer": flops.layer_operators,
        "joining": flops.joining_layer_operators,
        "embedding": flops.embedding_operators,
        "head": lambda load: flops.end_operators(load, first=False, last=True),
    }
    return by_kind[size.kind](load)
