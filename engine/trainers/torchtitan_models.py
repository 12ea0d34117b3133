"""Models that torchtitan 0.2 names, by the name and the flavour in its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwave.engine.document.architecture import yarn_magnitude
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.trainers.models import Json, shorten_section, transformer_section

_NO_BIAS = {"qkv_bias": False, "out_bias": False}
_GATED = {"gated": True, "activation": "silu", "bias": False}
_LLAMA3_SCALING = {"kind": "llama3", "factor": 8.0, "original_context": 8192}
_YARN = {"kind": "yarn", "factor": 40.0, "original_context": 4096}


def _model_section(sizes: tuple[int, ...], *, eps: float, **parts: Any) -> Json:
    layers, hidden, heads, ffn, vocab = sizes
    found: Json = {
        "kind": "transformer",
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "ffn": ffn,
        "vocab": vocab,
    }
    return {**found, "sequence": 4096, "mlp": _GATED, "norm": {"kind": "rmsnorm", "eps": eps}, **parts}


def _llama3_section(layers: int, hidden: int, heads: int, ffn: int) -> Json:
    positions = {"kind": "rope", "theta": 500_000.0, "scaling": _LLAMA3_SCALING}
    attention = {**_NO_BIAS, "kv_heads": 8}
    return _model_section((layers, hidden, heads, ffn, 128_256), eps=1e-5, attention=attention, positions=positions)


def _qwen3_section(layers: int, hidden: int, heads: int, ffn: int, *, kv_heads: int = 8, **parts: Any) -> Json:
    positions = {"kind": "rope", "theta": 1_000_000.0}
    attention = {**_NO_BIAS, "kv_heads": kv_heads, "head_dim": 128, "qk_norm": "head"}
    return _model_section(
        (layers, hidden, heads, ffn, 151_936), eps=1e-6, attention=attention, positions=positions, **parts
    )


def _deepseek_section(sizes: tuple[int, ...], q_rank: int | None, magnitude: float, moe: Json) -> Json:
    """Return a DeepSeek model; ``magnitude`` is the square root of the change of the scale of attention scores."""
    attention = {**_NO_BIAS, "latent": {"q_rank": q_rank}, "scale": magnitude**2 * 192**-0.5}
    positions = {"kind": "rope", "scaling": {**_YARN, "attention_factor": 1.0}}
    moe = {"every": 1, "capacity_factor": None, "aux_loss": 0.0, "bias_correction": True, **moe}
    return _model_section(sizes, eps=1e-5, attention=attention, positions=positions, moe=moe)


_QWEN3_EXPERTS = {
    "experts": 128, "top_k": 8, "ffn": 768, "every": 1, "capacity_factor": None, "aux_loss": 0.0, "bias_correction": True,
}  # fmt: skip
FLAVORS = {
    ("llama3", "8B"): _llama3_section(32, 4096, 32, 14_336),
    ("llama3", "70B"): _llama3_section(80, 8192, 64, 28_672),
    ("llama3", "405B"): _llama3_section(126, 16_384, 128, 53_248),
    ("qwen3", "0.6B"): _qwen3_section(28, 1024, 16, 3072, tied_embeddings=True),
    ("qwen3", "1.7B"): _qwen3_section(28, 2048, 16, 6144, tied_embeddings=True),
    ("qwen3", "4B"): _qwen3_section(36, 2560, 32, 9728, tied_embeddings=True),
    ("qwen3", "8B"): _qwen3_section(36, 4096, 32, 12_288),
    ("qwen3", "14B"): _qwen3_section(40, 5120, 40, 17_408),
    ("qwen3", "32B"): _qwen3_section(64, 5120, 64, 25_600),
    ("qwen3", "30B-A3B"): _qwen3_section(48, 2048, 32, 6144, kv_heads=4, moe=_QWEN3_EXPERTS),
    ("deepseek_v3", "16B"): _deepseek_section(
        (27, 2048, 16, 10_944, 102_400),
        None,
        yarn_magnitude(40.0, 0.7),
        {"experts": 64, "top_k": 6, "ffn": 1408, "shared_ffn": 2816, "first_dense": 1, "normalize": False},
    ),
    ("deepseek_v3", "671B"): _deepseek_section(
        (61, 7168, 128, 18_432, 129_280),
        1536,
        yarn_magnitude(40.0),
        {
            "experts": 256, "top_k": 8, "ffn": 2048, "shared_ffn": 2048, "first_dense": 3, "score": "sigmoid",
            "scale": 2.5, "groups": 8, "top_groups": 4,
        },
    ),
}  # fmt: skip
"""Model sections by the name and the flavour of a model, in the sizes of torchtitan's registries."""
CONFIGS = {
    ("llama3", "8B"): "llama3_8b",
    ("llama3", "70B"): "llama3_70b",
    ("llama3", "405B"): "llama3_405b",
    ("qwen3", "0.6B"): "qwen3_0_6b",
    ("qwen3", "1.7B"): "qwen3_1_7b",
    ("qwen3", "14B"): "qwen3_14b",
    ("qwen3", "32B"): "qwen3_32b",
    ("qwen3", "30B-A3B"): "qwen3_30b_a3b",
    ("deepseek_v3", "16B"): "deepseek_v3_16b",
    ("deepseek_v3", "671B"): "deepseek_v3_671b",
}
"""Configuration functions of torchtitan since 0.3.0."""


def find_flavor(model: LanguageModel) -> tuple[str, str] | None:
    """Return the name and the flavour of a model, whatever its sequence length; None if torchtitan does not name it."""
    section = transformer_section(model)
    return next((key for key in FLAVORS if flavor_section(*key, model.sequence) == section), None)


def flavor_section(name: str, flavor: str, sequence: int) -> Json:
    """Return the model section of a flavour."""
    return shorten_section({**FLAVORS[name, flavor], "sequence": sequence})


def flavor_names() -> Iterator[str]:
    """Yield the known flavours as text, such as ``llama3 8B``."""
    return (" ".join(key) for key in FLAVORS)
