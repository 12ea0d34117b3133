"""Stages of the usual architectures against plain implementations of the same formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwave.engine.document.architecture import Architecture
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.hugging_face.config import read_model
from meshwave.engine.runtime.models import build_stage

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 260,
    "intermediate_size": 40,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 16}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "model_type": "llama"},
    "mistral": {**GROUPED, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**GROUPED, "model_type": "qwen2", "rope_theta": 1e6},
    "qwen3": {**GROUPED, "model_type": "qwen3", "head_dim": 8},
    "phi3": {**GROUPED, "model_type": "phi3", "partial_rotary_factor": 0.5, "head_dim": 8},
    "gpt_neox": {**SIZES, "model_type": "gpt_neox", "rotary_pct": 0.5, "max_position_embeddings": 16},
    "phi": {**SIZES, "model_type": "phi", "max_position_embeddings": 16},
    "falcon": {**SIZES, "model_type": "falcon", "tie_word_embeddings": False, "ffn_hidden_size": 40},
}


def model_of(name: str) -> LanguageModel:
    model, _ = read_model(CONFIGURATIONS[name])
    found = model_families["transformer"].model_validate(model)
    assert isinstance(found, LanguageModel)
    return found


class Plain:
    """A transformer written token by token and head by head, without any of the modules of the runtime."""

    def __init__(self, model: LanguageModel, weights: Mapping[str, Tensor]) -> None:
        self.model, self.kind, self.weights = model, model.architecture, weights

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.weights["embedding.token.weight"][tokens]
        for number in range(self.model.layers):
            prefix = f"layers.{number}."
            normed = self.norm(f"{prefix}attention_norm", x)
            attended = self.attention(prefix, number, normed)
            if self.kind.residual == "sequential":
                x = x + attended
                x = x + self.mlp(prefix, self.norm(f"{prefix}ffn_norm", x))
            else:
                shares_norm = self.kind.residual == "parallel-one-norm"
                taken = normed if shares_norm else self.norm(f"{prefix}ffn_norm", x)
                x = x + attended + self.mlp(prefix, taken)
        return self.linear("head.project", self.norm("head.norm", x))

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.weights[f"{name}.weight"].T
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, eps = self.weights[f"{name}.weight"], self.kind.norm.eps
        if self.kind.norm.kind == "rmsnorm":
            return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + self.weights[f"{name}.bias"]

    def mlp(self, prefix: str, x: Tensor) -> Tensor:
        inner = self.linear(f"{prefix}ffn_in", x)
        activate = {
            "silu": lambda x: x * torch.sigmoid(x),
            "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
            "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        }[self.kind.mlp.activation]
        if self.kind.mlp.gated:
            gate, linear = inner[..., : self.model.ffn_hidden], inner[..., self.model.ffn_hidden :]
            return self.linear(f"{prefix}ffn_out", activate(gate) * linear)
        return self.linear(f"{prefix}ffn_out", activate(inner))

    def attention(self, prefix: str, number: int, x: Tensor) -> Tensor:
        part, heads = self.kind.attention, self.model.heads
        kv_heads, dims = part.kv_heads or heads, part.head_dim or self.model.hidden // heads
        whole = self.linear(f"{prefix}attention.qkv", x)
        out = []
        for head in range(heads):
            shared = heads + head // (heads // kv_heads)
            query, key = (
                self.rotated(self.head_norm(f"{prefix}attention.{kind}_norm", whole[..., at * dims : (at + 1) * dims]))
                for at, kind in ((head, "query"), (shared, "key"))
            )
            value = whole[..., (shared + kv_heads) * dims : (shared + kv_heads + 1) * dims]
            scores = query @ key.mT / dims**0.5
            place = torch.arange(x.shape[1])
            distance = place[:, None] - place
            hidden = (distance < 0) | (distance >= (part.window or x.shape[1]))
            out.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value)
        return self.linear(f"{prefix}attention.out", torch.cat(out, -1))

    def head_norm(self, name: str, x: Tensor) -> Tensor:
        return self.norm(name, x) if f"{name}.weight" in self.weights else x

    def rotated(self, x: Tensor) -> Tensor:
        """Multiply pairs of dimensions, as complex numbers, by ``exp(i position theta^(-2 pair / dims))``."""
        positions = self.kind.positions
        dims = int(positions.fraction * x.shape[-1]) // 2 * 2
        half = dims // 2
        angles = torch.outer(
            torch.arange(x.shape[1], dtype=x.dtype), positions.theta ** (-2 * torch.arange(half, dtype=x.dtype) / dims)
        )
        turned = torch.complex(x[..., :half], x[..., half:dims]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag, x[..., dims:]), -1)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_and_gradients_equal_those_of_a_plain_implementation(name: str) -> None:
    model = model_of(name)
    stage = build_stage(model, [model.layers], 0, 3, torch.float64)
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():  # biases and scales at other values than their first ones
        for weight in stage.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=chance, dtype=weight.dtype))
    weights = {key: value.detach().clone().requires_grad_() for key, value in stage.state_dict().items()}
    tokens = torch.randint(0, 256, (2, 12), generator=chance)

    found = stage.head.logits(stage.forward_body(tokens))
    expected = Plain(model, weights).logits(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    found.square().mean().backward()
    expected.square().mean().backward()
    for key, parameter in stage.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, weights[key].grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_stage_has_as_many_parameters_as_the_cost_model_counts(name: str) -> None:
    from meshwave.engine.costs.model_flops import parameter_counts

    model = model_of(name)
    stage = build_stage(model, [model.layers], 0, 3)

    assert sum(weight.numel() for weight in stage.parameters()) == parameter_counts(model)[0]


def test_the_defaults_of_a_transformer_are_a_gpt() -> None:
    sizes = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocab": 256}
    gpt, transformer = (
        build_stage(model_families[kind].model_validate({"kind": kind, **sizes}), [2], 0, 1).state_dict()
        for kind in ("gpt", "transformer")
    )

    assert Architecture() == model_families["transformer"].model_validate({"kind": "transformer", **sizes}).architecture
    assert gpt.keys() == transformer.keys()
    assert all(torch.equal(gpt[name], transformer[name]) for name in gpt)
