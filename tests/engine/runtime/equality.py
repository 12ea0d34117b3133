"""Shared helpers of tests of equality with one process: the reference, and the comparison with it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from meshwave.engine.costs import layers_per_stage
from meshwave.engine.costs.padded_documents import length_multiple
from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.document.pipeline import Section
from meshwave.engine.lowering.lower import lower
from meshwave.engine.runtime.execution.job import Job
from meshwave.engine.schedules import schedules
from tests.engine.runtime.reference import Reference, train

Document = dict[str, Any]
TOLERANCE = {"fp64": 1e-9, "fp32": 2e-5, "bf16": 1e-3, "pure_bf16": 1e-2}

_known: dict[str, Reference] = {}


def reference(document: Document) -> Reference:
    """Return the result of the reference, trained once for all schedules with the same global batch."""
    design = parse_design(document)
    slots = (
        resolve_expert_layer(design, design.meshes[0]).layer.capacity if design.model.moe else 0
    )  # by groups and chunks too
    padding = [length_multiple(design), design.pipeline.microbatches] if design.training.pad_documents else []
    key = json.dumps([document["model"], document["training"], design.sequences_per_step, slots, padding])
    if key not in _known:
        _known[key] = train(Job(design, lower(design), layers_per_stage(design)))
    return _known[key]


def unsharded_reference(document: Document) -> Reference:
    """Return the reference of a document without the settings that one process does not have."""
    without = {
        "sharding": "none",
        "sequence_parallel": False,
        "unsharded_stages": None,
        "gradient_reduction": "microbatch",
        "gradient_buckets": 1,
    }
    return reference({**document, "training": {**document["training"], **without}})


def assert_equal(
    outcomes: list[Any], expected: Reference, precision: str = "fp64", *, tolerance: float | None = None
) -> None:
    """Check that outcomes equal the reference; the default ``tolerance`` is that of the precision."""
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
    """Return the part of a tensor of the whole model that a process holds."""
    cut = outcome["cuts"].get(name)
    found = cut.select_part(whole[name]) if cut else whole[name]
    return (found.float() if found.dtype == torch.bfloat16 else found).numpy()


def layers_for(pipeline: Document, pp: int) -> int:
    """Return a number of layers above the number of stages, so that some stage has several; few sizes share references."""
    options = {option: value for option, value in pipeline.items() if option not in Section.model_fields}
    stages = schedules[pipeline["schedule"]](**options).stage_count(pp)
    return next(layers for layers in (3, 5, 9, 13, 17, 25, 33) if layers > stages)


def case_name(case: Any) -> str | None:
    return "-".join(map(str, case.values())) if isinstance(case, dict) else None


def thin_out(step: int, cases: list[Any]) -> list[Any]:
    """Return every ``step``-th case, from the first, for each day; the others are marked nightly."""

    def at_night(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)

    return [at_night(case) if n % step else case for n, case in enumerate(cases)]


def assert_same_bits(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine["losses"] == theirs["losses"]
        for part in ("gradients", "parameters"):
            assert all(np.array_equal(value, theirs[part][name]) for name, value in mine[part].items())


def unequal_meshes(document: Document, shapes: list[tuple[int, int]], strategy: str) -> Document:
    """Return the document on meshes with these dp and tp, on nodes of two devices, so that meshes span nodes."""
    first = 0
    for mesh, (dp, tp) in zip(document["meshes"], shapes, strict=True):
        mesh |= {"devices": list(range(first, first + dp * tp)), "axes": {"dp": dp, "tp": tp}}
        first += dp * tp
    document["cluster"] |= {"nodes": -(-first // 2), "devices_per_node": 2}
    document["transfer"] = {"strategy": strategy, "ordering": "ensemble"}
    return document
