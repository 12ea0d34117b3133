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
from torch.autograd.profiler import profile

from engine.cost import flops
from engine.cost.calibrated import PHASES, timed
from engine.cost.expert_blocks import expert_block
from engine.cost.flops import Operator, Workload
from engine.cost.profile import BlockKind, BlockSample, Phase
from engine.cost.sizes import workload
from engine.design import Design, parse_design
from engine.runtime.clock import Clock, clock_of
from engine.runtime.deferred import settle
from engine.runtime.memory import keep_freed_memory
from engine.runtime.models import Stage, build_stage
from engine.runtime.moe.build import alone
from engine.runtime.optimizers import OPTIMIZERS
from engine.runtime.shaped import Cluster
from engine.runtime.stages import DTYPES, MESSAGE_DTYPES, LocalStage

MICROBATCHES = 2
WARM_UP = 1  # rounds that do not count
LEAST_ROUNDS, MOST_ROUNDS = 2, 15
Way = Literal["whole", "split", "recomputed"]
WAYS: tuple[Way, ...] = ("whole", "split", "recomputed")


class Size(NamedTuple):
    """A stage of ``blocks`` of a kind, and the microbatch that goes through it."""

    kind: BlockKind
    blocks: int
    batch: int
    sequence: int
    hidden: int
    vocab: int = 512
    experts: int = 0

    @property
    def heads(self) -> int:
        return max(1, self.hidden // 64)


CPU_SIZES = (
    Size("layer", 1, 1, 64, 64),
    Size("layer", 4, 2, 64, 64),
    Size("layer", 1, 4, 64, 128),
    Size("layer", 3, 1, 128, 128),
    Size("layer", 1, 1, 256, 128),
    Size("layer", 2, 1, 512, 128),
    Size("layer", 1, 1, 128, 256),
    Size("layer", 2, 2, 128, 256),
    Size("layer", 1, 1, 512, 256),
    Size("layer", 1, 1, 128, 512),
    Size("layer", 1, 2, 256, 512),
    Size("layer", 1, 1, 128, 768),
    Size("layer", 1, 1, 256, 768),
    Size("joining", 1, 2, 64, 64),
    Size("joining", 2, 1, 128, 128),
    Size("joining", 1, 1, 128, 256),
    Size("joining", 1, 2, 128, 256),
    Size("joining", 1, 1, 256, 512),
    Size("embedding", 1, 2, 64, 64, 256),
    Size("embedding", 1, 4, 64, 128, 1024),
    Size("embedding", 1, 2, 128, 256, 4096),
    Size("embedding", 1, 1, 512, 256, 256),
    Size("embedding", 1, 2, 256, 512, 8192),
    Size("head", 1, 2, 64, 64, 256),
    Size("head", 1, 4, 64, 128, 1024),
    Size("head", 1, 2, 128, 256, 256),
    Size("head", 1, 1, 128, 256, 4096),
    Size("head", 1, 1, 512, 256, 1024),
    Size("head", 1, 1, 256, 512, 8192),
)
"""From what fits in a cache to what a core takes half a second for."""
CPU_EXPERTS = (
    Size("experts", 1, 1, 64, 64, experts=2),
    Size("experts", 2, 1, 128, 128, experts=4),
    Size("experts", 1, 1, 256, 128, experts=4),
    Size("experts", 1, 1, 128, 256, experts=4),
    Size("experts", 1, 2, 128, 256, experts=2),
)
CUDA_SIZES = (
    Size("layer", 1, 1, 256, 768),
    Size("layer", 4, 1, 512, 768),
    Size("layer", 1, 4, 1024, 1024),
    Size("layer", 2, 1, 2048, 1024),
    Size("layer", 1, 1, 4096, 1024),
    Size("layer", 2, 2, 1024, 2048),
    Size("layer", 1, 4, 2048, 2048),
    Size("layer", 1, 1, 1024, 4096),
    Size("layer", 1, 2, 2048, 4096),
    Size("joining", 1, 1, 512, 768),
    Size("joining", 2, 1, 1024, 1024),
    Size("joining", 1, 2, 1024, 2048),
    Size("joining", 1, 1, 2048, 4096),
    Size("embedding", 1, 1, 512, 768, 8192),
    Size("embedding", 1, 4, 1024, 1024, 50304),
    Size("embedding", 1, 2, 2048, 4096, 50304),
    Size("embedding", 1, 1, 4096, 2048, 32768),
    Size("head", 1, 1, 512, 768, 8192),
    Size("head", 1, 2, 1024, 1024, 50304),
    Size("head", 1, 1, 2048, 4096, 50304),
    Size("head", 1, 4, 1024, 2048, 32768),
)
CUDA_EXPERTS = (
    Size("experts", 1, 1, 512, 768, experts=4),
    Size("experts", 2, 1, 1024, 1024, experts=8),
    Size("experts", 1, 4, 1024, 1024, experts=8),
    Size("experts", 1, 1, 2048, 2048, experts=8),
)


def measure(cluster: Cluster, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks, optimizer, memory and matrix rate of this process's device, as the sections of a profile.

    ``plan`` has ``precisions`` (null: those that the device is for), ``sizes`` (null: those for the device),
    whether ``experts`` are asked for, and the ``seconds`` that the rounds may take.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # as a process of a run has
    keep_freed_memory()
    device = torch.device("cuda", 0) if cluster.gpus else torch.device("cpu")
    on_gpu = device.type == "cuda"
    precisions = plan["precisions"] or (["fp32", "bf16"] if on_gpu else ["fp32"])
    given = [Size(*each) for each in plan["sizes"]] if plan["sizes"] else [*(CUDA_SIZES if on_gpu else CPU_SIZES)]
    if plan["experts"]:
        given += CUDA_EXPERTS if on_gpu else CPU_EXPERTS
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
    name = torch.cuda.get_device_name(device) if on_gpu else "CPU"
    return {"device": name, "matrix": matrix, "copies": copied, "optimizer": updates, "blocks": blocks, "memory": kept}


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
        self._clock = clock_of(device)
        design = design_of(size, precision)
        self.operators = operators_of(size, design)
        self._inputs = Inputs.of(size, design, device)
        self._module = module_of(size, design, device)
        self._locals = {way: self._local(design, device, way) for way in WAYS}
        self._seconds: dict[Phase, list[float]] = defaultdict(list)

    def _local(self, design: Design, device: torch.device, way: Way) -> LocalStage:
        precision = design.training.precision
        module = module_of(self.size, design, device) if way == "split" else self._module
        how = {"split": way == "split", "recomputed": way == "recomputed"}
        return LocalStage(module, precision, device, 1 / MICROBATCHES, **how)

    def play(self, *, counts: bool) -> None:
        """One round: the microbatches forward, then backward, in every way."""
        for way, local in self._locals.items():
            for phase, seconds in self._played(way, local):
                if counts:
                    self._seconds[phase] += seconds
            local.forget()

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
        yield "weight_gradient", self._timed(lambda mb: settle(due.made[mb])).seconds

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
        with Allocated(self._device) as allocated:
            y, saved = local.forward(x, targets)
        came = 0 if self.size.kind == "joining" else x.nbytes  # with skips beside it: counted as what came in
        kept = allocated.bytes + came - y.nbytes  # what goes out is the next stage's to keep
        del y, saved  # here: freed within the next one's count it would be taken off that
        local.forget()
        return float(said), float(kept)


class Allocated:
    """Counts what is allocated meanwhile and not freed, in bytes: as torch's allocator says, on a CPU its profiler."""

    bytes = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: profile | None = None

    def __enter__(self) -> Allocated:
        if self._device.type == "cuda":
            self._before = self._current()
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell of its start and its end
            self._profile = profile(profile_memory=True)
            self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        if self._profile is None:
            self.bytes = self._current() - self._before
            return
        self._profile.__exit__(*error)  # type: ignore[no-untyped-call]
        events: Any = self._profile.kineto_results.events()  # type: ignore[union-attr]
        self.bytes = sum(event.nbytes() for event in events if event.name() == "[memory]")

    def _current(self) -> int:
        return int(torch.cuda.memory_stats(self._device)["allocated_bytes.all.current"])


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
        """As it comes off the wire: a tensor that is the stage's to keep."""
        return self.x.clone()


def design_of(size: Size, precision: str) -> Design:
    """The smallest design whose model has such a stage."""
    u_transformer = size.kind == "joining"
    moe = {"experts": size.experts, "top_k": min(2, size.experts), "capacity_factor": 1.25, "every": 1}
    rates = {"peak_flops": 1e12, "memory_bytes": 1e12, "memory_bandwidth": 1e11}
    link = {"latency_s": 0.0, "bandwidth": 1e9}
    return parse_design(
        {
            "format": "meshwave/1",
            "name": size.kind,
            "cluster": {
                "nodes": 1,
                "devices_per_node": 1,
                "device": rates,
                "intra_node": link,
                "inter_node": link,
            },
            "model": {
                "kind": "u-transformer" if u_transformer else "gpt",
                "layers": size.blocks * (2 if u_transformer else 1),
                "hidden": size.hidden,
                "heads": size.heads,
                "sequence": size.sequence,
                "vocab": size.vocab,
                **({"moe": moe} if size.experts else {}),
            },
            "meshes": [{"name": "m", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
            "pipeline": {"schedule": "gpipe", "microbatches": MICROBATCHES},
            "training": {"micro_batch_size": size.batch, "precision": precision},
        }
    )


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
    make = alone(design, 1 / MICROBATCHES, dtype) if size.experts else None
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


# ---- the optimizer, the device's rates ----

PARAMETERS = (2**16, 2**19, 2**21, 2**22)
MATRIX = {"cpu": 1536, "cuda": 8192}
COPIED = {"cpu": (2**18, 2**21, 2**23, 2**25), "cuda": (2**20, 2**24, 2**27, 2**30)}
REPEATS = 9


def optimizer_samples(precision: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Seconds of the end of a step: the norm of the gradients, clipping them, the update."""
    dtype, clock = DTYPES[precision], clock_of(device)
    for name, kind in OPTIMIZERS.items():
        for clipped in (False, True):
            samples = []
            for count in PARAMETERS:
                width = int(count**0.5)
                weights = [torch.zeros(width // 4, width, device=device, dtype=dtype) for _ in range(4)]
                gradients = [torch.full_like(weight, 1e-3) for weight in weights]
                optimizer = kind(weights, 1e-6, 0.0)

                def step(
                    gradients: list[Tensor] = gradients, optimizer: Any = optimizer, clipped: bool = clipped
                ) -> None:
                    norm = torch.nn.utils.get_total_norm(gradients)
                    if clipped:
                        torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
                    optimizer.step(gradients)

                samples.append((4.0 * (width // 4) * width, _median_seconds(step, clock)))
            yield {"optimizer": name, "precision": precision, "clipped": clipped, "samples": samples}


def matrix_rate(precision: str, device: torch.device) -> float:
    """FLOP/s that a large product reaches."""
    size, dtype = MATRIX[device.type], MESSAGE_DTYPES[precision]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    into = torch.empty_like(left)
    return 2 * size**3 / min(_seconds(lambda: torch.matmul(left, right, out=into), clock_of(device)))


def copies(device: torch.device) -> Iterator[tuple[float, float]]:
    """Bytes, and the seconds in which the device copies them."""
    clock = clock_of(device)
    for size in COPIED[device.type]:
        source, target = torch.zeros(2, size, device=device, dtype=torch.uint8)
        yield float(size), _median_seconds(lambda source=source, target=target: target.copy_(source), clock)  # type: ignore[misc]


def _median_seconds(work: Callable[[], object], clock: Clock) -> float:
    return median(_seconds(work, clock))


def _seconds(work: Callable[[], object], clock: Clock) -> list[float]:
    """Of several calls, after one that does not count."""
    work()
    clock.begin()
    stamps = [clock.stamp()]
    for _ in range(REPEATS):
        work()
        stamps.append(clock.stamp())
    times = clock.nanoseconds(stamps)
    return [max(1e-9, each / 1e9) for each in (times[1:] - times[:-1]).tolist()]
