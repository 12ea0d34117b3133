"""Tensor names in Hugging Face checkpoints by model type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ExpertNames(NamedTuple):
    """Tensor names of the experts of a layer."""

    router: str = "mlp.gate"
    balance: str = "mlp.gate.e_score_correction_bias"
    each: str = "mlp.experts.{}"
    """Prefix of an expert's tensor names; the placeholder is the number of the expert."""
    first: tuple[str, ...] = ("gate_proj", "up_proj")
    second: tuple[str, ...] = ("down_proj",)
    stacked: Mapping[str, str] = {}
    """Names of tensors that contain all experts, by the name of the corresponding weight of one expert."""


class TensorNames(NamedTuple):
    """Tensor names in the checkpoints of a model type."""

    layers: str = "model.layers"
    embedding_token: str = "model.embed_tokens"
    embedding_position: str = ""
    embedding_token_type: str = ""
    embedding_norm: str = ""
    head_transform: str = ""
    head_transform_norm: str = ""
    head_norm: str = "model.norm"
    head_project: str = "lm_head"
    parts: Mapping[str, tuple[str, ...]] = {}
    """Tensor names of a layer that differ from :data:`LAYER_PARTS`."""
    parallel_parts: Mapping[str, tuple[str, ...]] = {}
    """Tensor names of a layer whose attention and MLP take the same input, with one norm each."""
    experts: ExpertNames = ExpertNames()
    transposes: bool = False
    """True if the matrices of layers are stored as [inputs, outputs]."""
    embedding_copy: str = ""
    """Name, in a layer of multi-token prediction, of its copy of the embedding table."""
    head_copy: str = ""
    """Name, in a layer of multi-token prediction, of its copy of the projection to the vocabulary."""
    groups_heads: bool = False
    """True if queries, keys and values are stored together, one group of heads after another."""
    norm_offset: float = 0.0
    """Value that the model adds to the stored scales of norms."""


LAYER_PARTS: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "attention.sinks": ("self_attn.sinks!",),
    "attention.out": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "ffn_in": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn_out": ("mlp.down_proj",),
    "shared_in": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    "shared_out": ("mlp.shared_expert.down_proj",),
    "shared_gate": ("mlp.shared_expert_gate",),
}
"""Tensor names of a layer in Llama and similar models, by part of Meshwave's layer; ``!`` ends a complete name."""
_AFTER = {
    "attention_out_norm": ("post_attention_layernorm",),
    "ffn_out_norm": ("post_feedforward_layernorm",),
}
_GEMMA_NAMES = TensorNames(norm_offset=1.0)
_GEMMA2_NAMES = TensorNames(norm_offset=1.0, parts={**_AFTER, "ffn_norm": ("pre_feedforward_layernorm",)})
_LATENT = {
    "attention.query_down": ("self_attn.q_a_proj",),
    "attention.query_norm": ("self_attn.q_a_layernorm",),
    "attention.query": ("self_attn.q_b_proj",),
    "attention.key_value_down": ("self_attn.kv_a_proj_with_mqa",),
    "attention.key_value_norm": ("self_attn.kv_a_layernorm",),
    "attention.key_value": ("self_attn.kv_b_proj",),
    "shared_in": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    "shared_out": ("mlp.shared_experts.down_proj",),
}
_MIXTRAL_EXPERTS = ExpertNames(
    "block_sparse_moe.gate", each="block_sparse_moe.experts.{}", first=("w1", "w3"), second=("w2",)
)
_GPT_OSS_EXPERTS = ExpertNames(
    "mlp.router",
    stacked={
        "w_in": "mlp.experts.gate_up_proj",
        "b_in": "mlp.experts.gate_up_proj_bias",
        "w_out": "mlp.experts.down_proj",
        "b_out": "mlp.experts.down_proj_bias",
    },
)
_FALCON_NAMES = TensorNames(
    "transformer.h",
    "transformer.word_embeddings",
    head_norm="transformer.ln_f",
    parts={
        "attention.qkv": ("self_attention.query_key_value",),
        "attention.out": ("self_attention.dense",),
        "ffn_in": ("mlp.dense_h_to_4h",),
        "ffn_out": ("mlp.dense_4h_to_h",),
    },
    parallel_parts={"attention_norm": ("ln_attn",), "ffn_norm": ("ln_mlp",)},
    groups_heads=True,
)

_BERT_PARTS = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_out_norm": ("attention.output.LayerNorm",),
    "ffn_in": ("intermediate.dense",),
    "ffn_out": ("output.dense",),
    "ffn_out_norm": ("output.LayerNorm",),
}
TENSOR_NAMES: Mapping[str, TensorNames] = {
    "mixtral": TensorNames(experts=_MIXTRAL_EXPERTS),
    "deepseek_v2": TensorNames(parts=_LATENT),
    "deepseek_v3": TensorNames(
        parts={
            **_LATENT,
            "hidden_norm": ("hnorm",),
            "embedding_norm": ("enorm",),
            "join": ("eh_proj",),
            "last_norm": ("shared_head.norm",),
        },
        embedding_copy="embed_tokens.weight",
        head_copy="shared_head.head.weight",
    ),
    "olmo2": TensorNames(parts=_AFTER),
    "gemma": _GEMMA_NAMES,
    "gemma2": _GEMMA2_NAMES,
    "gemma3_text": _GEMMA2_NAMES,
    "gpt_oss": TensorNames(experts=_GPT_OSS_EXPERTS),
    "phi3": TensorNames(parts={"attention.qkv": ("self_attn.qkv_proj",), "ffn_in": ("mlp.gate_up_proj",)}),
    "phi": TensorNames(
        head_norm="model.final_layernorm",
        parts={"attention.out": ("self_attn.dense",), "ffn_in": ("mlp.fc1",), "ffn_out": ("mlp.fc2",)},
    ),
    "gpt_neox": TensorNames(
        "gpt_neox.layers",
        "gpt_neox.embed_in",
        head_norm="gpt_neox.final_layer_norm",
        head_project="embed_out",
        parts={
            "attention.qkv": ("attention.query_key_value",),
            "attention.out": ("attention.dense",),
            "ffn_in": ("mlp.dense_h_to_4h",),
            "ffn_out": ("mlp.dense_4h_to_h",),
        },
        groups_heads=True,
    ),
    "falcon": _FALCON_NAMES,
    "bloom": _FALCON_NAMES._replace(embedding_norm="transformer.word_embeddings_layernorm"),
    "bert": TensorNames(
        "bert.encoder.layer",
        "bert.embeddings.word_embeddings",
        "bert.embeddings.position_embeddings",
        "bert.embeddings.token_type_embeddings",
        "bert.embeddings.LayerNorm",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        head_project="cls.predictions",
        parts=_BERT_PARTS,
    ),
    "roberta": TensorNames(
        "roberta.encoder.layer",
        "roberta.embeddings.word_embeddings",
        "roberta.embeddings.position_embeddings",
        "roberta.embeddings.token_type_embeddings",
        "roberta.embeddings.LayerNorm",
        "lm_head.dense",
        "lm_head.layer_norm",
        head_project="lm_head",
        parts=_BERT_PARTS,
    ),
    "gpt2": TensorNames(
        "transformer.h",
        "transformer.wte",
        "transformer.wpe",
        head_norm="transformer.ln_f",
        parts={
            "attention_norm": ("ln_1",),
            "attention.qkv": ("attn.c_attn",),
            "attention.out": ("attn.c_proj",),
            "ffn_norm": ("ln_2",),
            "ffn_in": ("mlp.c_fc",),
            "ffn_out": ("mlp.c_proj",),
        },
        transposes=True,
    ),
}
"""Tensor names by model type, if they differ from those of Llama."""
