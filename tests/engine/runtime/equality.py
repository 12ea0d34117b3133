"""What tests of equality with one process share: the reference, and the comparison with it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.document.pipeline import Section
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.schedules import schedules
from tests.engine.runtime.reference import Reference, train

Document = dict[str, Any]
TOLERANCE = {"fp64": 1e-9, "fp32": 2e-5, "bf16": 1e-3}

_known: dict[str, Reference] = {}


def reference(document: Document) -> Reference:
    """The reference, trained once for all schedules that share a global batch."""
    design = parse_design(document)
    slots = (
        resolve_expert_layer(design, design.meshes[0]).layer.capacity if design.model.moe else 0
    )  # by groups and chunks too
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
        np.testing.assert_allclose(outcome["evaluations"], expected.evaluations, **near)
        for name, gradient in outcome["gradients"].items():
            np.testing.assert_allclose(gradient, part(outcome, name, expected.gradients), err_msg=name, **near)
        for name, weight in outcome["parameters"].items():
            np.testing.assert_allclose(weight, part(outcome, name, expected.parameters), err_msg=name, **near)
    held = set().union(*(outcome["parameters"] for outcome in outcomes))
    assert held == set(expected.parameters), "all parts of the model were trained"


def part(outcome: Any, name: str, whole: dict[str, torch.Tensor]) -> Any:
    """What a process holds of a tensor of the whole model."""
    cut = outcome["cuts"].get(name)
    return (cut.select_part(whole[name]) if cut else whole[name]).numpy()


def layers_for(pipeline: Document, pp: int) -> int:
    """More layers than stages, so that some stage has more than another; of few sizes, which share references."""
    options = {option: value for option, value in pipeline.items() if option not in Section.model_fields}
    stages = schedules[pipeline["schedule"]](**options).stage_count(pp)
    return next(layers for layers in (3, 5, 9, 13, 17, 25, 33) if layers > stages)


def case_name(case: Any) -> str | None:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else None


def thinned(step: int, cases: list[Any]) -> list[Any]:
    """Every ``step``-th case; the others are of the night. No step divides the length of a repeated
    part of its list, so that every value of every option is left."""
    return [case if not n % step else pytest.param(*case, marks=pytest.mark.nightly) for n, case in enumerate(cases)]


def assert_same_bits(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine["losses"] == theirs["losses"]
        for part in ("gradients", "parameters"):
            assert all(np.array_equal(value, theirs[part][name]) for name, value in mine[part].items())


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
