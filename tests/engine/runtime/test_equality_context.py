"""Training equals one process with context parallelism, with both exchanges of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.runtime.equality import Document, assert_equal, reference
from tests.engine.runtime.test_equality_meshes import DEEPSEEK, GPT_OSS, LLAMA

CASES = {
    "multi-token": (
        "gpipe",
        {"pp": 1, "cp": 2},
        "ring",
        {**LLAMA, "mtp_layers": 2, "positions": {"kind": "alibi"}},
        {},
    ),
    "uneven-targets": ("gpipe", {"pp": 1, "cp": 3}, "ring", {"kind": "bert", "sequence": 18}, {"eval_every": 2}),
    "experts": ("gpipe", {"pp": 1, "cp": 2}, "all_gather", {"kind": "transformer", **GPT_OSS}, {"precision": "fp32"}),
    "latent": ("1f1b", {"pp": 1, "cp": 2}, "ring", {"kind": "transformer", **DEEPSEEK}, {}),
    "bf16": ("gpipe", {"pp": 1, "cp": 2}, "ring", LLAMA, {"precision": "bf16", "optimizer": "sgd"}),
}
"""Schedule, axes, exchange, model, and training settings by the name of a case."""


@pytest.mark.parametrize("name", CASES)
def test_context_parallel_training_equals_one_process(name: str, crew: Any, draw: Callable[..., Document]) -> None:
    schedule, axes, exchange, model, training = CASES[name]
    pipeline = {"schedule": schedule, "microbatches": 4}
    document = draw(pipeline, layers=5, context_parallel=exchange, **axes, **training)
    document["model"] |= model
    document["experts"] = {"schedule": "expert-parallel", "ep": 2, "esp": 1} if document["model"].get("moe") else {}
    assert_equal(crew.train(document), reference(document), training.get("precision", "fp64"))


@pytest.mark.parametrize(
    ("first", "second", "boundary"),
    [
        ({"cp": 2}, {"dp": 2}, "batch"),
        pytest.param({"tp": 2}, {"cp": 4}, "hidden", marks=pytest.mark.nightly),
        pytest.param({"cp": 2, "tp": 2}, {"cp": 4, "tp": 2}, "sequence", marks=pytest.mark.nightly),
    ],
)
def test_meshes_of_unequal_context_parallelism_train_like_one_process(
    first: Document, second: Document, boundary: str, crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 4}, layers=3)
    document["model"] |= {**LLAMA, "sequence": 16}
    devices = 0
    for mesh, axes in zip(document["meshes"], (first, second), strict=True):
        size = axes.get("dp", 1) * axes.get("cp", 1) * axes.get("tp", 1)
        mesh |= {"devices": [*range(devices, devices + size)], "axes": axes}
        devices += size
    document["cluster"] |= {"nodes": 1, "devices_per_node": devices}
    document["transfer"] = {"boundary": boundary}
    assert_equal(crew.train(document), reference(document))
