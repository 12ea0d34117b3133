"""Models of Hugging Face ``transformers`` and their designs: the same logits, gradients and numbers of parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from meshwave.engine.costs.model_flops import parameter_counts
from meshwave.engine.document import parse_design
from meshwave.engine.document.model import LanguageModel, model_families
from meshwave.engine.hugging_face.config import read_model
from meshwave.engine.hugging_face.saving import save_checkpoint
from meshwave.engine.hugging_face.tensor_files import checkpoint_files, find_weights
from meshwave.engine.hugging_face.weights import own_weights
from meshwave.engine.runtime.execution.checkpoint import WEIGHTS, Part
from meshwave.engine.runtime.execution.initial_weights import WeightReader, load_initial_weights
from meshwave.engine.runtime.experts.build import single_process_factory
from meshwave.engine.runtime.models import Stage, build_stage

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 260,
    "intermediate_size": 40,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 16}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
DEEPSEEK = {**SIZES, **ROUTED, **LATENT, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1}
DEEPSEEK |= {"num_key_value_heads": 6, "max_position_embeddings": 16}
WINDOW = {**GROUPED, "head_dim": 8, "sliding_window": 5}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
DEEPSEEK_ROPE = {**YARN_ROPE, "beta_fast": 4, "mscale": 1.0, "mscale_all_dim": 0.707}
LONG = {**GROUPED, "max_position_embeddings": 32}
LONG_ROPE = {"type": "longrope", "short_factor": [1.0, 1.3], "long_factor": [1.2, 4.0]}
SEPARATE = {"multi_query": False, "parallel_attn": False}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "mistral": {**GROUPED, "sliding_window": 5},
    "qwen3": {**GROUPED, "head_dim": 8},
    "phi3": {**GROUPED, "partial_rotary_factor": 0.5, "head_dim": 8},
    "longrope": {**LONG, "model_type": "phi3", "rope_scaling": LONG_ROPE, "original_max_position_embeddings": 8},
    "longrope-short": {**LONG, "model_type": "phi3", "rope_scaling": LONG_ROPE, "original_max_position_embeddings": 12},
    "gpt_neox": {**SIZES, "rotary_pct": 0.5, "max_position_embeddings": 16},
    "phi": {**SIZES, "max_position_embeddings": 16},
    "falcon": {**SIZES, "tie_word_embeddings": False, "ffn_hidden_size": 40},
    "llama": {**GROUPED, "rope_parameters": LLAMA3_ROPE},
    "qwen2": {**GROUPED, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**GROUPED, **ROUTED, "num_experts": 4, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**GROUPED, **ROUTED, "head_dim": 8, "num_experts": 4},
    "deepseek_v2": {
        **DEEPSEEK,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "rope_parameters": DEEPSEEK_ROPE,
    },
    "deepseek_v3": {**DEEPSEEK, "n_group": 4, "topk_group": 2, "rope_parameters": {**DEEPSEEK_ROPE, "mscale": 0.707}},
    "olmo": {**GROUPED, "max_position_embeddings": 8, "rope_parameters": DYNAMIC_ROPE},
    "olmo2": {**GROUPED, "rope_parameters": YARN_ROPE},
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 12},
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 12},
    "gpt_oss": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "falcon-alibi": {
        **SIZES,
        "model_type": "falcon",
        "alibi": True,
        "bias": True,
        **SEPARATE,
        "num_attention_heads": 8,
    },
    "bloom": {"hidden_size": 24, "n_layer": 3, "n_head": 6, "vocab_size": 260},
    "bert": {**SIZES, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "roberta": {
        **SIZES,
        "max_position_embeddings": 16,
        "pad_token_id": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "gpt2": {"n_embd": 24, "n_layer": 3, "n_head": 6, "vocab_size": 260, "n_positions": 16, "n_inner": 40},
}


EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
IMPLEMENTATIONS = {"falcon-alibi": {"attn_implementation": "sdpa"}}  # its eager attention adds ALiBi twice


class Doubles(TorchFunctionMode):
    """Replaces float32 and bfloat16 by float64 in calls of torch.

    Models of transformers compute norms, softmax and rotary positions in float32 whatever the dtype of the weights. With
    norms after attention and MLP, as in OLMo 2, the rounding of the first layer grows in each of the next layers to more
    than 1e-6 in the logits.
    """

    def __enter__(self) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        torch.set_default_dtype(torch.float32)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.bfloat16):
            func = Tensor.double
        args = [_widen(each) for each in args]
        return func(*args, **{name: _widen(each) for name, each in (kwargs or {}).items()})


def _widen(argument: Any) -> Any:
    is_narrow = isinstance(argument, torch.dtype) and argument in (torch.float32, torch.bfloat16)
    return torch.float64 if is_narrow else argument


TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}
"""Tolerance of float64; BLOOM writes the constant of its activation function with eight digits."""
TOKENS = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(1))


@dataclass
class Pair:
    """A small model of transformers with random weights, saved to a folder, and the same model here."""

    theirs: Any
    model: LanguageModel
    stage: Stage
    folder: Path
    implementations: dict[str, str]

    def logits(self) -> Tensor:
        """Return the logits of the model here."""
        return self.stage.head.logits(self.stage.forward_body(TOKENS))  # type: ignore[union-attr, operator, no-any-return]


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Each model with weights that transformers saved and a run would start from."""
    theirs, model = make_models(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    stage = build_whole(model)
    state = {f"{WEIGHTS}{name}": Part(weight.detach()) for name, weight in stage.named_parameters()}
    load_initial_weights(checkpoint_files(folder), model, state)
    return Pair(theirs, model, stage, folder, IMPLEMENTATIONS.get(request.param, EAGER))


def make_models(name: str) -> tuple[Any, LanguageModel]:
    """A small model of ``transformers`` with random weights, and the model that its own configuration is read as."""
    settings = {key: value for key, value in CONFIGURATIONS[name].items() if key != "model_type"}
    settings.setdefault("pad_token_id", 0)
    config = transformers.AutoConfig.for_model(CONFIGURATIONS[name].get("model_type", name), **settings)
    config.hidden_dropout = config.attention_dropout = config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0.0
    with torch.random.fork_rng(), Doubles():
        torch.manual_seed(0)
        theirs = auto_class(name).from_config(config, **IMPLEMENTATIONS.get(name, EAGER)).double().eval()
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in [*theirs.parameters(), *corrections(theirs)]:
            weight.add_(0.1 * torch.randn(weight.shape, generator=chance, dtype=weight.dtype))
    model, _ = read_model(json.loads(config.to_json_string(use_diff=False)))
    if model.get("moe"):
        model["moe"]["aux_loss"] = 0.0
    found = model_families["transformer"].model_validate(model)
    assert isinstance(found, LanguageModel)
    return theirs, found


def auto_class(name: str) -> Any:
    return transformers.AutoModelForMaskedLM if "bert" in name else transformers.AutoModelForCausalLM


def corrections(theirs: Any) -> list[Tensor]:
    return [buffer for key, buffer in theirs.named_buffers() if key.endswith("e_score_correction_bias")]


def build_whole(model: LanguageModel) -> Stage:
    """Return all layers in one stage."""
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"peak_flops": 1e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10}
    design = parse_design(
        {
            "format": "meshwave/1",
            "cluster": {"nodes": 1, "devices_per_node": 1, "device": device, "intra_node": link, "inter_node": link},
            "model": {**model.model_dump(mode="json"), "sequence": TOKENS.shape[1]},
            "meshes": [{"name": "A", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
            "pipeline": {"schedule": "gpipe", "microbatches": 1},
            "training": {"micro_batch_size": len(TOKENS), "precision": "fp64"},
        }
    )
    experts = single_process_factory(design, 1.0, torch.float64) if model.moe else None
    return build_stage(model, [model.layers], 0, 1, torch.float64, experts=experts)


def test_logits_and_gradients_equal_those_of_transformers(pair: Pair, tmp_path: Path) -> None:
    with Doubles():
        expected = pair.theirs(TOKENS).logits
    found = pair.logits()
    torch.testing.assert_close(found, expected, **TOLERANCE)

    found.square().mean().backward()
    with Doubles():
        expected.square().mean().backward()
    gradients = transformers_gradients(pair, tmp_path)
    assert gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(pair.stage.get_parameter(name).grad, gradient, **TOLERANCE, msg=name)
    pair.stage.zero_grad()
    pair.theirs.zero_grad()


def transformers_gradients(pair: Pair, folder: Path) -> dict[str, Tensor]:
    """Return the gradients of transformers, which it saves as if they were weights, by the names here."""
    kept = {name: weight.data for name, weight in pair.theirs.named_parameters()}
    for weight in pair.theirs.parameters():
        weight.data = torch.zeros_like(weight) if weight.grad is None else weight.grad
    pair.theirs.save_pretrained(folder)
    for name, weight in pair.theirs.named_parameters():
        weight.data = kept[name]
    weights, stored = find_weights(pair.model, checkpoint_files(folder))
    reader = WeightReader(stored.files)
    return {
        weight.name: reader.read(
            weight._replace(sources=tuple(source._replace(offset=0.0) for source in weight.sources))
        )
        for weight in weights
        if not weight.name.endswith("gate.balance")
    }


def test_the_weights_of_a_stage_are_those_that_are_named(pair: Pair) -> None:
    found = {name: tuple(weight.shape) for name, weight in pair.stage.named_parameters()}

    assert found == own_weights(pair.model)


@pytest.mark.parametrize("kind", ["gpt", "bert", "u-transformer"])
def test_the_weights_of_byte_models_are_those_that_are_named(kind: str) -> None:
    sizes = {"layers": 4, "hidden": 8, "heads": 2, "sequence": TOKENS.shape[1], "vocab": 257}
    model = model_families[kind].model_validate({"kind": kind, **sizes})
    assert isinstance(model, LanguageModel)

    found = {name: tuple(weight.shape) for name, weight in build_whole(model).named_parameters()}

    assert found == own_weights(model)


def test_transformers_loads_saved_weights(pair: Pair, tmp_path: Path) -> None:
    save_file({name: weight.detach() for name, weight in pair.stage.named_parameters()}, tmp_path / "own.safetensors")
    save_checkpoint(pair.model, tmp_path / "own.safetensors", tmp_path / "saved")

    loaded = auto_class(pair.theirs.config.model_type).from_pretrained(
        tmp_path / "saved", **pair.implementations, dtype=torch.float64
    )

    torch.testing.assert_close(loaded.eval()(TOKENS).logits, pair.logits(), rtol=1e-5, atol=1e-6)
    model, _ = read_model(json.loads((tmp_path / "saved" / "config.json").read_text()))
    assert own_weights(model_families["transformer"].model_validate(model)) == own_weights(pair.model)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_model_of_transformers_has_as_many_parameters_as_its_design(name: str) -> None:
    settings = {key: value for key, value in CONFIGURATIONS[name].items() if key != "model_type"}
    settings.setdefault("pad_token_id", 0)
    config = transformers.AutoConfig.for_model(CONFIGURATIONS[name].get("model_type", name), **settings)
    theirs = auto_class(name).from_config(config)
    model, _ = read_model(json.loads(config.to_json_string(use_diff=False)))
    found = model_families["transformer"].model_validate(model)

    weights = [*theirs.parameters(), *corrections(theirs)]
    assert parameter_counts(found)[0] == sum(weight.numel() for weight in weights)
