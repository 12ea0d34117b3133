"""Training with any program equals training in one process: the same losses, gradients and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal, get_args, get_origin

import pytest

from meshwave.engine.schedules import Pipe, schedules
from tests.engine.runtime.equality import (
    Document,
    assert_equal,
    assert_same_bits,
    case_name,
    layers_for,
    reference,
    thin_out,
)

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
"""Schedules whose options the lists above cover, and the custom schedule; only their missing options are added below.
"""


def values(annotation: Any, default: Any) -> set[Any]:
    """Return the values of an option, besides its default, that tests try."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation)) - {default}
    if annotation is bool:
        return {not default}
    return {default + 1, 2 * default} - {default} if annotation is int else set()


def selected_cases(name: str, options: Document) -> list[tuple[Document, int, int]]:
    """Return the pipelines that a schedule with these options accepts."""
    schedule = schedules[name](**options)
    return [
        ({"schedule": name, **options, "microbatches": mb}, pp, dp)
        for pp, dp, mb in ((4, 1, 8), (2, 2, 4), (3, 1, 6))
        if schedule.refusal(Pipe(pp, mb)) is None
    ]


def every_schedule() -> Iterator[Any]:
    """Return the cases of all registered schedules.

    The defaults run on all pipelines, of which all but one per schedule are nightly; each option runs on one pipeline,
    together with another option if required.
    """
    for number, (name, schedule) in enumerate(schedules.items()):
        if name not in SPELT_OUT:
            plain = selected_cases(name, {})
            assert plain, f"none of the pipelines suits {name}"
            first = number % len(plain)
            yield from thin_out(len(plain), plain[first:] + plain[:first])
        fields = schedule.model_fields.items()
        changes = [
            {option: value} for option, field in fields for value in sorted(values(field.annotation, field.default))
        ]
        for change in changes:
            found = (case for other in ({}, *changes) for case in selected_cases(name, {**other, **change}))
            yield from islice(found, 1)


@pytest.mark.parametrize(
    ("pipeline", "pp", "dp"),
    thin_out(4, LINEAR) + thin_out(3, INTERLEAVED) + thin_out(2, CHIMERA) + thin_out(5, HANAYO),
    ids=case_name,
)
def test_a_schedule_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(("pipeline", "pp", "dp"), list(every_schedule()), ids=case_name)
def test_every_schedule_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize("pp", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_bert_trains_like_one_process(pp: int, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": "chimera", "microbatches": 4}
    document = draw(pipeline, pp=pp, kind="bert", layers=layers_for(pipeline, pp))
    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize("precision", thin_out(2, ["bf16", "fp32"]))
def test_runs_in_other_precisions_train_like_one_process(
    precision: str, crew: Any, draw: Callable[..., Document]
) -> None:
    pipeline = {"schedule": "hanayo", "waves": 1, "microbatches": 4}
    document = draw(pipeline, dp=2, kind="bert", precision=precision, steps=4, optimizer="sgd")
    assert_equal(crew.train(document), reference(document), precision)


@pytest.mark.parametrize(
    ("optimizer", "clip_norm", "schedule"),  # pairwise
    [("sgd", None, "1f1b"), ("adamw", 0.5, "1f1b"), ("sgd", 0.5, "chimera"), ("adamw", None, "chimera")],
)
def test_clipping_and_weight_decay_are_those_of_one_process(
    optimizer: str, clip_norm: float | None, schedule: str, crew: Any, draw: Callable[..., Document]
) -> None:
    pipeline = {"schedule": schedule, "microbatches": 4}
    training = {"optimizer": optimizer, "clip_norm": clip_norm, "weight_decay": 0.1, "lr": 0.1, "steps": 3}
    document = draw(pipeline, dp=2, **training)
    expected = reference(document)
    assert clip_norm is None or min(expected.grad_norms) > clip_norm, "the test clips in every step"
    assert_equal(crew.train(document), expected)


@pytest.mark.parametrize(("lr_schedule", "sharding"), [("cosine", "none"), ("linear", "optimizer")])
def test_learning_rates_of_a_schedule_are_those_of_one_process(
    lr_schedule: str, sharding: str, crew: Any, draw: Callable[..., Document]
) -> None:
    schedule = {"lr": 0.1, "lr_schedule": lr_schedule, "warmup_steps": 1, "min_lr_factor": 0.1, "steps": 4}
    schedule["decay_steps"] = 2 if lr_schedule == "linear" else None
    document = draw({"schedule": "1f1b", "microbatches": 4}, dp=2, sharding=sharding, **schedule)
    assert_equal(crew.train(document), reference(document))


def test_a_custom_order_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
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


def test_a_split_backward_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 2})
    split = crew.train(document, SPLIT)
    assert_equal(split, reference(document))
    assert_same_bits(split, crew.train(document, WHOLE))


@pytest.mark.parametrize("precision", thin_out(2, ["fp64", "bf16"]))
def test_shared_slots_train_like_one_process(precision: str, crew: Any, draw: Callable[..., Document]) -> None:
    document = draw({"schedule": "gpipe", "microbatches": 3}, precision=precision)
    assert_equal(crew.train(document, FUSED), reference(document), precision)


ROUTED = {"experts": 4, "every": 2, "capacity_factor": None, "bias_correction": True, "bias_update_rate": 0.003}
RECOMPUTED = [
    ("1f1b", "full", {}, {}),
    ("zb-h1", [1], {}, {}),
    ("gpipe", "layers", {"dp": 2, "pp": 1, "sharding": "parameters"}, {}),
    ("1f1b", "operators", {"tp": 2, "sequence_parallel": True}, {}),
    ("zb-h1", "layers-early-stop", {}, {"kind": "transformer", "moe": ROUTED}),
]
"""A schedule, what is recomputed, training settings, and the model."""


@pytest.mark.parametrize(("schedule", "recompute", "settings", "model"), RECOMPUTED, ids=case_name)
def test_recomputing_activations_changes_no_bit(
    schedule: str, recompute: Any, settings: Document, model: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    found = []
    for each in ("none", recompute):
        document = draw({"schedule": schedule, "microbatches": 4, "recompute": each}, **settings)
        document["model"] |= model
        found.append(crew.train(document))
    assert_same_bits(found[1], found[0])


def test_offloading_activations_of_sharded_stages_changes_no_bit(crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": "gpipe", "microbatches": 2, "recompute": "layers"}
    settings = {"dp": 2, "pp": 1, "sharding": "parameters", "precision": "bf16"}
    kept, offloaded = (crew.train(draw(pipeline, **settings, activation_offload=share)) for share in (0.0, 1.0))
    assert_same_bits(offloaded, kept)


ROUTED = {"experts": 4, "top_k": 4, "capacity_factor": None, "every": 2}
"""Experts that all tokens visit, because rounding could change a choice."""


@pytest.mark.parametrize("experts", thin_out(3, [None, "parm-s2", "ppmoe"]))
def test_products_in_fp8_train_almost_like_those_in_bf16(
    experts: str | None, crew: Any, draw: Callable[..., Document]
) -> None:
    settings = {"tp": 2, "pp": 1, "sequence_parallel": True, "precision": "bf16"}
    pipeline = {"schedule": "1f1b", "microbatches": 2, "recompute": "operators"}
    found = []
    for each in ("same", "fp8"):
        document = draw(pipeline, **settings, linear_precision=each)
        if experts is not None:
            document["model"]["moe"] = ROUTED
            document["experts"] = {"schedule": experts, "esp": 1 if experts == "ppmoe" else 2}
        found.append(crew.train(document)[0]["losses"])
    assert found[0] != found[1]
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_a_pipeline_in_fp8_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    """Each product has the rows and weights of that in one process, so that it has the same scales."""
    pipeline = {"schedule": "zb-h1", "microbatches": 4}
    document = draw(pipeline, dp=2, precision="fp32", linear_precision="fp8", optimizer="sgd", lr=0.1)
    document["model"]["moe"] = {**ROUTED, "top_k": 2}
    document["experts"] = {"schedule": "expert-parallel"}
    assert_equal(crew.train(document), reference(document), "fp32")
