"""Keys of Hugging Face configurations by model type, with the corresponding paths in the model section of a design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Key(NamedTuple):
    """Key of a configuration, with alternative names and a default value."""

    names: tuple[str, ...]
    default: Any = None


class ModelType(NamedTuple):
    """Constant settings of a model type, and the keys of its other settings, by path in the model section."""

    constants: Mapping[str, Any]
    keys: Mapping[str, Key] = {}
    required: Mapping[str, tuple[Any, ...]] = {}
    """Keys with the supported values; the first value is the default."""


def _make_key(*names: str, default: Any = None) -> Key:
    return Key(names, default)


SIZES = {
    "layers": _make_key("num_hidden_layers", "n_layer"),
    "hidden": _make_key("hidden_size", "n_embd", "n_embed"),
    "heads": _make_key("num_attention_heads", "n_head"),
    "vocab": _make_key("vocab_size"),
}
"""Keys of the sizes, which every configuration contains."""
_BIAS = {
    "attention.qkv_bias": _make_key("attention_bias", default=False),
    "attention.out_bias": _make_key("attention_bias", default=False),
}
_ROPE = {
    "positions.theta": _make_key("rope_theta", "rotary_emb_base", default=10_000.0),
    "positions.fraction": _make_key("partial_rotary_factor", "rotary_pct", default=1.0),
}
_GQA = {"attention.kv_heads": _make_key("num_key_value_heads"), "attention.head_dim": _make_key("head_dim")}
_GATED = {"mlp.gated": True, "mlp.bias": False}
_FFN = {"ffn": _make_key("intermediate_size")}
_ACTIVATION = {"mlp.activation": _make_key("hidden_act", "activation_function", "hidden_activation", default="silu")}
_RMS = {"norm.kind": "rmsnorm"}
_RMS_KEYS = {"norm.eps": _make_key("rms_norm_eps", default=1e-6)}
_LAYER_NORM_KEYS = {"norm.eps": _make_key("layer_norm_eps", "layer_norm_epsilon", default=1e-5)}
_NO_BIAS = {"attention.qkv_bias": False, "attention.out_bias": False}


def _tied_embedding_keys(default: bool) -> dict[str, Key]:
    return {"tied_embeddings": _make_key("tie_word_embeddings", default=default)}


_LLAMA = ModelType(
    {**_RMS, "positions.kind": "rope", "mlp.gated": True},
    {
        **_BIAS,
        **_ROPE,
        **_GQA,
        **_FFN,
        **_ACTIVATION,
        **_RMS_KEYS,
        **_tied_embedding_keys(False),
        "mlp.bias": _make_key("mlp_bias", default=False),
    },
)
_MISTRAL = ModelType(
    {**_RMS, **_GATED, **_NO_BIAS, "positions.kind": "rope"},
    {
        **_ROPE, **_GQA, **_FFN, **_ACTIVATION, **_RMS_KEYS, **_tied_embedding_keys(False),
        "attention.window": _make_key("sliding_window"),
    },
)  # fmt: skip
_QWEN2 = ModelType(
    {**_RMS, **_GATED, "attention.out_bias": False, "positions.kind": "rope"},
    {
        **_ROPE,
        **_GQA,
        **_FFN,
        **_ACTIVATION,
        **_RMS_KEYS,
        **_tied_embedding_keys(False),
        "attention.qkv_bias": _make_key("qkv_bias", default=True),
    },
    {"use_sliding_window": (False,)},
)
_QWEN3 = ModelType(
    {**_LLAMA.constants, "attention.qk_norm": "head", "mlp.bias": False}, _LLAMA.keys, {"use_sliding_window": (False,)}
)
_GEMMA_KEYS = {**_BIAS, **_ROPE, **_GQA, **_FFN, **_RMS_KEYS, **_tied_embedding_keys(True)}
_GEMMA_KEYS["mlp.activation"] = _make_key("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
_GEMMA = ModelType({**_RMS, **_GATED, "positions.kind": "rope"}, _GEMMA_KEYS)
_GEMMA2 = ModelType(
    {**_GEMMA.constants, "norm.placement": "both", "attention.full_every": 2},
    {
        **_GEMMA_KEYS,
        "attention.window": _make_key("sliding_window", default=4096),
        "attention.soft_cap": _make_key("attn_logit_softcapping", default=50.0),
        "logit_soft_cap": _make_key("final_logit_softcapping", default=30.0),
    },
)
_ROUTED = {
    "moe.top_k": _make_key("num_experts_per_tok"),
    "moe.aux_loss": _make_key("router_aux_loss_coef", "aux_loss_alpha", default=0.0),
}
_FINE = {
    **_ROUTED,
    "moe.experts": _make_key("num_experts", "num_local_experts"),
    "moe.ffn": _make_key("moe_intermediate_size"),
}
_DEEPSEEK = {
    **_BIAS, **_FFN, **_ACTIVATION, **_RMS_KEYS, **_tied_embedding_keys(False), **_ROUTED,
    "positions.theta": _make_key("rope_theta", default=10_000.0),
    "attention.latent.q_rank": _make_key("q_lora_rank"),
    "attention.latent.kv_rank": _make_key("kv_lora_rank"),
    "attention.latent.nope_dim": _make_key("qk_nope_head_dim"),
    "attention.latent.rope_dim": _make_key("qk_rope_head_dim"),
    "attention.latent.value_dim": _make_key("v_head_dim"),
    "moe.experts": _make_key("n_routed_experts"),
    "moe.ffn": _make_key("moe_intermediate_size"),
    "moe.first_dense": _make_key("first_k_dense_replace", default=0),
    "moe.groups": _make_key("n_group", default=1),
    "moe.top_groups": _make_key("topk_group", default=1),
    "moe.scale": _make_key("routed_scaling_factor", default=1.0),
}  # fmt: skip

_BERT = ModelType(
    {
        "objective": "masked", "mask_token": 103, "norm.placement": "post", "embedding_norm": True,
        "head_transform": True, "head_bias": True, "tied_embeddings": True,
    },
    {
        **_FFN,
        "norm.eps": _make_key("layer_norm_eps", default=1e-12),
        "mlp.activation": _make_key("hidden_act", default="gelu"),
        "positions.table": _make_key("max_position_embeddings", default=512),
        "token_types": _make_key("type_vocab_size", default=2),
    },
    {"tie_word_embeddings": (True,), "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)},
)  # fmt: skip
MODEL_TYPES: Mapping[str, ModelType] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": ModelType(
        {**_MISTRAL.constants, "moe.every": 1, "moe.normalize": True},
        {**_MISTRAL.keys, **_ROUTED, "moe.experts": _make_key("num_local_experts")},
    ),
    "qwen2": _QWEN2,
    "qwen2_moe": ModelType(
        {**_QWEN2.constants, "moe.shared_gate": True},
        {
            **_QWEN2.keys, **_FINE,
            "moe.shared_ffn": _make_key("shared_expert_intermediate_size"),
            "moe.every": _make_key("decoder_sparse_step", default=1),
            "moe.normalize": _make_key("norm_topk_prob", default=False),
        },
        {"mlp_only_layers": ([], None), **_QWEN2.required},
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": ModelType(
        _QWEN3.constants,
        {
            **_QWEN3.keys, **_FINE,
            "moe.every": _make_key("decoder_sparse_step", default=1),
            "moe.normalize": _make_key("norm_topk_prob", default=False),
        },
        {"mlp_only_layers": ([], None), **_QWEN3.required},
    ),
    "deepseek_v2": ModelType(
        {**_RMS, **_GATED, "positions.kind": "rope"},
        {**_DEEPSEEK, "moe.every": _make_key("moe_layer_freq", default=1), "moe.normalize": _make_key("norm_topk_prob", default=False)},
        {"scoring_func": ("softmax",), "topk_method": ("group_limited_greedy", "greedy")},
    ),
    "deepseek_v3": ModelType(
        {**_RMS, **_GATED, "positions.kind": "rope", "moe.score": "sigmoid", "moe.bias_correction": True},
        {
            **_DEEPSEEK,
            "moe.every": _make_key("moe_layer_freq", default=1),
            "moe.normalize": _make_key("norm_topk_prob", default=True),
            "mtp_layers": _make_key("num_nextn_predict_layers", default=0),
        },
        {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "rope_interleave": (True,)},
    ),
    "olmo": ModelType(
        {**_GATED, "positions.kind": "rope", "norm.weight": False, "norm.bias": False},
        {**_BIAS, **_ROPE, **_GQA, **_FFN, **_ACTIVATION, **_tied_embedding_keys(False)},
        {"clip_qkv": (None,)},
    ),
    "olmo2": ModelType(
        {**_RMS, **_GATED, "positions.kind": "rope", "norm.placement": "after", "attention.qk_norm": "full"},
        {**_BIAS, **_ROPE, **_GQA, **_FFN, **_ACTIVATION, **_RMS_KEYS, **_tied_embedding_keys(False)},
    ),
    "olmoe": ModelType(
        {**_RMS, **_GATED, "positions.kind": "rope", "attention.qk_norm": "full", "moe.every": 1},
        {
            **_BIAS, **_ROPE, **_GQA, **_FFN, **_ACTIVATION, **_RMS_KEYS, **_tied_embedding_keys(False), **_ROUTED,
            "moe.experts": _make_key("num_experts"),
            "moe.normalize": _make_key("norm_topk_prob", default=False),
        },
        {"clip_qkv": (None,)},
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": ModelType(
        {**_GEMMA2.constants, "attention.qk_norm": "head"},
        {
            **_GEMMA2.keys,
            "attention.full_every": _make_key("sliding_window_pattern", default=6),
            "attention.soft_cap": _make_key("attn_logit_softcapping"),
            "logit_soft_cap": _make_key("final_logit_softcapping"),
            "positions.theta": _make_key("rope_theta", default=1_000_000.0),
            "positions.window_theta": _make_key("rope_local_base_freq", default=10_000.0),
        },
    ),
    "gpt_oss": ModelType(
        {
            **_RMS, "mlp.gated": True, "mlp.bias": True, "mlp.activation": "clamped_swish", "positions.kind": "rope",
            "attention.sinks": True, "attention.full_every": 2, "moe.every": 1, "moe.router_bias": True,
        },
        {
            **_ROPE, **_GQA, **_FFN, **_RMS_KEYS, **_tied_embedding_keys(False), **_ROUTED,
            "attention.qkv_bias": _make_key("attention_bias", default=True),
            "attention.out_bias": _make_key("attention_bias", default=True),
            "attention.window": _make_key("sliding_window", default=128),
            "moe.experts": _make_key("num_local_experts"),
        },
    ),
    "phi": ModelType(
        {"positions.kind": "rope", "residual": "parallel-one-norm", "head_bias": True},
        {
            **_ROPE, **_GQA, **_FFN, **_LAYER_NORM_KEYS, **_tied_embedding_keys(False),
            "positions.fraction": _make_key("partial_rotary_factor", default=0.5),
            "mlp.activation": _make_key("hidden_act", default="gelu_new"),
        },
        {"qk_layernorm": (False,)},
    ),
    "phi3": _MISTRAL,
    "falcon": ModelType(
        {},
        {
            **_LAYER_NORM_KEYS, **_tied_embedding_keys(True), "ffn": _make_key("ffn_hidden_size"),
            "positions.theta": _make_key("rope_theta", default=10_000.0),
            "attention.qkv_bias": _make_key("bias", default=False),
            "attention.out_bias": _make_key("bias", default=False),
            "mlp.bias": _make_key("bias", default=False),
            "mlp.activation": _make_key("activation", default="gelu"),
        },
    ),
    "bloom": ModelType(
        {"positions.kind": "alibi", "embedding_norm": True, "mlp.activation": "gelu_new"},
        {**_LAYER_NORM_KEYS, **_tied_embedding_keys(True)},
        {"apply_residual_connection_post_layernorm": (False,)},
    ),
    "gpt_neox": ModelType(
        {"positions.kind": "rope"},
        {
            **_ROPE, **_FFN, **_LAYER_NORM_KEYS, **_tied_embedding_keys(False),
            "positions.fraction": _make_key("rotary_pct", "partial_rotary_factor", default=0.25),
            "attention.qkv_bias": _make_key("attention_bias", default=True),
            "attention.out_bias": _make_key("attention_bias", default=True),
            "mlp.activation": _make_key("hidden_act", default="gelu"),
        },
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "gpt2": ModelType(
        {"positions.kind": "learned"},
        {
            **_LAYER_NORM_KEYS, **_tied_embedding_keys(True), "ffn": _make_key("n_inner"),
            "mlp.activation": _make_key("activation_function", default="gelu_new"),
            "positions.table": _make_key("n_positions", "max_position_embeddings", default=1024),
        },
        {"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    ),
}  # fmt: skip
"""Supported model types by name."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Activation functions by their name in Hugging Face configurations."""

NO_EFFECT = {
    "chunk_size_feed_forward", "finetuning_task", "is_decoder", "is_encoder_decoder", "output_attentions",
    "output_hidden_states", "prefix", "problem_type", "pruned_heads", "tie_encoder_decoder", "torchscript", "use_bfloat16",
    "_name_or_path", "architectures", "attn_implementation", "auto_map", "bos_token_id", "cache_implementation",
    "decoder_start_token_id", "dtype", "eos_token_id", "gradient_checkpointing", "id2label", "initializer_range",
    "label2id", "max_window_layers", "model_type", "n_ctx", "pad_token_id", "pretraining_tp", "return_dict",
    "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "attn_type",
    "output_router_logits", "ep_size", "seq_aux", "router_jitter_noise", "unk_token_id", "sep_token_id",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "reorder_and_upcast_attn", "slow_but_exact", "bias_dropout_fusion", "masked_softmax_fusion", "scale_attn_weights", "head_dim", "num_key_value_heads", "num_kv_heads", "num_ln_in_parallel_attn",
}  # fmt: skip
"""Keys that affect neither the weights nor their cost, or that follow from the model type."""
