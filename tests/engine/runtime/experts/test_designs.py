"""Random designs with experts train like one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from meshwave.engine.document import parse_design
from meshwave.engine.document.expert_layers import resolve_expert_layer
from meshwave.engine.document.unsupported import run_problems
from tests.engine.experts.test_designs import documents, parse_or_none
from tests.engine.runtime.equality import assert_equal, part, reference

Document = dict[str, Any]
PROCESSES = 8


def comparable(document: Document) -> Document:
    """Return the document, changed so that the results do not depend on which tokens each gate sees."""
    moe, experts = document["model"]["moe"], document["experts"]
    shapes = {tuple(mesh["axes"].items()) for mesh in document["meshes"]}
    other_tokens = experts["schedule"] in ("parm-s1", "parm-auto") or experts.get("variant") == "pregate"
    changed = {"capacity_factor": None, "aux_loss": 0.0} if other_tokens or len(shapes) > 1 else {}
    training = {**document["training"], "precision": "fp64"}
    return {**document, "model": {**document["model"], "moe": {**moe, **changed}}, "training": training}


@settings(max_examples=4, derandomize=True, suppress_health_check=list(HealthCheck))
@given(document=documents())
def test_supported_designs_train_like_one_process(document: Document, crew: Any) -> None:
    assume(sum(len(mesh["devices"]) for mesh in document["meshes"]) <= PROCESSES)
    document = comparable(document)
    design = parse_or_none(document)
    assume(design is not None and not run_problems(design))

    assert_equal(crew.train(document), reference(document))


def with_unequal_replicas(schedule: str) -> Document:
    """Return a design with two replicas of every stage, on a mesh inside a node and on a mesh over two nodes.

    With these links, different schedules are the fastest on the two meshes.
    """
    device = {"peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10}
    links = {
        "intra_node": {"latency_s": 1e-5, "bandwidth": 1e7},
        "inter_node": {"latency_s": 0.0, "bandwidth": 1e7},
    }
    model = {"kind": "gpt", "layers": 4, "hidden": 16, "heads": 2, "sequence": 4, "vocab": 257, "ffn": 32}
    return {
        "format": "meshwave/1",
        "cluster": {"nodes": 2, "devices_per_node": 6, "device": device, **links},
        "model": {**model, "moe": {"experts": 4, "capacity_factor": None, "every": 2}},
        "meshes": [
            {"name": name, "devices": devices, "axes": {"dp": 2, "tp": 2}}
            for name, devices in (("A", [0, 1, 2, 3]), ("B", [4, 5, 6, 7]))
        ],
        "pipeline": {"schedule": "chimera", "microbatches": 4},
        "experts": {"schedule": schedule, "ep": 4},
        "training": {"steps": 2, "micro_batch_size": 2, "lr": 0.01, "precision": "fp64"},
    }


@pytest.mark.parametrize("schedule", ["parm-auto", "auto"])
def test_replicas_of_a_stage_choose_the_same_schedule(schedule: str, crew: Any) -> None:
    """The gradients of their gates are summed, which are partial under one schedule and complete under another."""
    document = with_unequal_replicas(schedule)
    alone = parse_design({**document, "pipeline": {"schedule": "gpipe", "microbatches": 4}})
    design = parse_design(document)

    assert len({resolve_expert_layer(alone, mesh).schedule for mesh in alone.meshes}) == 2
    assert len({resolve_expert_layer(design, mesh).schedule for mesh in design.meshes}) == 1
    if schedule == "auto":
        assert_equal(crew.train(document), reference(document))


def test_an_automatic_choice_with_dropped_tokens_trains_like_one_process(
    crew: Any, draw: Callable[..., Document]
) -> None:
    """Experts on the devices of one input may be folded, as they are here; S1 would drop other tokens."""
    document = draw({"schedule": "1f1b", "microbatches": 2}, pp=2, tp=2, lr=0.1)
    document["model"]["moe"] = {"experts": 4, "top_k": 2, "capacity_factor": 1.0, "every": 2, "aux_loss": 0.05}
    document["experts"] = {"schedule": "auto", "ep": 2, "placement": [[0, 1, 3], [2, 3]]}
    design = parse_design(document)
    _, _, choice = resolve_expert_layer(design, design.meshes[0])

    assert choice is not None and choice.name == "ppmoe" and "; parm-s1 is excluded" in choice.reason
    assert_equal(crew.train(document), reference(document))


def test_experts_in_mixed_precision_train_like_one_process(crew: Any, draw: Callable[..., Document]) -> None:
    """All chunks of all microbatches of a step use one copy of the weights; gradients are accumulated in float32.

    Every token visits all experts, because rounding to 16 bits could change its choice.
    """
    pipeline = {"schedule": "zb-h1", "microbatches": 4}
    document = draw(pipeline, pp=2, tp=2, steps=3, precision="bf16", optimizer="sgd", lr=0.1)
    document["model"]["moe"] = {"experts": 4, "top_k": 4, "capacity_factor": None, "every": 2}
    document["experts"] = {"schedule": "parm-s2", "ep": 2, "degree": 2}

    expected = reference(document)
    for outcome in crew.train(document):
        assert isinstance(outcome, dict), outcome
        assert outcome["losses"] == pytest.approx(expected.losses, rel=1e-3)
        for name, gradient in outcome["gradients"].items():
            wanted = part(outcome, name, expected.gradients)
            assert np.linalg.norm(gradient - wanted) < 5e-2 * np.linalg.norm(wanted) + 1e-5, name
