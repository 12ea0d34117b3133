"""Experts in mixed precision: one copy of their weights for all chunks, and in a stage for all microbatches of a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwave.engine.document import parse_design
from meshwave.engine.experts import Layer
from meshwave.engine.runtime.communication.groups import ALONE
from meshwave.engine.runtime.execution.stages import LocalStage
from meshwave.engine.runtime.experts import ExpertLayer
from meshwave.engine.runtime.experts import feed_forward as experts_module
from meshwave.engine.runtime.experts.build import alone
from meshwave.engine.runtime.experts.feed_forward import FeedForward
from meshwave.engine.runtime.experts.layer import KINDS
from meshwave.engine.runtime.models import build_stage

MATRICES = 4


def layer(degree: int = 4, dtype: torch.dtype = torch.float32, factor: float | None = 1.0) -> ExpertLayer:
    """Three experts in one process."""
    of = Layer(
        mp=1, ep=1, esp=1, experts=3, tokens=32, hidden=8, ffn_hidden=16, top_k=2, capacity_factor=factor, degree=degree
    )
    return ExpertLayer(of, "expert-parallel", dict.fromkeys(KINDS, ALONE), dtype=dtype).draw((0, 0))


def played(of: ExpertLayer, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output, gradient of the input and those of the weights, under autocast."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = of(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    gradients = [parameter.grad for parameter in of.parameters() if parameter.grad is not None]
    of.zero_grad(set_to_none=True)
    return y.detach(), x.grad, gradients


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The copies that are made of the matrices of all experts, by their precision."""
    made: list[torch.dtype] = []
    copy = FeedForward.copy

    def counted(self: FeedForward, dtype: torch.dtype) -> None:
        made.append(dtype)
        copy(self, dtype)

    monkeypatch.setattr(FeedForward, "copy", counted)
    cast = experts_module._cast

    def once(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        found = cast(weight, dtype)
        if found is not weight:
            made.append(dtype)
        return found

    monkeypatch.setattr(experts_module, "_cast", once)
    return made


def test_chunks_share_one_copy_of_the_weights_each_way(casts: list[torch.dtype]) -> None:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))

    played(layer(degree=4), x)

    assert casts == [torch.bfloat16] * 2 * (1 + MATRICES)  # told to copy, and each matrix once: forwards and backwards
    casts.clear()
    of = layer(degree=4, dtype=torch.float64)
    of(x.double().requires_grad_()).sum().backward()
    assert casts == []


def test_microbatches_share_the_copy_that_a_stage_asks_for(casts: list[torch.dtype]) -> None:
    of, x = layer(), torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    each = [played(of, part) for part in (x, -x)]
    casts.clear()

    of.cast_weights(torch.bfloat16)
    kept = [played(of, part) for part in (x, -x)]

    assert casts == [torch.bfloat16] * (1 + MATRICES)
    for one, other in zip(each, kept, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert all(torch.equal(a, b) for a, b in zip(one[2], other[2], strict=True))
        assert {gradient.dtype for gradient in other[2]} == {torch.float32}


@pytest.mark.parametrize("factor", [1.0, None])
def test_weights_that_have_changed_are_copied_again(factor: float | None) -> None:
    of, x = layer(factor=factor), torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    of.cast_weights(torch.bfloat16)
    before = played(of, x)[0]
    with torch.no_grad():
        for parameter in of.experts[0].parameters():
            parameter.mul_(2.0).add_(0.5)

    of.drop_cast_weights()
    after = played(of, x)[0]

    assert not torch.equal(before, after)
    of.cast_weights(torch.bfloat16)
    assert torch.equal(after, played(of, x)[0])


def test_a_stage_lets_all_microbatches_of_a_step_share_a_copy_of_its_experts(casts: list[torch.dtype]) -> None:
    design = parse_design(
        {
            "format": "meshwave/1",
            "cluster": {
                "nodes": 1,
                "devices_per_node": 1,
                "device": {"peak_flops": 1e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10},
                "intra_node": {"latency_s": 1e-5, "bandwidth": 1e9},
                "inter_node": {"latency_s": 1e-5, "bandwidth": 1e9},
            },
            "model": {
                "kind": "gpt",
                "layers": 2,
                "hidden": 8,
                "heads": 2,
                "sequence": 6,
                "vocab": 257,
                "ffn": 16,
                "moe": {"experts": 3, "top_k": 2, "capacity_factor": None, "every": 2},
            },
            "meshes": [{"name": "A", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
            "pipeline": {"schedule": "gpipe", "microbatches": 2},
            "experts": {"schedule": "expert-parallel"},
            "training": {"micro_batch_size": 2, "precision": "bf16"},
        }
    )
    module = build_stage(design.model, [2], 0, 0, experts=alone(design, 1.0, torch.float32))
    stage = LocalStage(module, "bf16", torch.device("cpu"), 0.5)

    for _ in range(2):
        for tokens in torch.randint(0, 256, (2, 2, 6), generator=torch.Generator().manual_seed(0)):
            _, saved = stage.forward(tokens, tokens)
            stage.backward(saved, None)
        assert casts == [torch.bfloat16] * (1 + MATRICES)
        casts.clear()
        stage.forget()
    assert all(parameter.grad is not None for parameter in module.parameters())
