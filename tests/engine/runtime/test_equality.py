"""Every program trains the model that one process trains: same losses, gradients and weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.cost import layers_per_stage
from engine.design import parse_design
from engine.lowering import lower
from engine.runtime.job import Job
from tests.engine.runtime.reference import Reference, train

Document = dict[str, Any]
TOLERANCE = {"fp64": 1e-9, "fp32": 2e-5, "bf16": 1e-3}

_known: dict[str, Reference] = {}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def reference(document: Document) -> Reference:
    """The reference, trained once for all schedules that share a global batch."""
    design = parse_design(document)
    key = json.dumps([document["model"], document["training"], design.sequences_per_step])
    if key not in _known:
        _known[key] = train(Job(design, lower(design), layers_per_stage(design)))
    return _known[key]


def assert_equal(outcomes: list[Any], expected: Reference, precision: str = "fp64") -> None:
    broken = [outcome for outcome in outcomes if not isinstance(outcome, dict)]
    assert not broken, broken
    tolerance = TOLERANCE[precision]
    near = {"rtol": tolerance, "atol": tolerance}
    for outcome in outcomes:
        np.testing.assert_allclose(outcome["losses"], expected.losses, **near)
        np.testing.assert_allclose(outcome["grad_norms"], expected.grad_norms, **near)
        for name, gradient in outcome["gradients"].items():
            np.testing.assert_allclose(gradient, expected.gradients[name].numpy(), err_msg=name, **near)
        for name, weight in outcome["parameters"].items():
            np.testing.assert_allclose(weight, expected.parameters[name].numpy(), err_msg=name, **near)
    held = set().union(*(outcome["parameters"] for outcome in outcomes))
    assert held == set(expected.parameters), "all parts of the model were trained"


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


def name(case: Any) -> str | None:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else None


@pytest.mark.parametrize(("pipeline", "pp", "dp"), LINEAR + INTERLEAVED + CHIMERA + HANAYO, ids=name)
def test_a_schedule_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Any, draw: Callable[..., Document]
) -> None:
    waves = pipeline.get("waves", 0)
    document = draw(pipeline, pp=pp, dp=dp, layers=32 if waves * pp == 16 else 24 if waves * pp > 6 else 12)
    assert_equal(crew.play(document), reference(document))


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
    document = draw(pipeline, pp=pp, kind="bert", layers=16)
    assert_equal(crew.play(document), reference(document))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_it_does_so_in_other_precisions(precision: str, kind: str, crew: Any, draw: Callable[..., Document]) -> None:
    pipeline = {"schedule": "hanayo", "waves": 1, "microbatches": 4}
    document = draw(pipeline, dp=2, kind=kind, precision=precision, steps=4, optimizer="sgd")
    assert_equal(crew.play(document), reference(document), precision)


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
    assert_equal(crew.play(document), expected)


def test_a_hand_drawn_order_trains_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    order = """
        0F1 0F0 3F1 3B1 3F0 0B1 3B0 0B0
        1F1 2F1 1F0 2F0 2B1 1B1 2B0 1B0
    """
    actions = [line.split() for line in order.strip().splitlines()]
    document = draw({"schedule": "custom", "microbatches": 2, "actions": actions})
    assert_equal(crew.play(document), reference(document))


def test_the_backward_may_be_split_in_input_and_weights(crew: Any, draw: Callable[..., Document]) -> None:
    orders = """
        0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0I0 0I1 0W1 0W0 STEP
        1RECV_F0 1RECV_F1 1F0 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1W0 1W1 STEP
    """
    document = draw({"schedule": "gpipe", "microbatches": 2})
    assert_equal(crew.play(document, orders), reference(document))
