"""The words of a form, and its values as a person reads and types them: to text, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from meshwave.designer.forms.schema import Kind
from meshwave.engine.errors import InputError
from meshwave.engine.units import quantity

NONE = "-"  # a line of a field of rows that holds nothing

_UNITS = (("_s", "s", 2), ("_bytes", "B", 6), ("bandwidth", "B/s", 0), ("_flops", "FLOP/s", 6))
_SPELLINGS = {
    "1f1b": "1F1B", "adamw": "AdamW", "bert": "BERT", "degree": "chunks", "ep": "EP", "esp": "ESP",
    "every": "every n-th block", "ffn": "FFN width", "gpt": "GPT", "lr": "learning rate", "moe": "MoE",
    "nics": "NICs", "sgd": "SGD", "u-net": "U-Net", "u-transformer": "U-ViT", "vocab": "vocabulary",
}  # fmt: skip


def named(name: str) -> tuple[str, str]:
    """``latency_s`` is "Latency" in s."""
    for ending, unit, letters in _UNITS:
        if name.endswith(ending):
            return titled(name[: len(name) - letters]), unit
    return titled(name), ""


def titled(name: str) -> str:
    """``micro_batch_size`` as a label: Micro batch size."""
    return word(" ".join(_SPELLINGS.get(word, word) for word in name.split("_")))


def word(text: str) -> str:
    text = _SPELLINGS.get(text, text)
    return text if any(letter.isdigit() for letter in text) else text[:1].upper() + text[1:]


def inner(label: str) -> str:
    """A label inside a sentence."""
    words = label.split()
    return " ".join(word if word in _SPELLINGS.values() or word.isupper() else word.lower() for word in words)


def plain(value: float) -> str:
    """A number as a person types it: 80e9, 5e-6, 0.0003."""
    size = abs(value)
    if isinstance(value, int) or not size:
        return f"{value:g}" if isinstance(value, float) else str(value)
    power = 3 * math.floor(math.log10(size) / 3) if size >= 1e5 else 0
    text = f"{value / 10.0**power:.12g}" + (f"e{power}" if power else "")
    text = re.sub(r"e-0*(\d)", r"e-\1", text)
    return text if float(text) == value else repr(value)


def as_text(kind: Kind, value: Any) -> str:
    """A value as it stands in its input."""
    if value is None or kind in ("choice", "switch"):
        return ""
    if kind in ("integer", "number"):
        return plain(value)
    if kind in ("list", "numbers"):
        return value if isinstance(value, str) else ", ".join(map(plain, value))
    if kind in ("lines", "rows"):
        return "\n".join(" ".join(map(str, line)) or NONE for line in value)
    return str(value)


def humanised(value: Any, unit: str) -> str:
    return quantity(float(value), unit) if unit and isinstance(value, (int, float)) else ""


# ---- and back ----

_TOO_LARGE = "this number is too large; write one such as 80e9"


def _read_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(_not_a_number(text)) from None
    if not math.isfinite(value):
        raise InputError(_TOO_LARGE)
    return value


def _not_a_number(text: str) -> str:
    if not text:
        return "this needs a number"
    scaled = re.fullmatch(r"([\d.]+)\s*([kMGTP])i?\s*[A-Za-z/]*", text)
    if scaled and scaled[1].count(".") < 2 and scaled[1] != ".":
        power = 3 * ("kMGTP".index(scaled[2]) + 1)
        return f"write it as a plain number: {scaled[1]}e{power}"
    return f"{text!r} is not a number; write one such as 0.5 or 80e9"


def _read_integer(text: str) -> int:
    exact = re.fullmatch(r"[+-]?\d{1,20}", text)  # also above 2**53
    value = int(text) if exact else _read_number(text)
    if value != int(value):
        raise InputError(f"{text} is not a whole number; use {math.floor(value)} or {math.ceil(value)}")
    if abs(value) >= 2**63:
        raise InputError(_TOO_LARGE)
    return int(value)


def _read_list(text: str) -> list[int]:
    return [_read_integer(word) for word in re.split(r"[\s,;]+", text) if word]


def _read_numbers(text: str) -> list[float]:
    return [_read_number(word) for word in re.split(r"[\s,;]+", text) if word]


def _read_rows(text: str) -> list[list[int]]:
    return [_read_list("" if line.strip() == NONE else line) for line in text.splitlines() if line.strip()]


def _read_lines(text: str) -> list[list[str]]:
    return [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]


READERS: Mapping[str, Callable[[str], Any]] = {
    "integer": _read_integer, "number": _read_number, "text": str, "list": _read_list, "numbers": _read_numbers,
    "lines": _read_lines, "rows": _read_rows,
}  # fmt: skip
