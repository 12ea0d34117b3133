"""Logits and gradients equal those of Hugging Face ``transformers``, with the same random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.imports.hugging_face import read_model
from meshwave.engine.runtime.models import build_stage
from tests.engine.runtime.models.test_architectures import CONFIGURATIONS, GROUPED, SIZES

pytestmark = pytest.mark.torch

Weights = Mapping[str, Tensor]


def llama_layer(weights: Weights, source: str) -> dict[str, list[Tensor]]:
    """Separate matrices of queries, keys and values, and of both halves of the gated MLP."""

    def parts(*names: str, kind: str = "weight") -> list[Tensor]:
        return [weights[key] for name in names if (key := f"{source}.{name}.{kind}") in weights]

    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return {
        "attention_norm.weight": parts("input_layernorm"),
        "attention.qkv.weight": parts(*attention, "self_attn.qkv_proj"),
        "attention.qkv.bias": parts(*attention, kind="bias"),
        "attention.query_norm.weight": parts("self_attn.q_norm"),
        "attention.key_norm.weight": parts("self_attn.k_norm"),
        "attention.out.weight": parts("self_attn.o_proj"),
        "ffn_norm.weight": parts("post_attention_layernorm"),
        "ffn_in.weight": parts("mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj"),
        "ffn_out.weight": parts("mlp.down_proj"),
    }


def phi_layer(weights: Weights, source: str) -> dict[str, list[Tensor]]:
    names = {
        "attention_norm": ["input_layernorm"],
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.out": ["self_attn.dense"],
        "ffn_in": ["mlp.fc1"],
        "ffn_out": ["mlp.fc2"],
    }
    return _weights_by_name(weights, source, names)


def neox_layer(weights: Weights, source: str) -> dict[str, list[Tensor]]:
    """Queries, keys and values of a head lie side by side."""
    names = {
        "attention_norm": ["input_layernorm"],
        "attention.out": ["attention.dense"],
        "ffn_norm": ["post_attention_layernorm"],
        "ffn_in": ["mlp.dense_h_to_4h"],
        "ffn_out": ["mlp.dense_4h_to_h"],
    }
    heads = CONFIGURATIONS["gpt_neox"]["num_attention_heads"]
    found = _weights_by_name(weights, source, names)
    for kind in ("weight", "bias"):
        fused = weights[f"{source}.attention.query_key_value.{kind}"]
        found[f"attention.qkv.{kind}"] = [part.flatten(0, 1) for part in fused.unflatten(0, (heads, 3, -1)).unbind(1)]
    return found


def falcon_layer(weights: Weights, source: str) -> dict[str, list[Tensor]]:
    names = {
        "attention_norm": ["input_layernorm"],
        "attention.qkv": ["self_attention.query_key_value"],
        "attention.out": ["self_attention.dense"],
        "ffn_in": ["mlp.dense_h_to_4h"],
        "ffn_out": ["mlp.dense_4h_to_h"],
    }
    return _weights_by_name(weights, source, names)


def _weights_by_name(weights: Weights, source: str, names: Mapping[str, list[str]]) -> dict[str, list[Tensor]]:
    return {
        f"{ours}.{kind}": [weights[key] for name in theirs if (key := f"{source}.{name}.{kind}") in weights]
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }


LAYERS: dict[str, tuple[str, Callable[[Weights, str], dict[str, list[Tensor]]]]] = {
    "phi": ("model.layers", phi_layer),
    "gpt_neox": ("gpt_neox.layers", neox_layer),
    "falcon": ("transformer.h", falcon_layer),
}
ENDS = {
    "embedding.token": ("model.embed_tokens", "gpt_neox.embed_in", "transformer.word_embeddings"),
    "head.norm": ("model.norm", "model.final_layernorm", "gpt_neox.final_layer_norm", "transformer.ln_f"),
    "head.project": ("lm_head", "embed_out"),
}


def convert(name: str, weights: Weights, layers: int) -> dict[str, Tensor]:
    """Return the weights of a whole model under the names that its stages have."""
    prefix, of_layer = LAYERS.get(name, ("model.layers", llama_layer))
    found = {
        f"layers.{number}.{key}": torch.cat(parts)
        for number in range(layers)
        for key, parts in of_layer(weights, f"{prefix}.{number}").items()
        if parts
    }
    for ours, theirs in ENDS.items():
        for kind in ("weight", "bias"):
            found.update({f"{ours}.{kind}": weights[key] for each in theirs if (key := f"{each}.{kind}") in weights})
    return found


def make_models(name: str) -> tuple[Any, LanguageModel]:
    """A small model of ``transformers`` with random weights, and the model that its own configuration is read as."""
    settings = {key: value for key, value in CONFIGURATIONS[name].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(name, **settings, pad_token_id=0)
    config.hidden_dropout = config.attention_dropout = config.embd_pdrop = config.resid_pdrop = 0.0
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=chance, dtype=weight.dtype))
    model, _ = read_model(json.loads(config.to_json_string(use_diff=False)))
    found = model_families["transformer"].model_validate(model)
    assert isinstance(found, LanguageModel)
    return theirs, found


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_and_gradients_equal_those_of_transformers(name: str) -> None:
    theirs, model = make_models(name)
    stage = build_stage(model, [model.layers], 0, 1, torch.float64)
    stage.load_state_dict(convert(name, theirs.state_dict(), model.layers))
    tokens = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))

    found, expected = stage.head.logits(stage.forward_body(tokens)), theirs(tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    found.square().mean().backward()
    expected.square().mean().backward()
    gradients = {key: weight.grad for key, weight in theirs.named_parameters()}
    for key, gradient in convert(name, gradients, model.layers).items():
        torch.testing.assert_close(stage.get_parameter(key).grad, gradient, rtol=1e-4, atol=1e-6)


ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
DEEPSEEK = {**SIZES, **ROUTED, **LATENT, "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1}
COUNTED: dict[str, dict[str, Any]] = {
    **CONFIGURATIONS,
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**GROUPED, **ROUTED, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**GROUPED, **ROUTED, "head_dim": 8, "num_experts": 4},
    "deepseek_v2": {**DEEPSEEK, "n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "deepseek_v3": {**DEEPSEEK, "n_group": 1, "topk_group": 1},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GROUPED, "head_dim": 8},
    "gemma3_text": {**GROUPED, "head_dim": 8},
    "gpt_oss": {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {"n_embd": 24, "n_layer": 3, "n_head": 6, "vocab_size": 260, "n_positions": 16, "n_inner": 40},
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_model_of_transformers_has_as_many_parameters_as_its_design(name: str) -> None:
    settings = {key: value for key, value in COUNTED[name].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(name, **settings, pad_token_id=0)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    model, _ = read_model(json.loads(config.to_json_string(use_diff=False)))
    found = model_families["transformer"].model_validate(model)

    corrections = [buffer for key, buffer in theirs.named_buffers() if key.endswith("e_score_correction_bias")]
    weights = [*theirs.parameters(), *corrections]
    assert parameter_counts(found)[0] == sum(weight.numel() for weight in weights)
