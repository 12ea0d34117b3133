"""Conversion of the model section of a design to a Hugging Face ``transformers`` configuration.

The configuration is written for the first model type that represents the model exactly: reading it back gives a model
that computes the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isclose, log
from typing import Any

from meshwave.engine import messages
from meshwave.engine.document.architecture import RopeScaling
from meshwave.engine.document.model import LanguageModel, MoE, model_families
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.hugging_face.config import SCALING_KEYS, Json, read_model
from meshwave.engine.hugging_face.keys import ACTIVATIONS, MODEL_TYPES, SIZES

LEARNED = ("moe.capacity_factor", "moe.aux_loss", "moe.z_loss", "moe.bias_update_rate", "mtp_loss_weight")
"""Keys that affect the training of a model, but not its function."""

PARTLY_ROTARY = ("phi", "phi3", "gpt_neox")
"""Model types that support partly rotated heads; others ignore the setting."""

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "falcon": "FalconForCausalLM",
    "bloom": "BloomForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
}
"""Class of transformers for each model type, by which other programs choose a model."""


def write_config(model: LanguageModel) -> Json:
    """Return the configuration of a model.

    Raises:
        Refusal: no model type represents the model.
    """
    found = next(iter(representing_configs(model)), None)
    if found is None:
        nearest, keys = _nearest_type(model)
        raise Refusal("hf_no_type", {"nearest": nearest, "keys": keys})
    return found


def representing_configs(model: LanguageModel) -> Iterator[Json]:
    """Yield a configuration for each model type that represents the model exactly."""
    return (config for config in _candidate_configs(model) if not model_differences(model, config))


def model_differences(model: LanguageModel, config: Json) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which a configuration differs from a model, with the value of the model and the other value.

    Raises:
        DesignError: the configuration cannot be represented.
    """
    section, _ = read_model(config, includes_mtp=model.architecture.mtp_layers > 0)
    other = model_families["transformer"].model_validate(section)
    assert isinstance(other, LanguageModel)
    mine, theirs = _function_values(model), _function_values(other)
    found = {key: (mine.get(key), theirs.get(key)) for key in mine.keys() | theirs.keys()}
    return {key: pair for key, pair in sorted(found.items()) if not _is_same(*pair)}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


# ---- what a model computes ----


def _function_values(model: LanguageModel) -> dict[str, Any]:
    """Return all values that affect the function of a model by path, including defaults."""
    section = _explicit_model_section(model)
    attention, positions, norm = section["attention"], section["positions"], section["norm"]
    if attention["latent"] is not None:
        attention["kv_heads"] = attention["head_dim"] = None
    if attention["window"] is None:
        attention["full_every"] = 0
    if attention["window"] is None or positions["window_theta"] == positions["theta"]:
        positions["window_theta"] = None
    if positions["kind"] != "rope":
        positions |= {"theta": None, "fraction": None, "window_theta": None, "scaling": None}
    if positions["kind"] != "alibi":
        positions["alibi_scale"] = 1.0
    if positions["kind"] != "learned":
        positions["offset"] = 0
    if norm["kind"] == "rmsnorm":
        norm["bias"] = False
    section["kind"] = "transformer" if not model.skips else model.kind
    found = dict(_flatten(section))
    return {path: value for path, value in found.items() if path not in (*LEARNED, "sequence")}


def _explicit_model_section(model: LanguageModel) -> Json:
    """Return the model section with the defaults that depend on other keys."""
    part, positions = model.architecture.attention, model.architecture.positions
    section: Json = model.architecture.model_dump(mode="python")
    section |= {path: getattr(model, path) for path in SIZES} | {"ffn": model.ffn_hidden, "sequence": model.sequence}
    head_dim = part.head_dim or model.hidden // model.heads
    rows = positions.table_rows(model.sequence) or None
    section["attention"] |= {"kv_heads": part.kv_heads or model.heads, "head_dim": head_dim}
    section["positions"]["table"] = rows
    section["objective"] = "next-token" if model.causal else "masked"
    if (scaling := positions.scaling) is not None:
        section["positions"]["scaling"]["attention_factor"] = scaling.magnitude
    if part.scale is not None and isclose(part.scale, head_dim**-0.5, rel_tol=1e-9):
        section["attention"]["scale"] = None
    if model.moe is not None:
        section["moe"] = _moe_section(model, model.moe)
        if len(model.expert_blocks) == model.layers:
            section["ffn"] = None
    return section


def _moe_section(model: LanguageModel, moe: MoE) -> Json:
    rule = moe.router
    return {
        **moe.model_dump(mode="python"),
        "ffn": moe.expert_width(model.ffn_hidden),
        "every": moe.every,
        "first_dense": getattr(moe, "first_dense", 0),
        "shared_ffn": moe.shared_width,
        "shared_gate": moe.has_shared_gate and moe.shared_width > 0,
        "score": rule.score,
        "normalize": rule.normalize,
        "scale": rule.scale,
        "router_bias": rule.has_bias,
        "bias_correction": rule.has_balance,
        "groups": rule.groups if rule.groups > rule.top_groups else 1,
        "top_groups": rule.top_groups if rule.groups > rule.top_groups else 1,
    }


def _flatten(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# ---- candidates ----


def _candidate_configs(model: LanguageModel) -> Iterator[Json]:
    """Yield the closest configuration for each model type; only types with experts if the model has experts."""
    for model_type in MODEL_TYPES:
        has_experts = "moe.experts" in MODEL_TYPES[model_type].keys
        rotates = model.architecture.positions.kind == "rope" and model.architecture.positions.fraction != 1
        if has_experts == (model.moe is not None) and (not rotates or model_type in PARTLY_ROTARY):
            config = _candidate_config(model, model_type)
            if _is_readable(config):
                yield config


def _is_readable(config: Json) -> bool:
    try:
        model_families["transformer"].model_validate(read_model(config)[0])
    except (DesignError, ValueError):
        return False
    return True


def _candidate_config(model: LanguageModel, model_type: str) -> Json:
    kind, section = MODEL_TYPES[model_type], _explicit_model_section(model)
    if section["ffn"] is None:
        section["ffn"] = model.ffn_hidden
    section["mlp"]["activation"] = _NAMES_OF_ACTIVATIONS.get(model.architecture.mlp.activation)
    values = dict(_flatten(section))
    values["layers"] -= model.architecture.mtp_layers
    config: Json = {"architectures": [CLASSES[model_type]], "model_type": model_type}
    for path, key in {**SIZES, **kind.keys}.items():
        config[key.names[0]] = values.get(path)
    config |= {name: allowed[0] for name, allowed in kind.required.items() if allowed[0] is not None}
    config |= _position_config(model)
    config |= _layer_types_config(model)
    config["pad_token_id"] = None
    config |= _SPECIAL.get(model_type, _no_special_config)(model)
    return {name: value for name, value in config.items() if value is not None or name == "pad_token_id"}


_NAMES_OF_ACTIVATIONS = {
    ours: theirs for theirs, ours in ACTIVATIONS.items() if theirs not in ("swish", "gelu_new", "gelu_fast")
}


def _position_config(model: LanguageModel) -> Json:
    """Return the maximum sequence length and the settings of rotary positions, for older and newer versions."""
    positions = model.architecture.positions
    longest = positions.table or positions.offset + model.sequence
    if positions.kind != "rope":
        return {"max_position_embeddings": longest}
    rope: Json = {"rope_type": "default", "rope_theta": positions.theta}
    if positions.fraction != 1:
        rope["partial_rotary_factor"] = positions.fraction
    found: Json = {"rope_theta": positions.theta}
    if (scaling := positions.scaling) is not None:
        original = scaling.original_context or 0
        longest = original if scaling.kind == "dynamic" else max(longest, round(original * scaling.factor))
        found["rope_scaling"] = _scaling_config(model, scaling)
        rope |= found["rope_scaling"]
    if positions.window_theta is not None:
        local = {"rope_type": "default", "rope_theta": positions.window_theta}
        rope = {"full_attention": rope, "sliding_attention": local}
    return {**found, "rope_parameters": rope, "max_position_embeddings": longest}


def _scaling_config(model: LanguageModel, scaling: RopeScaling) -> Json:
    """Return the settings of scaled rotary frequencies."""
    settings: Json = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": None if scaling.kind == "dynamic" else scaling.original_context,
    }
    if scaling.kind == "llama3":
        settings |= {
            name: getattr(scaling, path) for path, name in SCALING_KEYS.items() if name.endswith("freq_factor")
        }
    if scaling.kind == "longrope":
        factors = {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
        settings |= {**factors, "attention_factor": scaling.magnitude}
    if scaling.kind == "yarn":
        settings |= {name: getattr(scaling, path) for path, name in SCALING_KEYS.items() if name == path}
        settings |= {"attention_factor": scaling.magnitude, "mscale_all_dim": _score_weight(model, scaling)}
    return {name: value for name, value in settings.items() if value is not None}


def _score_weight(model: LanguageModel, scaling: RopeScaling) -> float | None:
    """Return the key mscale_all_dim of DeepSeek, which scales the attention scores; None if it is not used."""
    part = model.architecture.attention
    if part.latent is None or part.scale is None or scaling.factor <= 1:
        return None
    magnitude: float = (part.scale * (part.latent.nope_dim + part.latent.rope_dim) ** 0.5) ** 0.5
    return (magnitude - 1) / (0.1 * log(scaling.factor))


def _layer_types_config(model: LanguageModel) -> Json:
    part = model.architecture.attention
    if part.window is None:
        return {}
    every = part.full_every or model.layers + 1
    kinds = ("sliding_attention", "full_attention")
    types = [kinds[(number + 1) % every == 0] for number in range(model.layers)]
    return {"layer_types": types, "sliding_window_pattern": part.full_every or None}


def _no_special_config(model: LanguageModel) -> Json:
    return {}


def _gemma_config(model: LanguageModel) -> Json:
    part = model.architecture.attention
    head_dim = part.head_dim or model.hidden // model.heads
    scalar = head_dim if part.scale is None else round(part.scale**-2, 9)
    return {"query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar}


def _falcon_config(model: LanguageModel) -> Json:
    architecture, kv_heads = model.architecture, model.architecture.attention.kv_heads or model.heads
    is_new = kv_heads not in (1, model.heads) or architecture.residual == "parallel"
    return {
        "new_decoder_architecture": is_new,
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "parallel_attn": architecture.residual != "sequential",
        "num_ln_in_parallel_attn": 2 if architecture.residual == "parallel" else 1,
        "alibi": architecture.positions.kind == "alibi",
    }


def _gpt_neox_config(model: LanguageModel) -> Json:
    return {"use_parallel_residual": model.architecture.residual == "parallel"}


def _deepseek_v2_config(model: LanguageModel) -> Json:
    is_greedy = model.moe is None or model.moe.router.groups == model.moe.router.top_groups
    return {**_deepseek_v3_config(model), "topk_method": "greedy" if is_greedy else "group_limited_greedy"}


def _deepseek_v3_config(model: LanguageModel) -> Json:
    moe = model.moe
    shared = 0 if moe is None else moe.shared_width // moe.expert_width(model.ffn_hidden)
    return {"num_key_value_heads": model.heads, "n_shared_experts": shared}


def _roberta_config(model: LanguageModel) -> Json:
    offset = model.architecture.positions.offset
    return {"pad_token_id": offset - 1} if offset else {}


_SPECIAL: Mapping[str, Callable[[LanguageModel], Json]] = {
    "deepseek_v2": _deepseek_v2_config,
    "deepseek_v3": _deepseek_v3_config,
    "falcon": _falcon_config,
    "gemma2": _gemma_config,
    "gemma3_text": _gemma_config,
    "gpt_neox": _gpt_neox_config,
    "roberta": _roberta_config,
}


# ---- refusals ----


def _nearest_type(model: LanguageModel) -> tuple[str, list[str]]:
    """Return the model type that differs from the model in the fewest keys, and these keys."""
    found = ((config["model_type"], list(model_differences(model, config))) for config in _candidate_configs(model))
    return min(found, key=lambda pair: len(pair[1]), default=("", []))


messages.add_messages(
    hf_no_type="no model type of Hugging Face represents the model; the nearest, {nearest}, differs in {keys:list}",
)
