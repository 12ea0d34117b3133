"""Labels and values of the form: formatted as text, and parsed from text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from meshwave.designer.forms.schema import Kind
from meshwave.engine.amounts import parse_amount
from meshwave.engine.findings import Refusal
from meshwave.engine.imports.stage_times import read_stage_costs
from meshwave.engine.units import KEY_UNITS, quantity

NONE = "-"  # an empty line of a field of rows

_SPELLINGS = {
    "1f1b": "1F1B", "adamw": "AdamW", "alibi": "ALiBi", "aux": "auxiliary", "bert": "BERT", "cp": "CP",
    "cuda": "CUDA", "cudnn": "cuDNN", "flash_2": "FlashAttention-2", "flash_3": "FlashAttention-3",
    "deepspeed": "DeepSpeed", "degree": "chunks", "dfs": "DFS", "dp": "DP", "ep": "EP", "eps": "epsilon", "esp": "ESP", "eval": "evaluation",
    "eval_every": "evaluation interval", "every": "every n-th block", "ffn": "FFN width", "first_dense": "initial dense blocks",
    "full_every": "full attention every n-th layer", "gelu": "GELU", "gpt": "GPT", "inter_node": "link between nodes",
    "intra_node": "link inside a node", "kv": "KV", "layernorm": "LayerNorm", "longrope": "LongRoPE", "lr": "learning rate",
    "micro_batch_size": "microbatch size", "min": "minimum", "mlp": "MLP", "moe": "MoE", "mtp": "MTP", "nics": "NICs",
    "nope": "NoPE", "out": "output", "ppmoe": "PPMoE", "qk": "QK", "qkv": "QKV", "relu": "ReLU", "rmsnorm": "RMSNorm", "rope": "RoPE", "sgd": "SGD",
    "silu": "SiLU", "tp": "TP", "u-net": "U-Net", "u-transformer": "U-ViT", "vocab": "vocabulary", "warmup": "warm-up",
    "yarn": "YaRN",
}  # fmt: skip


def label_and_unit(name: str) -> tuple[str, str]:
    """Return the label and the unit of a key: "Latency" and "s" for ``latency_s``."""
    for ending, unit in KEY_UNITS.items():
        if name.endswith(ending):
            return key_label(name.removesuffix(ending) if ending.startswith("_") else name), unit
    return key_label(name), ""


def key_label(name: str) -> str:
    """Return a key as a label: "NICs per node" for ``nics_per_node``."""
    words = [name] if name in _SPELLINGS else name.split("_")
    return capitalize_word(" ".join(_SPELLINGS.get(word, word) for word in words))


def capitalize_word(text: str) -> str:
    """Return a text with a capital first letter, and abbreviations such as ``moe`` in their usual spelling."""
    text = _SPELLINGS.get(text, text)
    return text if any(letter.isdigit() for letter in text) else text[:1].upper() + text[1:]


def lower_label(label: str) -> str:
    """Return a label in lower case, except for abbreviations and names."""
    words = label.split()
    return " ".join(word if word in _SPELLINGS.values() or word.isupper() else word.lower() for word in words)


def format_number(value: float) -> str:
    """Format a number for an input: 80e9, 5e-6, 0.0003."""
    size = abs(value)
    if isinstance(value, int) or not size:
        return f"{value:g}" if isinstance(value, float) else str(value)
    power = 3 * math.floor(math.log10(size) / 3) if size >= 1e5 else 0
    text = f"{value / 10.0**power:.12g}" + (f"e{power}" if power else "")
    text = re.sub(r"e-0*(\d)", r"e-\1", text)
    return text if float(text) == value else repr(value)


def input_text(kind: Kind, value: Any, unit: str = "") -> str:
    """Return the text of a value in its input, with its unit."""
    if value is None or kind in ("choice", "switch"):
        return ""
    if unit:
        return _exact_amount(float(value), unit)
    if kind in ("integer", "number"):
        return value if isinstance(value, str) else format_number(value)
    if kind in ("list", "numbers"):
        return value if isinstance(value, str) else ", ".join(map(format_number, value))
    if kind in ("lines", "rows"):
        return "\n".join(" ".join(map(str, line)) or NONE for line in value)
    if kind == "costs":
        rows = zip(*value.values(), strict=True)
        lines = [("stage", *value), *((stage, *map(format_number, row)) for stage, row in enumerate(rows))]
        return "\n".join("\t".join(map(str, line)) for line in lines)
    return str(value)


def _exact_amount(value: float, unit: str) -> str:
    """Return an amount with its unit, and with an SI prefix if the prefix loses no precision."""
    text = quantity(value, unit, digits=12)
    return text if parse_amount(text, unit) == value else f"{format_number(value)} {unit}"


def describe_quantity(value: Any, unit: str) -> str:
    """Return a number with its unit and a prefix; empty without a unit."""
    return quantity(float(value), unit) if unit and isinstance(value, (int, float)) else ""


# ---- parsing ----


def _parse_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _number_refusal(text) from None
    if not math.isfinite(value):
        raise Refusal("number_too_large")
    return value


def _number_refusal(text: str) -> Refusal:
    if not text:
        return Refusal("missing_number")
    scaled = re.fullmatch(r"([\d.]+)\s*([kMGTP])i?\s*[A-Za-z/]*", text)
    if scaled and scaled[1].count(".") < 2 and scaled[1] != ".":
        power = 3 * ("kMGTP".index(scaled[2]) + 1)
        return Refusal("number_with_prefix", {"number": f"{scaled[1]}e{power}"})
    return Refusal("not_a_number", {"text": text})


def _parse_integer(text: str) -> int:
    exact = re.fullmatch(r"[+-]?\d{1,20}", text)  # a float is not exact above 2**53
    value = int(text) if exact else _parse_number(text)
    if value != int(value):
        raise Refusal("fractional_number", {"text": text, "below": math.floor(value), "above": math.ceil(value)})
    if abs(value) >= 2**63:
        raise Refusal("number_too_large")
    return int(value)


def _parse_list(text: str) -> list[int]:
    return [_parse_integer(word) for word in re.split(r"[\s,;]+", text) if word]


def _parse_numbers(text: str) -> list[float]:
    return [_parse_number(word) for word in re.split(r"[\s,;]+", text) if word]


def _parse_rows(text: str) -> list[list[int]]:
    return [_parse_list("" if line.strip() == NONE else line) for line in text.splitlines() if line.strip()]


def _parse_lines(text: str) -> list[list[str]]:
    return [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _parse_integer, "number": _parse_number, "text": str, "list": _parse_list, "numbers": _parse_numbers,
    "lines": _parse_lines, "rows": _parse_rows, "costs": read_stage_costs,
}  # fmt: skip
