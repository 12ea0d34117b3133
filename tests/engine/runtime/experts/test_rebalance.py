"""Experts that move to other devices during training, with their weights and optimizer states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.runtime.equality import Document, assert_equal, case_name, unsharded_reference

MOE = {"experts": 8, "top_k": 2, "capacity_factor": None, "every": 2, "bias_correction": True}
MOVED: list[tuple[str, Document, Document, Document]] = [
    ("zb-h1", {"tp": 2, "dp": 2}, {"schedule": "parm-s2", "ep": 2, "esp": 2, "degree": 2}, {}),
    ("1f1b", {"tp": 2, "dp": 1}, {"schedule": "ppmoe"}, {"precision": "fp32", "lr": 0.001}),
    ("chimera", {"dp": 2}, {"schedule": "expert-parallel", "ep": 2}, {"sharding": "optimizer"}),
    ("gpipe", {"dp": 4, "pp": 1}, {"schedule": "expert-parallel", "ep": 2}, {"sharding": "parameters"}),
]
"""A schedule, the axes of the meshes, the experts, and training settings.

The case in fp32 has a small learning rate: Adam divides each gradient by its own size, so that the rounding of a small
gradient, which differs between processors, moves a weight by a part of the learning rate.
"""


@pytest.mark.parametrize(("schedule", "axes", "experts", "training"), MOVED, ids=case_name)
def test_training_with_moved_experts_equals_one_process(
    schedule: str, axes: Document, experts: Document, training: Document, crew: Any, draw: Callable[..., Document]
) -> None:
    pipeline = {"schedule": schedule, "microbatches": 4}
    document = draw(pipeline, layers=5, **{"pp": 2, **axes}, steps=3, clip_norm=0.5, **training)
    document["model"] |= {"kind": "transformer", "moe": MOE}
    document["experts"] = {**experts, "rebalance_steps": 1, "rebalance_threshold": 1.0}

    outcomes = crew.train(document)

    seconds = [change.pop("seconds") for outcome in outcomes for change in outcome["moved"]]
    moved = outcomes[0]["moved"]
    assert all(outcome["moved"] == moved for outcome in outcomes)
    assert moved and any(seconds)
    assert all(change["load_after"] < change["load_before"] for change in moved)
    assert_equal(outcomes, unsharded_reference(document), training.get("precision", "fp64"))
