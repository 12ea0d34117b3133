"""The designs that are measured, as data: what each changes of the one that they all come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwave.engine.document import Design, parse_design

Way = Literal["rehearsed", "measured"]
"""Whether stages wait or compute, in the words of a timeline's source."""
Document = Mapping[str, Any]
Drawn = tuple[tuple[int, int], ...]
"""``(dp, tp)`` of each mesh; devices are taken in order."""


@dataclass(frozen=True)
class Case:
    """One design, and how it is measured."""

    name: str
    group: str  # what it stands for
    document: Document
    way: Way = "rehearsed"
    rivals: str = ""  # names the training, where others are the same one in other schedules
    scale: float | None = None  # of a rehearsal, where it is not for the bench to choose
    on_hosts: bool = False  # over links that the kernel shapes
    tags: Mapping[str, Any] = field(default_factory=dict)  # what a table needs to find it

    def design(self, steps: int) -> Design:
        """The design, to be trained so many steps."""
        return parse_design(
            {**self.document, "name": self.name, "training": {**self.document["training"], "steps": steps}}
        )


UNIT = {"kind": "unit", "forward": 1.0, "backward": 2.0}
MODEL = {"kind": "gpt", "layers": 32, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 257}
"""Wherever costs are units: small, since its tensors are not what it is about, but with a layer for each of many stages."""
WIDE = {**MODEL, "layers": 16, "hidden": 256, "sequence": 128}
"""Wherever costs are seconds: a microbatch of two sequences hands on 256 KiB."""
DEEP = {**WIDE, "hidden": 128, "sequence": 256}
"""Wherever weights travel too: fewer of them, on longer texts."""
CORE = {
    "name": "CPU core",
    "peak_flops": 6e10,
    "memory_bytes": 4e9,
    "memory_bandwidth": 1.2e10,
    "efficiency": 0.5,
}
LINK = {"latency_s": 1e-4, "bandwidth": 6e7}
"""As much slower than a core as a network card is than a GPU, and what this machine can carry for all of a design in
the stretched time of its rehearsal."""
SLOW = {"latency_s": 1e-4, "bandwidth": 8e6}
"""On which 256 KiB take half as long as a forward of a stage of four layers."""
MICROBATCHES = 8


def document(
    schedule: Mapping[str, Any],
    meshes: Drawn = ((1, 1),) * 4,
    *,
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
    """A document on the bench's own cluster; ``between`` is its link between nodes of ``per_node`` devices. ``devices``
    are those of each mesh, where they are not taken in order."""
    in_order = iter(range(sum(dp * tp for dp, tp in meshes)))
    placed = devices or [[next(in_order) for _ in range(dp * tp)] for dp, tp in meshes]
    drawn = [
        {"name": f"m{rank}", "devices": list(own), "axes": {"dp": dp, "tp": tp}}
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


EVERY: Mapping[str, Document] = {
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
"""Every schedule that orders by itself, with the options that its name stands for here."""


def _of(*names: str) -> Iterator[tuple[str, Document]]:
    return ((name, EVERY[name]) for name in names)


def _in(schedules: Iterable[tuple[str, Document]], training: str, group: str = "", **what: Any) -> Iterator[Case]:
    """The same training in several schedules."""
    for name, schedule in schedules:
        yield Case(f"{training}: {name}", group or training, document(schedule, **what), rivals=training)


def rehearsals() -> Iterator[Case]:
    """All schedules; 2 to 8 meshes; dp, tp, experts, unequal meshes; transfers from nothing to a forward's length."""
    four, two, eight = ((1, 1),) * 4, ((1, 1),) * 2, ((1, 1),) * 8
    yield from _in(EVERY.items(), "4 meshes", "every schedule, 4 meshes", meshes=four, model=MODEL, cost=UNIT)
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
    yield from _in(_of(*some), "8 meshes", meshes=eight, model=MODEL, cost={**UNIT, "transfer": 0.1})
    some = ("gpipe", "1f1b", "eager 1f1b", "interleaved 1f1b", "hanayo, 1 wave", "hanayo, 2 waves", "zb-h1")
    yield from _in(_of(*some), "4 meshes, slow links", meshes=four, link=SLOW)
    yield from _in(_of("1f1b", "hanayo, 2 waves", "zb-v"), "2 meshes", meshes=two)
    yield from _cut()
    yield from _experts()
    yield from _unequal()
    yield from _sizes()
    yield from _models()


def _cut() -> Iterator[Case]:
    copies, halves = "data parallel", "tensor parallel"
    some = _of("gpipe", "1f1b", "interleaved 1f1b")
    yield from _in(some, "2 meshes of dp 2", copies, meshes=((2, 1),) * 2, model=DEEP)
    yield from _in(_of("1f1b"), "4 meshes of dp 2", copies, meshes=((2, 1),) * 4, model=DEEP)
    some = _of("1f1b", "hanayo, 1 wave", "zb-h1")
    yield from _in(some, "2 meshes of tp 2", halves, meshes=((1, 2),) * 2, model=DEEP)
    yield from _in(_of("1f1b"), "2 meshes of dp 2 x tp 2", halves, meshes=((2, 2),) * 2, model=DEEP)


MOE = {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2}


def _experts() -> Iterator[Case]:
    model = {**DEEP, "layers": 8, "moe": MOE}
    alone = document({"schedule": "1f1b"}, ((2, 2),), microbatches=4, model=model, experts={"ep": 4})
    yield Case("experts: one mesh of dp 2 x tp 2, ep 4", "experts", alone)
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "model": model, "experts": {"ep": 2}}
    yield from _in(_of("1f1b", "hanayo, 1 wave"), "experts: 2 meshes of dp 2", "experts", **pair)
    four = {**pair, "meshes": ((2, 1),) * 4, "model": {**model, "layers": 16}}
    yield from _in(_of("interleaved 1f1b"), "experts: 4 meshes of dp 2", "experts", **four)


def _unequal() -> Iterator[Case]:
    shapes: Mapping[str, Drawn] = {
        "dp 2 to tp 2": ((2, 1), (1, 2)),
        "1, 2 and 1 devices": ((1, 1), (2, 1), (1, 1)),
        "tp 2 to dp 2 to dp 2 x tp 2": ((1, 2), (2, 1), (2, 2)),
    }
    for name, meshes in shapes.items():
        drawn = document({"schedule": "eager-1f1b"}, meshes, model=DEEP)
        yield Case(f"unequal meshes: {name}", "unequal meshes", drawn)


SIZES: Mapping[str, tuple[int, int, float]] = {
    "32 KiB": (32, 1, 4.4e7),
    "256 KiB": (128, 2, 4.4e7),
    "1 MiB": (256, 4, 2.2e7),
    "4 MiB": (256, 16, 8.5e6),
}
"""By what a microbatch hands on: tokens of a sequence, sequences, and bytes/s at which that takes a tenth of the forward
that made it, a fifth for 1 MiB and half of it for 4 MiB: as fast as this bench's machine brings so much."""


def _sizes() -> Iterator[Case]:
    for name, (sequence, batch, bandwidth) in SIZES.items():
        model, link = {**WIDE, "sequence": sequence}, {"latency_s": 1e-4, "bandwidth": bandwidth}
        drawn = document({"schedule": "1f1b"}, model=model, link=link, training={"micro_batch_size": batch})
        yield Case(f"messages of {name}", "messages", drawn)


def _models() -> Iterator[Case]:
    skips = {**WIDE, "kind": "u-transformer", "layers": 12}
    yield from _in(_of("1f1b", "hanayo, 1 wave"), "skip connections", model=skips)
    uneven = {"schedule": "1f1b", "stages": [7, 3, 3, 3]}
    yield Case("uneven stages: 7, 3, 3 and 3 layers", "other", document(uneven))
    yield Case("recomputation: 1f1b", "other", document({"schedule": "1f1b", "recompute": "full"}))
    nodes: dict[str, Any] = {"between": SLOW, "per_node": 2}
    yield Case("two nodes: interleaved 1f1b", "other", document(EVERY["interleaved 1f1b"], **nodes))


# ---- shared links that the kernel shapes ----

INSIDE = {"latency_s": 1e-5, "bandwidth": 6e7}
"""Of a node: its latency is what this machine's own is."""
SPREAD = ((1, 1),) * 4, [[0], [2], [1], [3]]
"""Four meshes on nodes 0, 1, 0 and 1, so that every message passes the NICs."""


def _nic(megabytes: float) -> Document:
    return {"latency_s": 1e-5, "bandwidth": megabytes * 1e6}


def _on_hosts(schedules: Iterable[tuple[str, Document]], training: str, group: str, **what: Any) -> Iterator[Case]:
    """The same training in several schedules on two emulated hosts, unless ``per_node`` makes more."""
    size = sum(dp * tp for dp, tp in what["meshes"])
    for name, schedule in schedules:
        drawn = document(schedule, link=INSIDE, **{"per_node": size // 2, **what})
        yield Case(f"hosts, {training}: {name}", f"hosts, {group}", drawn, rivals=f"hosts, {training}", on_hosts=True)


INTERLEAVED = {"schedule": "interleaved-1f1b", "chunks": 4}


def on_hosts() -> Iterator[Case]:
    """Designs whose flows share links, on emulated hosts: there the kernel shares them, whatever the model says."""
    meshes, devices = SPREAD
    some = _of("1f1b", "eager 1f1b", "interleaved 1f1b", "hanayo, 2 waves", "zb-h1")
    yield from _on_hosts(some, "alternating, 8 MB/s", "alternating", meshes=meshes, devices=devices, between=_nic(8))
    some = _of("gpipe", "1f1b", "eager 1f1b", "interleaved 1f1b")
    yield from _on_hosts(some, "alternating, 3 MB/s", "alternating", meshes=meshes, devices=devices, between=_nic(3))
    two = ((1, 1),) * 2
    more = ("interleaved 1f1b, 4 chunks", INTERLEAVED)
    several = (*_of("1f1b", "hanayo, 2 waves", "looped bfs"), more)
    yield from _on_hosts(several, "one link, 2.5 MB/s", "one link", meshes=two, between=_nic(2.5))
    several = (*_of("hanayo, 2 waves"), more)
    yield from _on_hosts(several, "one link, 1.5 MB/s", "one link", meshes=two, between=_nic(1.5))
    yield from _reductions_on_hosts()
    yield from _exchanges_on_hosts()
    yield from _resharding_on_hosts()


def _reductions_on_hosts() -> Iterator[Case]:
    """Gradients and transfers both pass the NICs: neighbours in a pipeline and in a ring are on different nodes."""
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [3, 1]], "model": DEEP}
    some = _of("1f1b", "interleaved 1f1b")
    yield from _on_hosts(some, "2 meshes of dp 2", "data parallel", between=_nic(12), **pair)
    four: dict[str, Any] = {"meshes": ((2, 1),) * 4, "devices": [[0, 4], [5, 1], [2, 6], [7, 3]], "model": DEEP}
    yield from _on_hosts(_of("1f1b"), "4 meshes of dp 2", "data parallel", between=_nic(12), **four)
    yield from _on_hosts(_of("chimera"), "replicas", "data parallel", meshes=((1, 1),) * 4, between=_nic(8))


def _exchanges_on_hosts() -> Iterator[Case]:
    """Collectives inside stages pass the NICs, beside each other and beside transfers."""
    halves: dict[str, Any] = {"meshes": ((1, 2),) * 2, "model": DEEP, "between": _nic(24)}
    some = _of("1f1b", "hanayo, 1 wave")
    yield from _on_hosts(some, "2 meshes of tp 2", "tensor parallel", devices=[[0, 2], [1, 3]], **halves)
    yield from _on_hosts(_of("zb-h1"), "tp 2, turned", "tensor parallel", devices=[[0, 2], [3, 1]], **halves)
    experts: dict[str, Any] = {"model": {**DEEP, "layers": 8, "moe": MOE}, "between": _nic(16)}
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "experts": {"ep": 2}, **experts}
    some = _of("1f1b", "hanayo, 1 wave")
    yield from _on_hosts(some, "experts on 2 meshes", "experts", devices=[[0, 2], [1, 3]], **pair)
    yield from _on_hosts(_of("1f1b"), "experts, turned", "experts", devices=[[0, 2], [3, 1]], **pair)
    alone: dict[str, Any] = {"meshes": ((4, 1),), "microbatches": 4, "experts": {"ep": 4}, **experts}
    yield from _on_hosts(_of("1f1b"), "experts on 4 devices", "experts", **alone)


def _resharding_on_hosts() -> Iterator[Case]:
    """Boundaries at which tensors are cut and put together again, between nodes."""
    eager, what = _of("eager 1f1b"), {"model": DEEP, "between": _nic(2.5)}
    yield from _on_hosts(eager, "dp 2 to tp 2", "resharding", meshes=((2, 1), (1, 2)), **what)
    shapes: dict[str, Any] = {"meshes": ((1, 1), (2, 1), (1, 1)), "devices": [[0], [2, 3], [1]]}
    yield from _on_hosts(_of("eager 1f1b"), "1, 2 and 1 devices", "resharding", **shapes, **what)
    shapes = {"meshes": ((1, 2), (2, 1), (2, 2)), "devices": [[0, 1], [4, 5], [2, 3, 6, 7]]}
    yield from _on_hosts(_of("eager 1f1b"), "tp 2 to dp 2 to dp 2 x tp 2", "resharding", **shapes, **what)


# ---- real compute: as many processes as there are cores ----

PROFILE, TAUGHT = "accuracy-bench.json", "accuracy-bench-run.json"
"""By which these are predicted: the bench calibrates this machine before it runs them, and of two stages the first run
is a profile, too, by which the runs after it are predicted once more."""
TEACHES, LEARNS = "teaches", "learns"
SMALL = {**WIDE, "layers": 4}


def real() -> Iterator[Case]:
    """What two cores can truly compute: one process, two stages, two copies, two halves."""
    one, two = ((1, 1),), ((1, 1),) * 2
    for name, meshes, schedule, model, batch in (
        ("one process", one, EVERY["1f1b"], SMALL, 2),
        ("one process, 4 sequences", one, EVERY["1f1b"], SMALL, 4),
        ("one process, hidden 384", one, EVERY["1f1b"], {**SMALL, "hidden": 384}, 2),
        ("one process, recomputation", one, {**EVERY["1f1b"], "recompute": "full"}, SMALL, 2),
        ("two copies", ((2, 1),), EVERY["1f1b"], SMALL, 2),
        ("two halves (tp 2)", ((1, 2),), EVERY["1f1b"], SMALL, 2),
        ("experts on two copies", ((2, 1),), EVERY["1f1b"], {**SMALL, "moe": MOE}, 2),
        *((f"two stages: {name}", two, {**EVERY[name], "stages": stages}, SMALL, 2) for name, stages in REAL.items()),
    ):
        cost, training = {"kind": "calibrated", "profile": PROFILE}, {"micro_batch_size": batch}
        drawn = document(schedule, meshes, microbatches=4, model=model, cost=cost, training=training)
        tags = {LEARNS if name != "two stages: 1f1b" else TEACHES: "two stages"} if meshes == two else {}
        yield Case(f"real, {name}", "real compute", drawn, "measured", "two stages" * (meshes == two), tags=tags)


REAL: Mapping[str, Sequence[int]] = {
    "1f1b": [2, 2],
    "gpipe": [2, 2],
    "interleaved 1f1b": [1, 1, 1, 1],
    "hanayo, 1 wave": [1, 1, 1, 1],
    "zb-h1": [2, 2],
    "zb-v": [1, 1, 1, 1],
}
"""The layers of each stage; the first teaches."""


# ---- what limits a rehearsal ----

SHORTEST_MS = (2, 5, 10, 20, 40)
RANKS = (2, 4, 8, 16)
MESSAGES: Mapping[str, int] = {"64 KiB": 1, "1 MiB": 16, "4 MiB": 64, "16 MiB": 256}
"""By what a microbatch hands on: how many sequences of 64 KiB."""


def limits() -> Iterator[Case]:
    """1F1B where it gets hard: shorter actions, more ranks, larger messages than links should bring at once."""
    plain: dict[str, Any] = {"model": MODEL, "cost": UNIT}
    for shortest in SHORTEST_MS:
        drawn = document(EVERY["1f1b"], **plain)
        tags = {"limit": "shortest action", "value": f"{shortest} ms"}
        yield Case(f"limit: actions of {shortest} ms", "limits", drawn, scale=shortest / 1e3, tags=tags)
    for ranks in RANKS:
        drawn = document(EVERY["1f1b"], ((1, 1),) * ranks, **plain)
        tags = {"limit": "processes", "value": str(ranks)}
        yield Case(f"limit: {ranks} processes", "limits", drawn, scale=0.02, tags=tags)
    model = {**MODEL, "layers": 4, "hidden": 128, "sequence": 128}
    for size, batch in MESSAGES.items():
        cost = {**UNIT, "transfer": 0.5}
        drawn = document(EVERY["1f1b"], model=model, cost=cost, training={"micro_batch_size": batch})
        tags = {"limit": "message", "value": size}
        yield Case(f"limit: transfers of 10 ms, {size}", "limits", drawn, scale=0.02, tags=tags)


def accuracy() -> list[Case]:
    """All of ``meshwave bench accuracy``."""
    return [*rehearsals(), *on_hosts(), *limits(), *real()]
