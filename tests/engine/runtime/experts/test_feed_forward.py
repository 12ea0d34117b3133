"""Experts in mixed precision share one copy of their weights: all chunks, and in a stage all microbatches of a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwave.engine.document import parse_design
from meshwave.engine.experts import Layer
from meshwave.engine.runtime.communication.groups import ALONE
from meshwave.engine.runtime.execution.stages import LocalStage
from meshwave.engine.runtime.experts import ExpertLayer, feed_forward
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.experts.feed_forward import FeedForward
from meshwave.engine.runtime.experts.layer import GROUP_KINDS
from meshwave.engine.runtime.models import build_stage

WEIGHTS = 4


def make_layer(degree: int = 4, dtype: torch.dtype = torch.float32, factor: float | None = 1.0) -> ExpertLayer:
    """Return a layer of three experts in one process."""
    layer = Layer(
        mp=1, ep=1, esp=1, experts=3, tokens=32, hidden=8, ffn_hidden=16, top_k=2, capacity_factor=factor, degree=degree
    )
    return ExpertLayer(layer, "expert-parallel", dict.fromkeys(GROUP_KINDS, ALONE), dtype=dtype).draw_weights((0, 0))


def train(layer: ExpertLayer, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the output, the gradient of the input and those of the weights, under autocast."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad(set_to_none=True)
    return y.detach(), x.grad, gradients


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The requests for copies, and the copies of single weights of all experts, by their precision."""
    dtypes: list[torch.dtype] = []
    cast_weights, to_dtype = FeedForward.cast_weights, feed_forward._to_dtype

    def counting_request(self: FeedForward, dtype: torch.dtype) -> None:
        dtypes.append(dtype)
        cast_weights(self, dtype)

    def counting_copy(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        copy = to_dtype(weight, dtype)
        if copy is not weight:
            dtypes.append(dtype)
        return copy

    monkeypatch.setattr(FeedForward, "cast_weights", counting_request)
    monkeypatch.setattr(feed_forward, "_to_dtype", counting_copy)
    return dtypes


def test_chunks_share_one_copy_of_the_weights_in_each_direction(casts: list[torch.dtype]) -> None:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))

    train(make_layer(degree=4), x)

    assert casts == [torch.bfloat16] * 2 * (1 + WEIGHTS)  # forward and backward
    casts.clear()
    double = make_layer(degree=4, dtype=torch.float64)
    double(x.double().requires_grad_()).sum().backward()
    assert casts == []


def test_microbatches_share_the_copy_that_a_stage_requests(casts: list[torch.dtype]) -> None:
    layer, x = make_layer(), torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    separate = [train(layer, part) for part in (x, -x)]
    casts.clear()

    layer.cast_weights(torch.bfloat16)
    shared = [train(layer, part) for part in (x, -x)]

    assert casts == [torch.bfloat16] * (1 + WEIGHTS)
    for one, other in zip(separate, shared, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert all(torch.equal(a, b) for a, b in zip(one[2], other[2], strict=True))
        assert {gradient.dtype for gradient in other[2]} == {torch.float32}


@pytest.mark.parametrize("factor", [1.0, None])
def test_changed_weights_are_copied_again(factor: float | None) -> None:
    layer, x = make_layer(factor=factor), torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    layer.cast_weights(torch.bfloat16)
    before = train(layer, x)[0]
    with torch.no_grad():
        for parameter in layer.experts[0].parameters():
            parameter.mul_(2.0).add_(0.5)

    layer.drop_cast_weights()
    after = train(layer, x)[0]

    assert not torch.equal(before, after)
    layer.cast_weights(torch.bfloat16)
    assert torch.equal(after, train(layer, x)[0])


def test_all_microbatches_of_a_step_share_a_copy_of_the_experts_of_a_stage(casts: list[torch.dtype]) -> None:
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
    module = build_stage(design.model, [2], 0, 0, experts=single_process_factory(design, 1.0, torch.float32))
    stage = LocalStage(module, "bf16", torch.device("cpu"), 0.5)

    for _ in range(2):
        for tokens in torch.randint(0, 256, (2, 2, 6), generator=torch.Generator().manual_seed(0)):
            _, saved = stage.forward(tokens, tokens)
            stage.backward(saved, None)
        assert casts == [torch.bfloat16] * (1 + WEIGHTS)
        casts.clear()
        stage.drop_cast_weights()
    assert all(parameter.grad is not None for parameter in module.parameters())
