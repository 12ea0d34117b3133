"""Recomputation of parts of a layer: the same gradients, and the kept bytes of the cost model."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwave.engine.costs import flops
from meshwave.engine.costs.operators import Kernels, Workload
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runtime.device.memory import AllocationCount
from meshwave.engine.runtime.execution.stages import LocalStage
from meshwave.engine.runtime.models import Stage, build_stage
from meshwave.engine.runtime.modules.products import use_float8
from meshwave.engine.runtime.modules.recomputation import recompute_layers

pytestmark = pytest.mark.torch

SIZES = {"kind": "transformer", "layers": 4, "hidden": 64, "heads": 4, "sequence": 64, "vocab": 260}
LLAMA = {
    "attention": {"kv_heads": 2},
    "mlp": {"gated": True, "activation": "silu", "bias": False},
    "norm": {"kind": "rmsnorm"},
    "positions": {"kind": "rope"},
}
PARTS = ["attention", "operators", "layers", "layers-early-stop"]
CPU = torch.device("cpu")


def local_stage(
    model: LanguageModel, part: Any, precision: str, *, splits_backward: bool, float8: bool = False
) -> tuple[Stage, LocalStage]:
    """Return the last of two stages, and its computation."""
    module = build_stage(model, [2, 2], 1, 1)
    if float8:
        multiplying, linear = use_float8(module.layers.modules())
        assert multiplying == linear
    if part is not None:
        recompute_layers(module.layers.values(), part)
    return module, LocalStage(module, precision, CPU, 1.0, splits_backward=splits_backward)


def inputs(precision: str) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 64, 64, generator=chance).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    return hidden, torch.randint(0, 256, (2, 64), generator=chance)


@pytest.mark.parametrize("architecture", [{}, LLAMA, {"mtp_layers": 1}], ids=["gpt", "llama", "mtp"])
@pytest.mark.parametrize(("precision", "splits_backward"), [("fp32", True), ("bf16", False)])
@pytest.mark.parametrize("part", PARTS)
def test_recomputing_a_part_of_the_layers_changes_no_bit_of_the_gradients(
    part: str, precision: str, splits_backward: bool, architecture: dict[str, Any]
) -> None:
    model = model_families["transformer"].model_validate({**SIZES, **architecture})
    assert isinstance(model, LanguageModel)
    found = []
    for each in (None, part):
        module, local = local_stage(model, each, precision, splits_backward=splits_backward)
        x, targets = inputs(precision)
        _, saved = local.forward(x, targets)
        gradient = local.backward(saved, None)
        found.append([gradient, *(weight.grad for weight in module.parameters())])

    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def allocated_bytes(local: LocalStage, x: Tensor, targets: Tensor) -> int:
    """Return the bytes that a forward leaves allocated, after one that fills the caches."""
    local.forward(x.clone(), targets)
    gc.collect()
    with AllocationCount(CPU) as allocated:
        saved = local.forward(x, targets)
    del saved
    return allocated.bytes


CASES = [
    *[(part, each, "product") for each in ({}, LLAMA) for part in (None, *PARTS)],
    *[(part, {}, "fp8") for part in (None, *PARTS)],
    (None, {**LLAMA, "ffn": 160}, "fp8"),
    (None, {"mlp": {"activation": "relu"}, "residual": "parallel-one-norm"}, "fp8"),
]
"""Recomputed part, architecture and number format of linear layers."""


@pytest.mark.parametrize(("part", "architecture", "linear"), CASES)
def test_a_stage_keeps_the_bytes_that_are_predicted(
    part: str | None, architecture: dict[str, Any], linear: Any
) -> None:
    model = model_families["transformer"].model_validate({**SIZES, **architecture})
    assert isinstance(model, LanguageModel)
    _, local = local_stage(model, part, "fp32", splits_backward=False, float8=linear == "fp8")
    x, targets = inputs("fp32")

    kept = allocated_bytes(local, x, targets) + x.nbytes + targets.nbytes - 8  # the loss, and its detached copy

    load = replace(Workload.from_model(model, batch=2), kernels=Kernels(recomputes=part, linear=linear))  # type: ignore[arg-type]
    assert kept == flops.activation_bytes(load, 2, first=False, last=True)


@pytest.mark.parametrize(("part", "tolerance"), [("attention", 0.0), ("layers", 1e-3)])
def test_a_u_net_keeps_the_bytes_that_are_predicted(part: str, tolerance: float) -> None:
    document = json.loads(example("21-u-net").read_text())
    document["pipeline"] = {"schedule": "gpipe", "microbatches": 1, "recompute": part}
    document["meshes"] = [{"name": "A", "devices": [0], "axes": {"dp": 1, "tp": 1}}]
    document["training"] |= {"micro_batch_size": 2, "precision": "fp32"}
    design = parse_design(document)
    chance = np.random.default_rng(0)
    examples = [design.model.example(np.zeros(design.model.window, np.uint8), chance) for _ in range(2)]
    x, targets = (torch.tensor(np.stack(each), dtype=torch.float32) for each in zip(*examples, strict=True))
    module = build_stage(design.model, [design.model.layers], 0, 1)
    recompute_layers(module.layers.values(), part)
    local = LocalStage(module, "fp32", CPU, 1.0)

    expected = predict(design).costs.activation_bytes[0]
    assert allocated_bytes(local, x, targets) + x.nbytes == pytest.approx(expected, rel=tolerance)
