"""Designs with experts, drawn at random: what can be run trains like one process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from engine.design.runnable import runnable
from tests.engine.moe.test_designs import accepted, documents
from tests.engine.runtime.test_equality import assert_equal, reference

pytestmark = pytest.mark.torch

Document = dict[str, Any]
PROCESSES = 8


def comparable(document: Document) -> Document:
    """The same where all gates see the tokens that one process's gate sees, or where that makes no difference."""
    moe, experts = document["model"]["moe"], document["experts"]
    shapes = {tuple(mesh["axes"].items()) for mesh in document["meshes"]}
    other_tokens = experts["schedule"] in ("parm-s1", "parm-auto") or experts.get("variant") == "pregate"
    changed = {"capacity_factor": None, "aux_loss": 0.0} if other_tokens or len(shapes) > 1 else {}
    training = {**document["training"], "precision": "fp64"}
    return {**document, "model": {**document["model"], "moe": {**moe, **changed}}, "training": training}


@settings(max_examples=4, derandomize=True, suppress_health_check=list(HealthCheck))
@given(document=documents())
def test_what_can_be_run_trains_like_one_process(document: Document, crew: Any) -> None:
    assume(sum(len(mesh["devices"]) for mesh in document["meshes"]) <= PROCESSES)
    document = comparable(document)
    design = accepted(document)
    assume(design is not None and not runnable(design))

    assert_equal(crew.play(document), reference(document))
