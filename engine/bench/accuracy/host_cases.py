"""Cases on emulated hosts, whose links the kernel shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meshwave.engine.bench.accuracy.cases import (
    DEEP,
    LENGTHS,
    LONG,
    MOE,
    PACKED,
    SCHEDULES,
    Case,
    Document,
    case_document,
    select_schedules,
)

INSIDE = {"latency_s": 1e-5, "bandwidth": 6e7}
"""Link inside a node; its latency is that of this machine."""


ALTERNATING = ((1, 1),) * 4, [[0], [2], [1], [3]]
"""Four meshes on nodes 0, 1, 0 and 1, so that every message passes the NICs."""


def _nic_link(megabytes: float) -> Document:
    return {"latency_s": 1e-5, "bandwidth": megabytes * 1e6}


def _host_rivals(
    schedules: Iterable[tuple[str, Document]], training: str, group: str, /, **options: Any
) -> Iterator[Case]:
    """Yield cases of the same training with several schedules on two emulated hosts."""
    size = sum(dp * tp for dp, tp in options["meshes"]) * options.get("cp", 1)
    for name, schedule in schedules:
        drawn = case_document(schedule, link=INSIDE, **{"per_node": size // 2, **options})
        yield Case(f"hosts, {training}: {name}", f"hosts, {group}", drawn, rivals=f"hosts, {training}", uses_hosts=True)


INTERLEAVED = {"schedule": "interleaved-1f1b", "chunks": 4}


def host_cases() -> Iterator[Case]:
    """Yield the dry runs on emulated hosts, where links are shared by the kernel rather than by the model."""
    meshes, devices = ALTERNATING
    some = select_schedules("1f1b", "eager 1f1b", "interleaved 1f1b", "hanayo, 2 waves", "zb-h1")
    yield from _host_rivals(
        some, "alternating, 8 MB/s", "alternating", meshes=meshes, devices=devices, between=_nic_link(8)
    )
    some = select_schedules("gpipe", "1f1b", "eager 1f1b", "interleaved 1f1b")
    yield from _host_rivals(
        some, "alternating, 3 MB/s", "alternating", meshes=meshes, devices=devices, between=_nic_link(3)
    )
    two = ((1, 1),) * 2
    more = ("interleaved 1f1b, 4 chunks", INTERLEAVED)
    several = (*select_schedules("1f1b", "hanayo, 2 waves", "looped bfs"), more)
    yield from _host_rivals(several, "one link, 2.5 MB/s", "one link", meshes=two, between=_nic_link(2.5))
    several = (*select_schedules("hanayo, 2 waves"), more)
    yield from _host_rivals(several, "one link, 1.5 MB/s", "one link", meshes=two, between=_nic_link(1.5))
    yield from _host_reduction_cases()
    yield from _host_bucket_cases()
    yield from _host_step_cases()
    yield from _host_exchange_cases()
    yield from _host_context_cases()
    yield from _host_resharding_cases()
    yield from _host_overlap_cases()
    yield from _host_gather_cases()
    yield from _host_scatter_cases()
    yield from _host_document_cases()


def _host_reduction_cases() -> Iterator[Case]:
    """Yield cases in which gradient reductions and transfers share the NICs."""
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [3, 1]], "model": DEEP}
    some = select_schedules("1f1b", "interleaved 1f1b")
    yield from _host_rivals(some, "2 meshes of dp 2", "data parallel", between=_nic_link(12), **pair)
    four: dict[str, Any] = {"meshes": ((2, 1),) * 4, "devices": [[0, 4], [5, 1], [2, 6], [7, 3]], "model": DEEP}
    yield from _host_rivals(
        select_schedules("1f1b"), "4 meshes of dp 2", "data parallel", between=_nic_link(12), **four
    )
    yield from _host_rivals(
        select_schedules("chimera"), "replicas", "data parallel", meshes=((1, 1),) * 4, between=_nic_link(8)
    )


def _host_bucket_cases() -> Iterator[Case]:
    """Yield cases whose last backward hides reductions of buckets, each also with one reduction after it."""
    alone: dict[str, Any] = {"meshes": ((2, 1),), "microbatches": 2}
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [3, 1]], "microbatches": 4}
    trainings: tuple[tuple[str, str, Document, dict[str, Any]], ...] = (
        ("one mesh of dp 2", "1f1b", {}, alone),
        ("one mesh, sharded states", "1f1b", {"sharding": "optimizer"}, alone),
        ("2 meshes of dp 2, 1f1b", "1f1b", {}, pair),
        ("2 meshes of dp 2, zb-h1", "zb-h1", {}, pair),
    )
    for training, schedule, state, options in trainings:
        for title, buckets in (("in 8 buckets", 8), ("as a whole", 1)):
            how = {"micro_batch_size": 8, "gradient_buckets": buckets, **state}
            shown = {"training": how, "between": _nic_link(12), "model": DEEP, **options}
            yield from _host_rivals([(title, SCHEDULES[schedule])], training, "gradient buckets", **shown)


def _host_step_cases() -> Iterator[Case]:
    """Yield cases in which the optimizer steps of meshes share the NICs, since they gather weights."""
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [1, 3]], "model": DEEP, "microbatches": 4}
    sharding = {"micro_batch_size": 8, "sharding": "optimizer"}
    for training, state in (("at once", {"clip_norm": 1.0}), ("one by one", {})):
        shown = {"training": {**sharding, **state}, "between": _nic_link(12), **pair}
        yield from _host_rivals(select_schedules("1f1b"), f"steps {training}", "sharded states", **shown)


def _host_exchange_cases() -> Iterator[Case]:
    """Yield cases in which collectives inside stages share the NICs with each other and with transfers."""
    halves: dict[str, Any] = {"meshes": ((1, 2),) * 2, "model": DEEP, "between": _nic_link(24)}
    some = select_schedules("1f1b", "hanayo, 1 wave")
    yield from _host_rivals(some, "2 meshes of tp 2", "tensor parallel", devices=[[0, 2], [1, 3]], **halves)
    yield from _host_rivals(
        select_schedules("zb-h1"), "tp 2, turned", "tensor parallel", devices=[[0, 2], [3, 1]], **halves
    )
    divided = {**halves, "training": {"sequence_parallel": True}}
    some = select_schedules("1f1b", "hanayo, 1 wave")
    yield from _host_rivals(some, "divided tokens", "sequence parallel", devices=[[0, 2], [1, 3]], **divided)
    turned = select_schedules("zb-h1")
    yield from _host_rivals(turned, "turned, divided tokens", "sequence parallel", devices=[[0, 2], [3, 1]], **divided)
    experts: dict[str, Any] = {"model": {**DEEP, "layers": 8, "moe": MOE}, "between": _nic_link(16)}
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "experts": {"ep": 2}, **experts}
    some = select_schedules("1f1b", "hanayo, 1 wave")
    yield from _host_rivals(some, "experts on 2 meshes", "experts", devices=[[0, 2], [1, 3]], **pair)
    yield from _host_rivals(select_schedules("1f1b"), "experts, turned", "experts", devices=[[0, 2], [3, 1]], **pair)
    alone: dict[str, Any] = {"meshes": ((4, 1),), "microbatches": 4, "experts": {"ep": 4}, **experts}
    yield from _host_rivals(select_schedules("1f1b"), "experts on 4 devices", "experts", **alone)


def _host_context_cases() -> Iterator[Case]:
    """Yield cases whose devices exchange keys and values between nodes."""
    shape: dict[str, Any] = {"meshes": ((1, 1),) * 2, "cp": 2, "devices": [[0, 2], [1, 3]], "per_node": 2}
    links: dict[str, Any] = {"link": INSIDE, "between": _nic_link(24)}
    for exchange, schedule in (("ring", "1f1b"), ("ring", "zb-h1"), ("all_gather", "1f1b")):
        how = {"context_parallel": exchange}
        drawn = case_document(SCHEDULES[schedule], model=DEEP, training=how, **shape, **links)
        training = f"hosts, cp 2, {exchange}"
        yield Case(f"{training}: {schedule}", "hosts, context parallel", drawn, rivals=training, uses_hosts=True)


def _host_resharding_cases() -> Iterator[Case]:
    """Yield cases that reshard tensors between nodes."""
    eager, what = select_schedules("eager 1f1b"), {"model": DEEP, "between": _nic_link(2.5)}
    yield from _host_rivals(eager, "dp 2 to tp 2", "resharding", meshes=((2, 1), (1, 2)), **what)
    shapes: dict[str, Any] = {"meshes": ((1, 1), (2, 1), (1, 1)), "devices": [[0], [2, 3], [1]]}
    yield from _host_rivals(select_schedules("eager 1f1b"), "1, 2 and 1 devices", "resharding", **shapes, **what)
    shapes = {"meshes": ((1, 2), (2, 1), (2, 2)), "devices": [[0, 1], [4, 5], [2, 3, 6, 7]]}
    yield from _host_rivals(
        select_schedules("eager 1f1b"), "tp 2 to dp 2 to dp 2 x tp 2", "resharding", **shapes, **what
    )


IN_TURN = {"kind": "roofline", "overlap": 0.0}
"""Costs of slots whose two actions run one after the other, in dry runs too."""


def _host_overlap_cases() -> Iterator[Case]:
    """Yield cases whose slots hide exchanges behind computation, each also without that overlap."""
    experts = {"model": {**DEEP, "layers": 8, "moe": MOE}, "experts": {"ep": 2}, "between": _nic_link(16)}
    halves = {"model": DEEP, "between": _nic_link(24)}
    one, other = {"meshes": ((2, 1),) * 2, **experts}, {"meshes": ((1, 2),) * 2, **halves}
    interleaved = {**SCHEDULES["interleaved 1f1b"], "slots": "fused"}
    trainings = (
        ("dualpipe with experts", SCHEDULES["dualpipe"], one),
        ("dualpipe-v with experts", SCHEDULES["dualpipe-v"], one),
        ("interleaved 1f1b with experts", interleaved, one),
        ("dualpipe-v with tp 2", SCHEDULES["dualpipe-v"], other),
    )
    for training, schedule, sizes in trainings:
        options = {**sizes, "devices": [[0, 2], [1, 3]]}
        yield from _host_rivals([("overlapped", schedule)], training, "overlapped slots", **options)
        yield from _host_rivals([("in turn", schedule)], training, "overlapped slots", cost=IN_TURN, **options)


def _host_gather_cases() -> Iterator[Case]:
    """Yield cases in which gathers of sharded weights and transfers share the NICs."""
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [3, 1]]}
    alone: dict[str, Any] = {"meshes": ((2, 1),)}
    for training, names, limit, options in (
        ("weights of 1 stage", ("interleaved 1f1b", "zb-v"), 1, pair),
        ("weights of 3 stages", ("interleaved 1f1b",), 3, pair),
        ("one mesh, weights of 1 stage", ("looped bfs",), 1, alone),
    ):
        sharding = {"sharding": "parameters", "unsharded_stages": limit}
        shown = {"model": DEEP, "between": _nic_link(12), "training": sharding, **options}
        yield from _host_rivals(select_schedules(*names), training, "sharded parameters", **shown)


def _host_scatter_cases() -> Iterator[Case]:
    """Yield cases in which computations share the NICs: they scatter gradients, or also gather weights, block by block."""
    pair: dict[str, Any] = {"meshes": ((2, 1),) * 2, "devices": [[0, 2], [1, 3]], "model": DEEP, "microbatches": 4}
    for training, megabytes, sharding in (
        ("scattered gradients", 12, {"sharding": "gradients"}),
        ("blocks of weights", 24, {"sharding": "parameters", "unsharded_stages": 0}),
    ):
        shown = {"training": {"micro_batch_size": 8, **sharding}, "between": _nic_link(megabytes), **pair}
        yield from _host_rivals(select_schedules("1f1b", "zb-h1"), training, "sharded states", **shown)


def _host_document_cases() -> Iterator[Case]:
    """Yield cases whose microbatches differ in time, and with padded documents also in the size of their messages."""
    meshes, devices = ALTERNATING
    some = ("1f1b", "interleaved 1f1b")
    packed = {**PACKED, "document_lengths": LENGTHS}
    for training, documents in (("packed", packed), ("padded", {**packed, "pad_documents": True})):
        options = {"meshes": meshes, "devices": devices, "between": _nic_link(8), "training": documents}
        yield from _host_rivals(select_schedules(*some), f"{training} documents", "documents", model=LONG, **options)
