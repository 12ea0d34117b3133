"""Every program trains the model that one process trains: same losses, gradients and weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import resolved
from meshwave.engine.document.pipeline import Section
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.schedules import Pipe, schedules
from tests.engine.runtime.reference import Reference, train

Document = dict[str, Any]
TOLERANCE = {"fp64": 1e-9, "fp32": 2e-5, "bf16": 1e-3}

_known: dict[str, Reference] = {}


def reference(document: Document) -> Reference:
    """The reference, trained once for all schedules that share a global batch."""
    design = parse_design(document)
    slots = resolved(design, design.meshes[0]).layer.capacity if design.model.moe else 0  # by groups and chunks too
    key = json.dumps([document["model"], document["training"], design.sequences_per_step, slots])
    if key not in _known:
        _known[key] = train(Job(design, lower(design), layers_per_stage(design)))
    return _known[key]


def assert_equal(
    outcomes: list[Any], expected: Reference, precision: str = "fp64", *, tolerance: float | None = None
) -> None:
    """``tolerance`` is by default that of the precision."""
    broken = [outcome for outcome in outcomes if not isinstance(outcome, dict)]
    assert not broken, broken
    tolerance = TOLERANCE[precision] if tolerance is None else tolerance
    near = {"rtol": tolerance, "atol": tolerance}
    for outcome in outcomes:
        np.testing.assert_allclose(outcome["losses"], expected.losses, **near)
        np.testing.assert_allclose(outcome["grad_norms"], expected.grad_norms, **near)
        for name, gradient in outcome["gradients"].items():
            np.testing.assert_allclose(gradient, part(outcome, name, expected.gradients), err_msg=name, **near)
        for name, weight in outcome["parameters"].items():
            np.testing.assert_allclose(weight, part(outcome, name, expected.parameters), err_msg=name, **near)
    held = set().union(*(outcome["parameters"] for outcome in outcomes))
    assert held == set(expected.parameters), "all parts of the model were trained"


def part(outcome: Any, name: str, whole: dict[str, torch.Tensor]) -> Any:
    """What a process holds of a tensor of the whole model."""
    cut = outcome["cuts"].get(name)
    return (cut.select(whole[name]) if cut else whole[name]).numpy()


LINEAR = [
    ({"schedule": schedule, "microbatches": mb}, pp, dp)
    for schedule in ("gpipe", "1f1b")
    for pp, dp, mb in ((2, 1, 1), (2, 2, 4), (3, 1, 3), (3, 2, 5), (4, 1, 2), (4, 2, 6), (4, 1, 8))
]
INTERLEAVED = [
    ({"schedule": "interleaved-1f1b", "chunks": chunks, "microbatches": mb}, pp, dp)
    for pp, dp, mb, chunks in ((2, 1, 2, 2), (2, 2, 4, 3), (3, 1, 6, 2), (4, 1, 4, 2))
]
CHIMERA = [
    ({"schedule": "chimera", "microbatches": mb}, pp, dp)
    for pp, dp, mb in ((2, 1, 1), (2, 1, 2), (2, 2, 4), (4, 1, 2), (4, 1, 4), (4, 2, 8), (4, 1, 6))
]
HANAYO = [
    ({"schedule": "hanayo", "waves": waves, "grouping": grouping, "microbatches": mb}, pp, dp)
    for waves in (1, 2, 4)
    for grouping, pp, dp, mb in (
        ("grouped", 2, 1, 1),
        ("grouped", 2, 2, 2),
        ("ungrouped", 2, 1, 4),
        ("grouped", 3, 1, 2),
        ("ungrouped", 3, 1, 5),
        ("grouped", 4, 1, 4),
        ("grouped", 4, 1, 7),
        ("ungrouped", 4, 1, 6),
    )
]


SPELT_OUT = ("custom", "gpipe", "1f1b", "interleaved-1f1b", "chimera", "hanayo")
"""The schedules of the lists above, and the one without orders of its own; of these only the options that they leave out are added below."""


def values(annotation: Any, default: Any) -> set[Any]:
    """What an option may be set to besides its default, as far as tests try it."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation)) - {default}
    if annotation is bool:
        return {not default}
    return {default + 1, 2 * default} - {default} if annotation is int else set()


def taken(name: str, options: Document) -> list[tuple[Document, int, int]]:
    """The pipelines that a schedule with these options takes."""
    schedule = schedules[name](**options)
    return [
        ({"schedule": name, **options, "microbatches": mb}, pp, dp)
        for pp, dp, mb in ((4, 1, 8), (2, 2, 4), (3, 1, 6))
        if schedule.refuses(Pipe(pp, mb)) is None
    ]


def every_schedule() -> Iterator[tuple[Document, int, int]]:
    """The registry's schedules: plain on all pipelines, and with each option on one, beside another if it must be."""
    for name, schedule in schedules.items():
        if name not in SPELT_OUT:
            assert taken(name, {}), f"none of the pipelines suits {name}"
            yield from taken(name, {})
        fields = schedule.model_fields.items()
        changes = [
            {option: value} for option, field in fields for value in sorted(values(field.annotation, field.default))
        ]
        for change in changes:
            found = (case for other in ({}, *changes) for case in taken(name, {**other, **change}))
            yield from islice(found, 1)


def layers_for(pipeline: Document, pp: int) -> int:
    """More layers than stages, so that some stage has more than another; of few sizes, which share references."""
    options = {option: value for option, value in pipeline.items() if option not in Section.model_fields}
    stages = schedules[pipeline["schedule"]](**options).stage_count(pp)
    return next(layers for layers in (3, 5, 9, 13, 17, 25, 33) if layers > stages)


def name(case: Any) -> str | None:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else None


@pytest.mark.parametrize(("pipeline", "pp", "dp"), LINEAR + INTERLEAVED + CHIMERA + HANAYO, ids=name)
def test_a_schedule_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(("pipeline", "pp", "dp"), list(every_schedule()), ids=name)
def test_every_schedule_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize(
    "pipeline",
    [
        {"schedule": "1f1b", "microbatches": 4},
        {"schedule": "chimera", "microbatches": 4},
        {"schedule": "hanayo", "waves": 2, "microbatches": 4},
    ],
    ids=name,
)
def test_bert_trains_like_one_process(pipeline: Document, pp: int, crew: Any, draw: Callable[..., Document]) -> None:
    document = draw(pipeline, pp=pp, kind="bert", layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_it_does_so_in_other_precisions(precision: str, kind: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": "hanayo", "waves": 1, "microbatches": 4}
    document = draw(pipeline, dp=2, kind=kind, precision=precision, steps=4, optimizer="sgd")
    assert_equal(crew.train(document), reference(document), precision)


CUT = [
    ({"schedule": "gpipe", "microbatches": 2}, 1, 1, {}),
    ({"schedule": "1f1b", "microbatches": 4}, 2, 2, {"clip_norm": 0.5, "lr": 0.1, "steps": 3}),
    ({"schedule": "chimera", "microbatches": 4}, 2, 2, {"clip_norm": 0.5}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 1, {"kind": "bert"}),
    ({"schedule": "zb-h1", "microbatches": 4}, 2, 1, {}),
    ({"schedule": "dualpipe", "microbatches": 4}, 2, 1, {}),
    ({"schedule": "1f1b", "microbatches": 4, "recompute": "full"}, 2, 1, {}),
    ({"schedule": "interleaved-1f1b", "microbatches": 4}, 4, 1, {"layers": 8, "precision": "bf16", "optimizer": "sgd"}),
]
"""With tensor parallelism: a schedule, meshes, copies, and what else is of interest there."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "others"), CUT, ids=name)
def test_a_model_that_is_cut_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """The vocabulary of 257 tokens is cut unevenly."""
    document = draw(pipeline, pp=pp, dp=dp, tp=2, **{"layers": layers_for(pipeline, pp), **others})
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


@pytest.mark.parametrize("name", [name for name in schedules if name != "custom"])
def test_every_schedule_trains_a_model_that_is_cut(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": name, "microbatches": 4}
    document = draw(pipeline, pp=2, tp=2, layers=layers_for(pipeline, 2), clip_norm=0.5)
    assert_equal(crew.train(document), reference(document))


WIDE = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 4, {"clip_norm": 0.5}),
    ({"schedule": "zb-v", "microbatches": 4}, 1, 2, 4, {}),
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 3, {"kind": "bert"}),
    ({"schedule": "zb-h1", "microbatches": 4, "recompute": "full"}, 2, 2, 2, {"clip_norm": 0.5, "steps": 3}),
    ({"schedule": "chimera", "microbatches": 4, "recompute": [1, 2]}, 4, 1, 2, {"clip_norm": 0.5}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 2, 2, {"precision": "bf16", "optimizer": "sgd"}),
]
"""As above, and how many cuts."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "tp", "others"), WIDE, ids=name)
def test_more_cuts_and_uneven_ones_train_like_one_process(
    pipeline: Document, pp: int, dp: int, tp: int, others: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """The feed-forward block of 34 units is cut unevenly in three and in four, the vocabulary in all."""
    document = draw(pipeline, pp=pp, dp=dp, tp=tp, layers=layers_for(pipeline, pp), **others)
    document["model"] |= {"hidden": 24, "heads": 12, "ffn": 34}
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


def test_the_cuts_of_a_copy_agree_to_the_last_bit(crew: Any, draw: Callable[..., Document]) -> None:
    """What is held whole is updated by each alone: it may not drift apart."""
    found = crew.train(draw({"schedule": "1f1b", "microbatches": 4}, dp=2, tp=2, steps=4, lr=0.1, clip_norm=0.5))

    for rank in (found[:4], found[4:]):
        for name, weight in rank[0]["parameters"].items():
            same = [other["parameters"][name] for other in rank if name not in other["cuts"]]
            assert all(np.array_equal(weight, other) for other in same), name


MOE = {"experts": 4, "top_k": 2, "capacity_factor": None, "every": 2, "aux_loss": 0.05, "z_loss": 0.01}
EXPERTS = [
    ("1f1b", 1, 2, 2, {"schedule": "parm-s1", "ep": 2, "esp": 2}),
    ("1f1b", 2, 1, 2, {"schedule": "parm-s2", "ep": 2, "esp": 1}),
    ("zb-h1", 2, 2, 2, {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2}),
    ("1f1b", 2, 2, 2, {"schedule": "ppmoe", "ep": 2, "esp": 1}),
    ("1f1b", 2, 2, 2, {"schedule": "parm-auto", "ep": 4, "esp": 1}),
    ("hanayo", 2, 2, 1, {"schedule": "expert-parallel", "ep": 2, "esp": 1}),
    ("chimera", 2, 2, 1, {"schedule": "a2a-allgather", "ep": 1, "esp": 2}),
    ("gpipe", 2, 2, 2, {"schedule": "deepspeed", "ep": 2, "esp": 2}),
    ("1f1b", 1, 2, 2, {"schedule": "parm-s1", "ep": 4, "esp": 1, "placement": [[0, 1], [1, 2], [3], [0, 2]]}),
    ("1f1b", 2, 2, 1, {"schedule": "expert-parallel", "ep": 1, "esp": 1}),
]
"""Models with experts: a pipeline schedule, meshes, copies, cuts, and where the experts lie."""


@pytest.mark.parametrize(("schedule", "pp", "dp", "tp", "experts"), EXPERTS, ids=name)
def test_a_model_with_experts_trains_like_one_process(
    schedule: str, pp: int, dp: int, tp: int, experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw({"schedule": schedule, "microbatches": 4}, pp=pp, dp=dp, tp=tp, layers=4, clip_norm=0.5, steps=3)
    document["model"]["moe"] = MOE
    document["experts"] = experts
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(
    "experts",
    [
        {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2},
        {"schedule": "ppmoe"},
        {"schedule": "deepspeed", "ep": 4},
    ],
    ids=name,
)
def test_experts_that_drop_tokens_and_are_computed_again_train_like_one_process(
    experts: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    """A token that is routed again must find the slot that it had."""
    pipeline = {"schedule": "1f1b", "microbatches": 4, "recompute": "full"}
    document = draw(pipeline, pp=2, dp=2, tp=2, layers=4, steps=3)
    document["model"]["moe"] = {**MOE, "capacity_factor": 0.7}
    document["experts"] = experts
    assert_equal(crew.train(document), reference(document))


def unequal(document: Document, shapes: list[tuple[int, int]], strategy: str) -> Document:
    """On meshes of these dp and tp: two devices a node, so that some of what a mesh needs lies on its own node and
    some does not."""
    first = 0
    for mesh, (dp, tp) in zip(document["meshes"], shapes, strict=True):
        mesh |= {"devices": list(range(first, first + dp * tp)), "axes": {"dp": dp, "tp": tp}}
        first += dp * tp
    document["cluster"] |= {"nodes": -(-first // 2), "devices_per_node": 2}
    document["transfer"] = {"strategy": strategy, "ordering": "ensemble"}
    return document


UNEQUAL = [
    ({"schedule": "1f1b"}, [(2, 1), (1, 2)], "broadcast", {}),
    ({"schedule": "gpipe"}, [(1, 1), (4, 1)], "send-recv", {"micro_batch_size": 4}),
    ({"schedule": "zb-h1"}, [(4, 1), (2, 2)], "local-allgather", {"clip_norm": 0.5, "micro_batch_size": 1}),
    ({"schedule": "hanayo", "waves": 1, "recompute": "full"}, [(1, 2), (2, 1)], "global-allgather", {}),
    ({"schedule": "eager-1f1b"}, [(2, 1), (1, 1), (1, 2)], "hierarchical", {}),
    ({"schedule": "chimera"}, [(1, 1), (2, 1)], "broadcast", {"clip_norm": 0.5}),
    (
        {"schedule": "interleaved-1f1b", "chunks": 2},
        [(2, 2), (4, 1)],
        "broadcast",
        {"precision": "bf16", "optimizer": "sgd"},
    ),
    ({"schedule": "zb-v"}, [(3, 1), (1, 2)], "hierarchical", {"kind": "bert"}),
    ({"schedule": "1f1b"}, [(2, 1), (1, 2), (2, 2)], "rewrite-allgather", {}),
]
"""A pipeline, the dp and tp of each of its meshes, and how tensors travel between them."""
SLICED = [
    ("sequence", {"schedule": "1f1b"}, [(1, 2), (2, 1)], "broadcast", {}),
    ("hidden", {"schedule": "zb-h1"}, [(2, 2), (1, 2)], "local-allgather", {"micro_batch_size": 1}),
    ("sequence", {"schedule": "interleaved-1f1b", "chunks": 2}, [(1, 2), (1, 2)], "rewrite-allgather", {}),
    ("hidden", {"schedule": "hanayo", "waves": 1, "recompute": "full"}, [(1, 2), (2, 1)], "global-allgather", {}),
]
"""The same, and the dim of which each tensor-parallel device sends a slice."""


@pytest.mark.parametrize(("boundary", "pipeline", "shapes", "strategy", "others"), SLICED, ids=name)
def test_tensor_parallel_devices_that_send_a_slice_each_train_like_one_process(
    boundary: str,
    pipeline: Document,
    shapes: list[tuple[int, int]],
    strategy: str,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw({**pipeline, "microbatches": 4}, pp=len(shapes), **{"micro_batch_size": 2, **others})
    document = unequal(document, shapes, strategy)
    document["transfer"]["boundary"] = boundary
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(("pipeline", "shapes", "strategy", "others"), UNEQUAL, ids=name)
def test_meshes_of_different_shapes_train_like_one_process(
    pipeline: Document,
    shapes: list[tuple[int, int]],
    strategy: str,
    others: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    pp = len(shapes)
    document = draw({**pipeline, "microbatches": 4}, pp=pp, layers=layers_for(pipeline, pp), **others)
    document = unequal(document, shapes, strategy)
    assert_equal(crew.train(document), reference(document), others.get("precision", "fp64"))


UNEQUAL_EXPERTS = [
    ("1f1b", [(1, 1), (2, 1)], {"schedule": "parm-s2", "ep": 1, "esp": 1}, 0.0),
    ("zb-h1", [(2, 1), (1, 2)], {"schedule": "expert-parallel", "ep": 2, "esp": 1}, 0.0),
    ("gpipe", [(1, 2), (2, 2)], {"schedule": "ppmoe"}, 0.0),
    ("1f1b", [(1, 2), (1, 1)], {"schedule": "ppmoe"}, 0.05),
]
"""A pipeline schedule, the dp and tp of each mesh, where the experts lie, and the weight of the auxiliary loss: above
0 where all meshes have the same dp, for it is a mean over the copies of a mesh, and other copies hold other tokens."""


@pytest.mark.parametrize(("schedule", "shapes", "experts", "aux_loss"), UNEQUAL_EXPERTS, ids=name)
def test_experts_on_meshes_of_different_shapes_train_like_one_process(
    schedule: str,
    shapes: list[tuple[int, int]],
    experts: Document,
    aux_loss: float,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    """The z-loss is a mean over tokens: it is the same whoever holds them."""
    document = draw({"schedule": schedule, "microbatches": 4}, pp=len(shapes), layers=4, clip_norm=0.5)
    document["model"]["moe"] = {**MOE, "aux_loss": aux_loss}
    document["experts"] = experts
    document = unequal(document, shapes, "broadcast")
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_clipping_and_weight_decay_are_those_of_one_process(
    optimizer: str, clip_norm: float | None, schedule: str, crew: Any, draw: Callable[..., Document]
) -> None:
    pipeline = {"schedule": schedule, "microbatches": 4}
    training = {"optimizer": optimizer, "clip_norm": clip_norm, "weight_decay": 0.1, "lr": 0.1, "steps": 3}
    document = draw(pipeline, dp=2, **training)
    expected = reference(document)
    assert clip_norm is None or min(expected.grad_norms) > clip_norm, "the test clips in every step"
    assert_equal(crew.train(document), expected)


def test_a_hand_drawn_order_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    order = """
        0F1 0F0 3F1 3B1 3F0 0B1 3B0 0B0
        1F1 2F1 1F0 2F0 2B1 1B1 2B0 1B0
    """
    actions = [line.split() for line in order.strip().splitlines()]
    document = draw({"schedule": "custom", "microbatches": 2, "actions": actions})
    assert_equal(crew.train(document), reference(document))


SPLIT = """
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0I0 0I1 0W1 0W0 STEP
    1RECV_F0 1RECV_F1 1F0 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1 STEP
"""
WHOLE = """
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B1 0B0 STEP
    1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 STEP
"""
FUSED = """
    0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 (0F2;0B0)OVERLAP_F_B 0RECV_B1 0SEND_F2 0RECV_B2 0B1 0B2 STEP
    1RECV_F0 1RECV_F1 1F0 (1F1;1I0)OVERLAP_F_B 1RECV_F2 1SEND_B0 (1F2;1B1)OVERLAP_F_B 1W0 1SEND_B1 1B2 1SEND_B2 STEP
"""


def assert_same_bits(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine["losses"] == theirs["losses"]
        for part in ("gradients", "parameters"):
            assert all(np.array_equal(value, theirs[part][name]) for name, value in mine[part].items())


def test_the_backward_may_be_split_in_input_and_weights(crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2})
    split = crew.train(document, SPLIT)
    assert_equal(split, reference(document))
    assert_same_bits(split, crew.train(document, WHOLE))


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_a_forward_and_a_backward_may_share_a_slot(precision: str, crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 3}, precision=precision)
    assert_equal(crew.train(document, FUSED), reference(document), precision)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("recompute", ["full", [1]], ids=str)
def test_recomputing_activations_changes_no_bit(
    schedule: str, recompute: Any, crew: Any, draw: Callable[..., Document]
) -> None:
    kept, recomputed = (
        crew.train(draw({"schedule": schedule, "microbatches": 4, "recompute": stages}))
        for stages in ("none", recompute)
    )
    assert_same_bits(recomputed, kept)
