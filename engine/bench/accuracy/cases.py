"""Designs of the accuracy benchmark, each given by its differences from a common design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwave.engine.document import Design, parse_design

Way = Literal["rehearsed", "measured"]
"""Kind of run, as the source of its timeline: "rehearsed" for a dry run, "measured" for training."""
Document = Mapping[str, Any]
MeshShapes = tuple[tuple[int, int], ...]
"""``(dp, tp)`` of each mesh; devices are assigned in order."""


@dataclass(frozen=True)
class Case:
    """Design, and the options of its measurement."""

    name: str
    group: str
    document: Document
    way: Way = "rehearsed"
    rivals: str = ""  # name of the training, if other cases run the same training with other schedules
    scale: float | None = None  # time-dilation factor of a dry run; None if the benchmark chooses it
    uses_hosts: bool = False  # True to run on emulated hosts
    tags: Mapping[str, Any] = field(default_factory=dict)  # values by which a table selects the case

    def design(self, steps: int) -> Design:
        """Return the design with the given number of training steps."""
        return parse_design(
            {**self.document, "name": self.name, "training": {**self.document["training"], "steps": steps}}
        )


UNIT = {"kind": "unit", "forward": 1.0, "backward": 2.0}
MODEL = {"kind": "gpt", "layers": 32, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 257}
"""Model of designs with costs in units: small tensors, and enough layers for many stages."""
WIDE = {**MODEL, "layers": 16, "hidden": 256, "sequence": 128}
"""Model of designs with costs in seconds; a microbatch of two sequences has activations of 256 KiB."""
DEEP = {**WIDE, "hidden": 128, "sequence": 256}
"""Model of designs that reduce gradients: fewer weights, longer sequences."""
LONG = {**WIDE, "hidden": 64, "sequence": 512}
"""Model of designs with documents of unlike length, in which attention takes a large part of the time."""
PACKED: Document = {"document_end": 10}
"""Training on documents that end with a newline."""
LENGTHS = (512, 384, 64, 96, 256, 160, 32, 48, 448, 320, 128, 80, 224, 512, 96, 64)
"""Lengths of the documents in dry runs: one for each sequence of a step, if they are padded."""
CORE = {
    "name": "CPU core",
    "peak_flops": 6e10,
    "memory_bytes": 4e9,
    "memory_bandwidth": 1.2e10,
    "efficiency": 0.5,
}
LINK = {"latency_s": 1e-4, "bandwidth": 6e7}
"""Link whose speed relative to a CPU core is that of a NIC relative to a GPU.

This machine can carry all messages of a dry run over such links in dilated time.
"""
SLOW = {"latency_s": 1e-4, "bandwidth": 8e6}
"""Link on which 256 KiB take half as long as the forward of a stage with four layers."""
MICROBATCHES = 8


def case_document(
    schedule: Mapping[str, Any],
    meshes: MeshShapes = ((1, 1),) * 4,
    *,
    cp: int = 1,
    microbatches: int = MICROBATCHES,
    model: Document = WIDE,
    cost: Document | None = None,
    link: Document = LINK,
    between: Document | None = None,
    per_node: int | None = None,
    devices: Sequence[Sequence[int]] | None = None,
    training: Document | None = None,
    **sections: Document,
) -> dict[str, Any]:
    """Return a design document on the cluster of this benchmark.

    ``meshes`` are the dp and tp of each mesh, and ``cp`` is that of all meshes. ``between`` is the link between nodes of ``per_node`` devices. ``devices`` are the devices of each mesh, by default
    assigned in order.
    """
    in_order = iter(range(sum(dp * cp * tp for dp, tp in meshes)))
    placed = devices or [[next(in_order) for _ in range(dp * cp * tp)] for dp, tp in meshes]
    drawn = [
        {"name": f"m{rank}", "devices": list(own), "axes": {"dp": dp, **({"cp": cp} if cp > 1 else {}), "tp": tp}}
        for rank, ((dp, tp), own) in enumerate(zip(meshes, placed, strict=True))
    ]
    used = sum(len(mesh["devices"]) for mesh in drawn)
    nodes = used // per_node if per_node else 1
    cluster = {"nodes": nodes, "devices_per_node": used // nodes, "device": CORE}
    return {
        "format": "meshwave/1",
        "cluster": {**cluster, "intra_node": link, "inter_node": between or link},
        "model": model,
        "meshes": drawn,
        "pipeline": {"microbatches": microbatches, **schedule},
        "training": {"micro_batch_size": 2, "precision": "fp32", **(training or {})},
        "cost": cost or {"kind": "roofline"},
        **sections,
    }


SCHEDULES: Mapping[str, Document] = {
    "gpipe": {"schedule": "gpipe"},
    "1f1b": {"schedule": "1f1b"},
    "eager 1f1b": {"schedule": "eager-1f1b"},
    "gems": {"schedule": "gems"},
    "chimera": {"schedule": "chimera"},
    "interleaved 1f1b": {"schedule": "interleaved-1f1b", "chunks": 2},
    "looped bfs": {"schedule": "looped-bfs", "chunks": 2},
    "hanayo, 1 wave": {"schedule": "hanayo", "waves": 1},
    "hanayo, 2 waves": {"schedule": "hanayo", "waves": 2},
    "zb-h1": {"schedule": "zb-h1"},
    "zb-h2": {"schedule": "zb-h2"},
    "zb-v": {"schedule": "zb-v"},
    "interleaved zb": {"schedule": "interleaved-zb", "chunks": 2},
    "v-half": {"schedule": "v-half"},
    "v-min": {"schedule": "v-min"},
    "dualpipe": {"schedule": "dualpipe"},
    "dualpipe-v": {"schedule": "dualpipe-v"},
    "auto": {"schedule": "auto"},
}
"""All schedules except custom orders, by a name for the schedule and its options."""


def select_schedules(*names: str) -> Iterator[tuple[str, Document]]:
    """Yield the named schedules with their options."""
    return ((name, SCHEDULES[name]) for name in names)


def _schedule_cases(
    schedules: Iterable[tuple[str, Document]], training: str, group: str = "", **options: Any
) -> Iterator[Case]:
    """Yield cases of the same training with several schedules."""
    for name, schedule in schedules:
        yield Case(f"{training}: {name}", group or training, case_document(schedule, **options), rivals=training)


def dry_run_cases() -> Iterator[Case]:
    """Yield the dry runs without emulated hosts.

    They cover all schedules, 2 to 8 meshes, dp, tp, experts and unequal meshes, and transfers that take between no time
    and the time of a forward.
    """
    four, two, eight = ((1, 1),) * 4, ((1, 1),) * 2, ((1, 1),) * 8
    yield from _schedule_cases(
        SCHEDULES.items(), "4 meshes", "every schedule, 4 meshes", meshes=four, model=MODEL, cost=UNIT
    )
    some: tuple[str, ...] = (
        "gpipe",
        "1f1b",
        "chimera",
        "interleaved 1f1b",
        "hanayo, 1 wave",
        "hanayo, 2 waves",
        "zb-h1",
        "zb-v",
    )
    yield from _schedule_cases(
        select_schedules(*some), "8 meshes", meshes=eight, model=MODEL, cost={**UNIT, "transfer": 0.1}
    )
    some = ("gpipe", "1f1b", "eager 1f1b", "interleaved 1f1b", "hanayo, 1 wave", "hanayo, 2 waves", "zb-h1")
    yield from _schedule_cases(select_schedules(*some), "4 meshes, slow links", meshes=four, link=SLOW)
    yield from _schedule_cases(select_schedules("1f1b", "hanayo, 2 waves", "zb-v"), "2 meshes", meshes=two)
    yield from _parallel_cases()
    yield from _expert_cases()
    yield from _unequal_mesh_cases()
    yield from _message_cases()
    yield from _model_cases()
    yield from _offload_cases()


def _parallel_cases() -> Iterator[Case]:
    copies, halves = "data parallel", "tensor parallel"
    some = select_schedules("gpipe", "1f1b", "interleaved 1f1b")
    yield from _schedule_cases(some, "2 meshes of dp 2", copies, meshes=((2, 1),) * 2, model=DEEP)
    yield from _schedule_cases(select_schedules("1f1b"), "4 meshes of dp 2", copies, meshes=((2, 1),) * 4, model=DEEP)
    some = select_schedules("1f1b", "hanayo, 1 wave", "zb-h1")
    yield from _schedule_cases(some, "2 meshes of tp 2", halves, meshes=((1, 2),) * 2, model=DEEP)
    yield from _schedule_cases(
        select_schedules("1f1b"), "2 meshes of dp 2 x tp 2", halves, meshes=((2, 2),) * 2, model=DEEP
    )


MOE = {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2}


def _expert_cases() -> Iterator[Case]:
    model = {**DEEP, "layers": 8, "moe": MOE}
    alone = case_document({"schedule": "1f1b"}, ((2, 2),), microbatches=4, model=model, experts={"ep": 4})
    yield Case("experts: one mesh of dp 2 x tp 2, ep 4", "experts", alone)
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "model": model, "experts": {"ep": 2}}
    yield from _schedule_cases(
        select_schedules("1f1b", "hanayo, 1 wave"), "experts: 2 meshes of dp 2", "experts", **pair
    )
    four = {**pair, "meshes": ((2, 1),) * 4, "model": {**model, "layers": 16}}
    yield from _schedule_cases(select_schedules("interleaved 1f1b"), "experts: 4 meshes of dp 2", "experts", **four)


def _unequal_mesh_cases() -> Iterator[Case]:
    shapes: Mapping[str, MeshShapes] = {
        "dp 2 to tp 2": ((2, 1), (1, 2)),
        "1, 2 and 1 devices": ((1, 1), (2, 1), (1, 1)),
        "tp 2 to dp 2 to dp 2 x tp 2": ((1, 2), (2, 1), (2, 2)),
    }
    for name, meshes in shapes.items():
        drawn = case_document({"schedule": "eager-1f1b"}, meshes, model=DEEP)
        yield Case(f"unequal meshes: {name}", "unequal meshes", drawn)


SIZES: Mapping[str, tuple[int, int, float]] = {
    "32 KiB": (32, 1, 4.4e7),
    "256 KiB": (128, 2, 4.4e7),
    "1 MiB": (256, 4, 2.2e7),
    "4 MiB": (256, 16, 8.5e6),
}
"""Tokens per sequence, sequences and link rate in bytes/s, by the size of the activations of a microbatch.

At this rate a transfer takes a tenth of the time of its forward, a fifth for 1 MiB and half for 4 MiB, which is the
most that this machine can carry.
"""


def _message_cases() -> Iterator[Case]:
    for name, (sequence, batch, bandwidth) in SIZES.items():
        model, link = {**WIDE, "sequence": sequence}, {"latency_s": 1e-4, "bandwidth": bandwidth}
        drawn = case_document({"schedule": "1f1b"}, model=model, link=link, training={"micro_batch_size": batch})
        yield Case(f"messages of {name}", "messages", drawn)


def _model_cases() -> Iterator[Case]:
    skips = {**WIDE, "kind": "u-transformer", "layers": 12}
    yield from _schedule_cases(select_schedules("1f1b", "hanayo, 1 wave"), "skip connections", model=skips)
    uneven = {"schedule": "1f1b", "stages": [7, 3, 3, 3]}
    yield Case("uneven stages: 7, 3, 3 and 3 layers", "other", case_document(uneven))
    yield Case("recomputation: 1f1b", "other", case_document({"schedule": "1f1b", "recompute": "full"}))
    nodes: dict[str, Any] = {"between": SLOW, "per_node": 2}
    yield Case("two nodes: interleaved 1f1b", "other", case_document(SCHEDULES["interleaved 1f1b"], **nodes))


def _offload_cases() -> Iterator[Case]:
    """Yield cases in which the copies of activations take longer than all computations, or than the forwards only."""
    for rate in (1e8, 2e8):
        document = case_document(SCHEDULES["1f1b"], training={"activation_offload": 1.0})
        document["cluster"]["device"] = {**CORE, "host_bandwidth": rate}
        yield Case(f"activation offload at {rate / 1e6:g} MB/s: 1f1b", "activation offload", document)


# ---- training: as many processes as cores ----

PROFILE, RUN_PROFILE = "accuracy-bench.json", "accuracy-bench-run.json"
"""File names of the calibration profile, and of the profile of the first run with two stages.

Later runs with two stages are predicted with both profiles.
"""
GIVES_PROFILE, USES_PROFILE = "teaches", "learns"
"""Tags of the run from which a profile is made, and of the runs that use it."""
SMALL = {**WIDE, "layers": 4}


def training_cases() -> Iterator[Case]:
    """Yield training runs of one or two processes: one stage, two stages, data parallelism, tensor parallelism."""
    one, two, plain = ((1, 1),), ((1, 1),) * 2, SCHEDULES["1f1b"]
    default: Document = {}
    for name, meshes, schedule, model, training in (
        ("one process", one, plain, SMALL, default),
        ("one process, 4 sequences", one, plain, SMALL, {"micro_batch_size": 4}),
        ("one process, hidden 384", one, plain, {**SMALL, "hidden": 384}, default),
        ("one process, recomputation", one, {**plain, "recompute": "full"}, SMALL, default),
        ("one process, packed documents", one, plain, {**SMALL, "sequence": 512}, PACKED),
        ("one process, padded documents", one, plain, {**SMALL, "sequence": 512}, {**PACKED, "pad_documents": True}),
        ("two copies", ((2, 1),), plain, SMALL, default),
        ("two halves (tp 2)", ((1, 2),), plain, SMALL, default),
        ("two halves with divided tokens", ((1, 2),), plain, SMALL, {"sequence_parallel": True}),
        ("experts on two copies", ((2, 1),), plain, {**SMALL, "moe": MOE}, default),
        *(
            (f"two stages: {name}", two, {**SCHEDULES[name], "stages": stages}, SMALL, default)
            for name, stages in STAGE_LAYERS.items()
        ),
    ):
        cost = {"kind": "calibrated", "profile": PROFILE}
        drawn = case_document(schedule, meshes, microbatches=4, model=model, cost=cost, training=training)
        tags = {USES_PROFILE if name != "two stages: 1f1b" else GIVES_PROFILE: "two stages"} if meshes == two else {}
        yield Case(f"real, {name}", "real compute", drawn, "measured", "two stages" * (meshes == two), tags=tags)


STAGE_LAYERS: Mapping[str, Sequence[int]] = {
    "1f1b": [2, 2],
    "gpipe": [2, 2],
    "interleaved 1f1b": [1, 1, 1, 1],
    "hanayo, 1 wave": [1, 1, 1, 1],
    "zb-h1": [2, 2],
    "zb-v": [1, 1, 1, 1],
}
"""Layers of each stage, by schedule; the profile is made from the first schedule."""


# ---- limits of dry runs ----

SHORTEST_MS = (2, 5, 10, 20, 40)
RANKS = (2, 4, 8, 16)
MESSAGES: Mapping[str, int] = {"64 KiB": 1, "1 MiB": 16, "4 MiB": 64, "16 MiB": 256}
"""Number of 64 KiB sequences in a microbatch, by the size of its activations."""


def limit_cases() -> Iterator[Case]:
    """Yield dry runs of 1F1B with short actions, many ranks, or messages that exceed the rate of links."""
    plain: dict[str, Any] = {"model": MODEL, "cost": UNIT}
    for shortest in SHORTEST_MS:
        drawn = case_document(SCHEDULES["1f1b"], **plain)
        tags = {"limit": "shortest action", "value": f"{shortest} ms"}
        yield Case(f"limit: actions of {shortest} ms", "limits", drawn, scale=shortest / 1e3, tags=tags)
    for ranks in RANKS:
        drawn = case_document(SCHEDULES["1f1b"], ((1, 1),) * ranks, **plain)
        tags = {"limit": "processes", "value": str(ranks)}
        yield Case(f"limit: {ranks} processes", "limits", drawn, scale=0.02, tags=tags)
    model = {**MODEL, "layers": 4, "hidden": 128, "sequence": 128}
    for size, batch in MESSAGES.items():
        cost = {**UNIT, "transfer": 0.5}
        drawn = case_document(SCHEDULES["1f1b"], model=model, cost=cost, training={"micro_batch_size": batch})
        tags = {"limit": "message", "value": size}
        yield Case(f"limit: transfers of 10 ms, {size}", "limits", drawn, scale=0.02, tags=tags)
