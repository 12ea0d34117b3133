"""Training steps of the models of cross-mesh resharding (arXiv:2211.05322, section 5.2), priced and simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.bench.papers import alpa
from meshwave.engine.bench.papers import u_transformer_model as u_transformer
from meshwave.engine.bench.papers.resharding import ASSUMED, DEVICES
from meshwave.engine.bench.papers.schedule_simulation import schedule_program
from meshwave.engine.costs import estimate
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.resharding import Links, Mesh, Side, Tensor, plan

Floats = NDArray[np.float64]


Crossing = Callable[[Tensor, Side, Side, Links], float]
"""Function that returns the seconds to transfer one tensor from one mesh to another."""


PEAK = {"bf16": 125e12, "fp32": 15.7e12}  # FLOP/s of a V100, with and without its tensor cores


EFFICIENCY = 0.5


SHOWN = ("Send/Recv", "Alpa", "Broadcast", "+ overlap", "Ours", "+ delayed W", "Signal")


class Series(NamedTuple):
    """Series of the artifact: kind of transfer, overlap with computation, and schedule."""

    crossing: str  # key of CROSSINGS
    overlaps: bool
    schedule: tuple[str, tuple[tuple[str, str], ...]] = ("1f1b", ())


EAGER = ("eager-1f1b", ())


DELAYED = ("eager-1f1b", (("backward", "split"),))


SERIES: Mapping[str, Series] = dict(
    zip(
        SHOWN,
        (
            Series("send-recv", overlaps=False),
            Series("alpa", overlaps=False),
            Series("broadcast", overlaps=False),
            Series("broadcast", overlaps=True),
            Series("broadcast", overlaps=True, schedule=EAGER),
            Series("broadcast", overlaps=True, schedule=DELAYED),
            Series("signal", overlaps=False),
        ),
        strict=True,
    )
)


class TrainingStep(NamedTuple):
    """Figures of a training step of a model."""

    flops: float  # FLOPs of a step, including recomputation
    seconds: Mapping[str, float]  # seconds of a step, by series
    crossing: Mapping[str, float]  # seconds to transfer one microbatch over the slowest boundary, by series
    bytes: float  # bytes of these transfers
    round_s: float  # seconds of the forward and backward of one microbatch on the slowest stage

    def tflops(self, series: str) -> float:
        """Return the throughput of a series in TFLOP/s."""
        return self.flops / self.seconds[series] / 1e12

    def gain(self, over: str) -> float:
        """Return the gain in throughput over another series in percent."""
        return 100 * (self.seconds[over] / self.seconds["Ours"] - 1)


def _broadcast(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    return plan(tensor, source, destination, links).makespan_s


def _signal(tensor: Tensor, source: Side, destination: Side, links: Links) -> float:
    return links.link_between(source[0].ranks[0], destination[0].ranks[0]).seconds(1)


CROSSINGS: Mapping[str, Crossing] = {
    "send-recv": alpa.send_recv_seconds,
    "alpa": alpa.local_allgather_seconds,
    "broadcast": _broadcast,
    "signal": _signal,
}


def transfer_seconds_of_tensors(how: str, tensors: Sequence[Tensor], source: Side, destination: Side) -> float:
    """Return the seconds to transfer several tensors one after the other, because they share a NIC."""
    hosts = zip((*source[0].ranks, *destination[0].ranks), (*source[0].hosts, *destination[0].hosts), strict=True)
    links = Links(*ASSUMED, dict(hosts))
    crossed = tensors[:1] if how == "signal" else tensors
    return sum(CROSSINGS[how](tensor, source, destination, links) for tensor in crossed)


def step_seconds(program: Program, seconds: Floats, hops: Sequence[float], *, overlaps: bool) -> float:
    """Return the step time of a pipeline whose transfers between stages ``s`` and ``s + 1`` take ``hops[s]`` seconds.

    On the compute stream, a transfer extends the actions at both ends. The ends execute it at the same time, which is
    modelled by a negative duration of the transfer itself.
    """
    seconds = seconds.copy()
    sends, makers = program.send_rows
    forward = program.op[sends] == Op.SEND_F
    stage, microbatch = program.stage[makers], program.microbatch[makers]
    hop = np.asarray(hops)[np.where(forward, stage, stage - 1)]
    if overlaps:
        seconds[sends] = hop
        return simulate(program, seconds, "link-serial").makespan
    table = program.tables
    takers = np.where(
        forward,
        table.forward[np.minimum(stage + 1, program.stages - 1), microbatch],
        table.backward[np.maximum(stage - 1, 0), microbatch],
    )
    np.add.at(seconds, makers, hop)
    np.add.at(seconds, takers, hop)
    seconds[sends] = -hop  # both ends start the transfer together
    return simulate(program, seconds).makespan


class Gpt(NamedTuple):
    """GPT configuration of the artifact."""

    layers: int
    hidden: int
    sequences: int  # sequences of a step
    microbatches: int
    dp: int
    tp: int
    pp: int
    nodes: int

    @property
    def flops(self) -> float:
        """FLOPs of a step with recomputation: ``96 B S L H^2 (1 + S / 6H) + 6 B S H V``."""
        tokens = self.sequences * SEQUENCE
        blocks = 96 * tokens * self.layers * self.hidden**2 * (1 + SEQUENCE / (6 * self.hidden))
        return blocks + 6 * tokens * self.hidden * VOCABULARY


SEQUENCE, VOCABULARY, HEADS = 1024, 51200, 32
GPTS: Mapping[str, Gpt] = {
    "GPT 1.3B, 4 GPUs, 64/4, 1.2.2": Gpt(24, 2048, 64, 4, 1, 2, 2, 2),
    "GPT 2.6B, 8 GPUs, 32/4, 2.2.2": Gpt(32, 2560, 32, 4, 2, 2, 2, 2),
    "GPT 2.6B, 8 GPUs, 1024/64, 2.2.2": Gpt(32, 2560, 1024, 64, 2, 2, 2, 2),
    "GPT 2.6B, 8 GPUs, 1024/128, 2.1.4": Gpt(32, 2560, 1024, 128, 2, 1, 4, 2),
}


def gpt_training_steps() -> dict[str, TrainingStep]:
    """Return the figures of the GPT configurations, by name."""
    return {name: _predict_gpt(of) for name, of in GPTS.items()}


@lru_cache(maxsize=16)
def _predict_gpt(of: Gpt) -> TrainingStep:
    design = gpt_design(of, *SERIES["Broadcast"].schedule)
    ends = [_side(design, rank) for rank in range(of.pp)]
    tensor = Tensor((of.sequences // of.microbatches, SEQUENCE, of.hidden), 2)
    hops = {
        how: [transfer_seconds_of_tensors(how, [tensor], source, destination) for source, destination in zip(ends[:-1], ends[1:], strict=True)]
        for how in CROSSINGS
    }  # fmt: skip
    seconds, rounds = {}, 0.0
    for name, series in SERIES.items():
        program, of_row = _price_gpt(of, series.schedule)
        seconds[name] = step_seconds(program, of_row, hops[series.crossing], overlaps=series.overlaps)
        per_stage = np.bincount(program.stage[program.is_compute], of_row[program.is_compute])
        rounds = float(per_stage.max()) / of.microbatches
    return TrainingStep(
        of.flops, seconds, {name: max(hops[each.crossing]) for name, each in SERIES.items()}, tensor.bytes, rounds
    )


@lru_cache(maxsize=16)
def _price_gpt(of: Gpt, schedule: tuple[str, tuple[tuple[str, str], ...]]) -> tuple[Program, Floats]:
    design = gpt_design(of, *schedule)
    program = lower(design)
    return program, estimate(design, program).seconds


def gpt_design(of: Gpt, schedule: str = "1f1b", options: Sequence[tuple[str, str]] = ()) -> Design:
    """Return the design of a configuration; its meshes fill one node after another."""
    size = of.dp * of.tp
    each = of.pp * size // of.nodes  # devices used per node
    devices = [node * DEVICES + place for node in range(of.nodes) for place in range(each)]
    document: dict[str, Any] = {
        "format": "meshwave/1",
        "cluster": {
            "nodes": of.nodes,
            "devices_per_node": DEVICES,
            "device": {
                "name": "V100-SXM2-16GB",
                "peak_flops": PEAK["bf16"],
                "memory_bytes": 16e9,
                "memory_bandwidth": 900e9,
                "efficiency": EFFICIENCY,
            },
            "intra_node": {"latency_s": ASSUMED[0].latency_s, "bandwidth": ASSUMED[0].bandwidth},
            "inter_node": {"latency_s": ASSUMED[1].latency_s, "bandwidth": ASSUMED[1].bandwidth},
        },
        "model": {
            "kind": "gpt",
            "layers": of.layers,
            "hidden": of.hidden,
            "heads": HEADS,
            "sequence": SEQUENCE,
            "vocab": VOCABULARY,
        },
        "meshes": [
            {"name": str(rank), "devices": devices[rank * size : (rank + 1) * size], "axes": {"dp": of.dp, "tp": of.tp}}
            for rank in range(of.pp)
        ],
        "pipeline": {
            "schedule": schedule,
            **dict(options),
            "microbatches": of.microbatches,
            "recompute": "full",
        },
        "training": {"micro_batch_size": of.sequences // of.microbatches // of.dp, "precision": "bf16"},
    }
    return parse_design(document)


def _side(design: Design, rank: int) -> Side:
    """Return the layout of ``[sequences, s, h]`` on a mesh: sharded over dp, replicated over tp."""
    mesh = design.meshes[rank]
    hosts = tuple(design.cluster.node_of(device) for device in mesh.devices)
    return Mesh((mesh.dp, mesh.tp), tuple(mesh.devices), hosts), ("S0", "R", "R")


class UTransformer(NamedTuple):
    """U-Transformer configuration of the artifact: two stages, each on a mesh of one host."""

    channels: int
    cut: int  # layers of the first stage
    devices: int  # devices of a mesh
    images: int = 2048
    microbatches: int = 32
    copied: bool = (
        False  # True if each device of a mesh has all transferred tensors, False if it has only its share of the images
    )


U_TRANSFORMERS: Mapping[str, UTransformer] = {
    "U-Transformer 1B, 4 GPUs, by image": UTransformer(480, 8, 2),
    "U-Transformer 2B, 8 GPUs, by image": UTransformer(672, 9, 4),
    "U-Transformer 1B, 4 GPUs, copied": UTransformer(480, 8, 2, copied=True),
    "U-Transformer 2B, 8 GPUs, copied": UTransformer(672, 9, 4, copied=True),
}


def u_transformer_training_steps() -> dict[str, TrainingStep]:
    """Return the figures of the U-Transformer configurations, by name."""
    return {name: predict_u_transformer(of) for name, of in U_TRANSFORMERS.items()}


@lru_cache(maxsize=16)
def predict_u_transformer(of: UTransformer) -> TrainingStep:
    """Return the figures of a U-Transformer configuration."""
    layers = u_transformer.model_layers(of.channels)
    images = of.images // of.microbatches
    tensors = [
        Tensor((images, made.side, made.side, made.channels), 4)
        for made in u_transformer.crossing_tensors(layers, of.cut)
    ]
    spec = ("R" if of.copied else "S1", "R", "R", "R")
    source, destination = (
        (Mesh((1, of.devices), tuple(range(host * of.devices, (host + 1) * of.devices)), (host,) * of.devices), spec)
        for host in (0, 1)
    )
    hops = {how: [transfer_seconds_of_tensors(how, tensors, source, destination)] for how in CROSSINGS}
    rate = of.devices * PEAK["fp32"] * EFFICIENCY
    forward = np.array(
        [images * u_transformer.forward_flops(part) / rate for part in (layers[: of.cut], layers[of.cut :])]
    )
    seconds = {}
    for name, series in SERIES.items():
        schedule, options = series.schedule
        program = schedule_program(schedule, 2, of.microbatches, **dict(options))
        of_row = _action_seconds(program, forward)
        seconds[name] = step_seconds(program, of_row, hops[series.crossing], overlaps=series.overlaps)
    return TrainingStep(
        flops=4 * of.images * u_transformer.forward_flops(layers),
        seconds=seconds,
        crossing={name: hops[each.crossing][0] for name, each in SERIES.items()},
        bytes=sum(tensor.bytes for tensor in tensors),
        round_s=4 * float(forward.max()),
    )


def _action_seconds(program: Program, forward: Floats) -> Floats:
    """Return the seconds of each action, ``[rows]``, given the forward seconds of each stage, ``[stages]``.

    A backward takes as long as two forwards, plus one to recompute the forward.
    """
    parts = np.zeros(len(Op))
    parts[[Op.F, Op.B, Op.I, Op.W]] = 1, 3, 2, 1
    return parts[program.op] * forward[np.maximum(program.stage, 0)]
