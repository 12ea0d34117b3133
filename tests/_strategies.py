"""Hypothesis strategies of the property tests: pipelines of every schedule, random programs, costs and documents."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.lowering.updates import add_updates
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program, build_program, format_program
from meshwave.engine.resharding import orderings, strategies
from meshwave.engine.schedules import Pipe, schedules
from tests.conftest import EXAMPLES

LINK = {"latency_s": 1e-5, "bandwidth": 25e9}
A100 = {"name": "A100", "peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12, "efficiency": 0.5}
GPT = {"kind": "gpt", "layers": 240, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 256}


def examples(by_day: int) -> int:
    """Return the number of examples for a slow property: ``by_day`` by default, scaled in other profiles."""
    assert settings.default is not None
    return max(1, by_day * settings.default.max_examples // EXAMPLES)


def document(pipeline: Mapping[str, Any], ranks: int, *, dp: int = 1, **sections: Any) -> dict[str, Any]:
    """Return a design of ``ranks`` equal meshes of ``dp`` devices with unit costs and the given ``pipeline``."""
    shared = {
        "format": "meshwave/1",
        "name": "a test",
        "cluster": {"nodes": ranks, "devices_per_node": dp, "device": A100, "intra_node": LINK, "inter_node": LINK},
        "model": GPT,
        "meshes": [
            {"name": f"m{rank}", "devices": [rank * dp + copy for copy in range(dp)], "axes": {"dp": dp, "tp": 1}}
            for rank in range(ranks)
        ],
        "pipeline": dict(pipeline),
        "cost": {"kind": "unit", "forward": 1.0, "backward": 2.0},
        **sections,
    }
    return deepcopy(shared)  # a test may change its own


# ---- pipelines of every schedule ----


@dataclass(frozen=True)
class Drawn:
    """A pipeline section of a document, and its number of meshes."""

    pipeline: Mapping[str, Any]
    ranks: int

    @property
    def microbatches(self) -> int:
        return int(self.pipeline["microbatches"])

    def document(self, dp: int = 1, **sections: Any) -> dict[str, Any]:
        return document(self.pipeline, self.ranks, dp=dp, **sections)

    def design(self, dp: int = 1, **sections: Any) -> Design:
        return parse_design(self.document(dp, **sections))


def option(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw small values of a schedule's option of any type."""
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if annotation in (None, NoneType):
        return st.none()
    inner = [each for each in get_args(annotation) if each is NoneType or isinstance(each, type) or get_args(each)]
    return st.one_of(*map(option, inner)) if inner and get_origin(annotation) is not None else st.integers(1, 4)


@st.composite
def pipelines(draw: st.DrawFn, name: str, ranks: int = 5, microbatches: int = 9) -> Drawn:
    """Draw a pipeline that the schedule ``name`` accepts, with any of its options."""
    if name == "custom":
        return custom(draw(compute_programs(ranks, 4)))
    options = {field: draw(option(info.annotation)) for field, info in schedules[name].model_fields.items()}
    schedule, sizes = schedules[name](**options), product(range(1, ranks + 1), range(1, microbatches + 1))
    accepted = [size for size in sizes if schedule.refusal(Pipe(*size)) is None]
    assume(accepted)
    count, mbs = draw(st.sampled_from(accepted))
    return Drawn({"schedule": name, "microbatches": mbs, **options}, count)


def custom(program: Program) -> Drawn:
    """Return the computations of a program as a custom order."""
    orders = format_program(program, compute_only=True)
    return Drawn({"schedule": "custom", "microbatches": program.microbatches, "actions": orders}, program.ranks)


# ---- programs of no schedule ----


@st.composite
def compute_programs(draw: st.DrawFn, ranks: int = 4, microbatches: int = 4, *, slots: bool = False) -> Program:
    """Draw valid computations in a random order.

    The order is a random sequence of computations whose inputs exist. Stages are on any ranks, on one or two routes;
    backwards are full or split; with ``slots`` some share a slot with a forward.
    """
    count, mbs = draw(st.integers(1, ranks)), draw(st.integers(1, microbatches))
    stages = count + draw(st.integers(0, 4))
    chance = random.Random(draw(st.integers(0, 2**32)))
    places = [*range(count), *(chance.randrange(count) for _ in range(stages - count))]
    chance.shuffle(places)
    routes = [places]
    if mbs > 1 and draw(st.booleans()):
        routes.append(chance.sample(places, stages))
    route_of = [0, *(chance.randrange(len(routes)) for _ in range(mbs - 1))]
    split = [chance.random() < 0.5 for _ in range(mbs)] if draw(st.booleans()) else [False] * mbs
    paths = [path(stages, mb, split[mb]) for mb in range(mbs)]

    def rank_of(action: Action) -> int:
        return routes[route_of[action.microbatch]][action.stage]

    orders: list[list[Action]] = [[] for _ in range(count)]
    weights: list[tuple[int, Action]] = []  # may run whenever
    while any(paths) or weights:
        if weights and (chance.random() < 0.3 or not any(paths)):
            rank, action = weights.pop(chance.randrange(len(weights)))
            orders[rank].append(action)
            continue
        mb = chance.choice([mb for mb in range(mbs) if paths[mb]])
        rank = rank_of(paths[mb][0])
        beside = [
            path[0]
            for path in paths
            if slots and path and paths[mb][0].op == Op.F and path[0].op != Op.F and rank_of(path[0]) == rank
        ]
        together = [paths[mb][0], *(action._replace(fused=1) for action in beside[:1])]
        for action in together:
            paths[action.microbatch].pop(0)
            orders[rank].append(action)
            if action.op == Op.I:
                weights.append((rank, Action(Op.W, action.stage, action.microbatch)))
    return build_program(orders)


def path(stages: int, mb: int, split: bool) -> list[Action]:
    """Return the stages that a microbatch passes: forward through all stages, then back."""
    back = Op.I if split else Op.B
    return [
        *(Action(Op.F, stage, mb) for stage in range(stages)),
        *(Action(back, stage, mb) for stage in reversed(range(stages))),
    ]


@st.composite
def programs(draw: st.DrawFn, ranks: int = 4, microbatches: int = 4, *, slots: bool = False) -> Program:
    """Draw valid programs with transfers and updates; in some of them tensors skip stages."""
    compute = draw(compute_programs(ranks, microbatches, slots=slots))
    copies = tuple(draw(st.lists(st.integers(1, 2), min_size=compute.ranks, max_size=compute.ranks)))
    skips = draw(st.just(()) | skips_between(compute.stages))
    return add_updates(add_transfers(compute, skips), copies, clips=draw(st.booleans()))


@st.composite
def skips_between(draw: st.DrawFn, stages: int) -> tuple[tuple[int, int, int], ...]:
    """Draw pairs of stages, and the number of tensors that skip from one to the other."""
    pairs = list(combinations(range(stages), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=4, unique=True)) if pairs else []
    return tuple((*pair, draw(st.integers(1, 3))) for pair in sorted(chosen))


def seconds(program: Program, seed: int, values: Sequence[float] = (0.0, 0.1, 0.3, 0.7, 1.0, 1.9)) -> NDArray[Any]:
    """Draw costs ``[rows]`` from ``values``, which are inexact to add and often equal or zero."""
    return np.random.default_rng(seed).choice(values, len(program))


seeds = st.integers(0, 2**32 - 1)


# ---- documents ----

written = st.characters(exclude_categories=("Cc", "Cs"))
names = st.text(written, min_size=1, max_size=20)
positive = st.floats(1, 1e15)
links = st.fixed_dictionaries({"latency_s": st.floats(0, 1), "bandwidth": positive})
device = st.fixed_dictionaries(
    {"peak_flops": positive, "memory_bytes": positive, "memory_bandwidth": positive},
    optional={"name": st.text(written, max_size=20), "efficiency": st.floats(0.01, 1)},
)
experts = st.fixed_dictionaries(
    {"experts": st.integers(1, 8), "top_k": st.just(1)},
    optional={"capacity_factor": st.none() | st.floats(0.01, 65_536), "every": st.integers(1, 4)},
)
training = st.fixed_dictionaries(
    {},
    optional={
        "micro_batch_size": st.integers(1, 64),
        "steps": st.integers(1, 1000),
        "optimizer": st.sampled_from(["adamw", "sgd"]),
        "lr": st.floats(1e-6, 1),
        "lr_schedule": st.sampled_from(["constant", "linear", "cosine", "sqrt"]),
        "warmup_steps": st.integers(0, 2000),
        "decay_steps": st.none() | st.integers(1, 2000),
        "min_lr_factor": st.floats(0, 1),
        "weight_decay": st.floats(0, 1),
        "clip_norm": st.none() | st.floats(0.1, 10),
        "precision": st.sampled_from(["fp32", "bf16", "fp64"]),
        "seed": st.integers(0, 2**63 - 1),
        "data": st.none() | st.just("my text.txt"),
    },
)
transfer = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(list(strategies)),
        "ordering": st.sampled_from(list(orderings)),
        "batched": st.booleans(),
    },
)
transfer_models = {
    "transfer_model": st.sampled_from(["latency", "sender-blocking", "link-serial", "half-duplex", "batched"])
}
unit_cost = st.fixed_dictionaries(
    {"kind": st.just("unit")},
    optional={"forward": positive.map(lambda cost: min(cost, 1e9)), "transfer": st.floats(0, 9), **transfer_models},
)
roofline = st.fixed_dictionaries({"kind": st.just("roofline")}, optional=transfer_models)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw valid documents in which any optional keys may be missing."""
    drawn = draw(st.sampled_from(list(schedules)).flatmap(lambda name: pipelines(name, 4, 4)))
    axes = [
        draw(st.fixed_dictionaries({}, optional={"dp": st.integers(1, 3), "tp": st.sampled_from([1, 2])}))
        for _ in range(drawn.ranks)
    ]
    ends = np.cumsum([0] + [axis.get("dp", 1) * axis.get("tp", 1) for axis in axes]).tolist()
    mesh_names = draw(st.lists(names, min_size=drawn.ranks, max_size=drawn.ranks, unique=True))
    stages = drawn.design().stages
    given = st.none() | st.lists(st.integers(1, 9), min_size=stages, max_size=stages)
    layers = draw(given)
    pipeline = {**drawn.pipeline, **({"stages": layers} if layers else {})}
    model = {
        "kind": draw(st.sampled_from(["gpt", "bert"])),
        "layers": sum(layers) if layers else stages + draw(st.integers(0, 9)),
        "hidden": 8 * draw(st.integers(1, 99)),
        "heads": draw(st.sampled_from([2, 4, 8])),
        "sequence": draw(st.integers(1, 4096)),
        "vocab": draw(st.integers(1, 99_999)),
        **draw(
            st.fixed_dictionaries({}, optional={"ffn": st.none() | st.integers(1, 999), "moe": st.none() | experts})
        ),
    }
    columns = st.lists(positive.map(lambda cost: min(cost, 1e9)), min_size=stages, max_size=stages)
    costs = st.none() | st.fixed_dictionaries({"forward": columns, "input": columns, "weight": columns})
    moe: Any = model.get("moe")
    layered = {}
    if moe and any(axis.get("tp") == 2 for axis in axes):  # groups of experts take its devices whole
        moe["experts"] *= 2
        layered = {"experts": {"ep": 2}}
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 1 + draw(st.integers(0, 2)),
            "devices_per_node": ends[-1],
            "device": draw(device),
            "intra_node": draw(links),
            "inter_node": draw(links),
        },
        "model": model,
        "meshes": [
            {"name": name, "devices": list(range(first, end)), "axes": axis}
            for name, axis, (first, end) in zip(mesh_names, axes, pairwise(ends), strict=True)
        ],
        "pipeline": pipeline,
        **layered,
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": st.text(written, max_size=40),
                    "training": training,
                    "transfer": transfer,
                    "cost": st.builds(lambda cost, given: {**cost, "stage_costs": given}, unit_cost | roofline, costs),
                },
            )
        ),
    }
