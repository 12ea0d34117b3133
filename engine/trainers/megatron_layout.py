"""Division of layers into pipeline stages in Megatron-LM: layout strings, and patterns of layers with experts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

LONGEST = 20_000  # characters of an expanded layout or layers of an expanded pattern
KNOWN = re.compile(r"[EtmL|]*")


def write_layout(layers: Sequence[int], mtp_layers: int) -> str:
    """Return the layout of stages with these numbers of layers, such as ``Et*3|t*4|t*3mL``.

    Multi-token prediction has the last ``mtp_layers`` layers of the last stage.
    """
    parts = [_repeat_notation("t", count) for count in [*layers[:-1], layers[-1] - mtp_layers]]
    return "E" + "|".join(parts) + _repeat_notation("m", mtp_layers) + "L"


def _repeat_notation(letter: str, times: int) -> str:
    return letter * times if times < 2 else f"{letter}*{times}"


def read_layout(layout: str) -> list[str] | None:
    """Return the layers of each stage of a layout as letters, such as ``Ettt``; None if the layout is invalid.

    E is the embedding, t a layer, m a layer of multi-token prediction, and L the loss. ``x*3`` and ``(tt|)*3`` repeat.
    """
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"([EtmL|])\*(\d+)"):
        if sum(len(part) * int(times) for part, times in re.findall(pattern, text)) > LONGEST:
            return None
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    return text.split("|") if KNOWN.fullmatch(text) else None


def write_pattern(blocks: Sequence[int], layers: int) -> str:
    """Return a list expression with 1 for each layer in ``blocks`` and 0 for the others, such as ``[0]*3+[1]*58``."""
    chosen = set(blocks)
    flags = [int(layer in chosen) for layer in range(layers)]
    every = next((n for n in range(1, layers + 1) if layers % n == 0 and flags == flags[:n] * (layers // n)), layers)
    runs = "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags[:every]))
    return runs if every == layers else f"({runs})*{layers // every}"


def read_pattern(text: str, layers: int) -> list[int] | None:
    """Return the layers that a pattern chooses; None if the pattern is invalid or of another length.

    A number n chooses every n-th layer, starting with the first. A list expression contains 1 for each chosen layer.
    """
    if text.isdecimal() and int(text) > 0:
        return list(range(0, layers, int(text)))
    flat = text.replace(" ", "")
    while match := re.search(r"\(([^()]*)\)(?:\*(\d+))?|\[([01,]*)\]\*(\d+)", flat):
        inner = f"[{match[3]}]" if match[1] is None else match[1]
        times = int(match[2] or match[4] or 1)
        if len(flat) + len(inner) * times > LONGEST:
            return None
        flat = flat[: match.start()] + "+".join([inner] * times) + flat[match.end() :]
    flags = flat.replace("]+[", ",")
    if not re.fullmatch(r"\[[01](,[01])*\]", flags) or flags.count(",") + 1 != layers:
        return None
    return [layer for layer, flag in enumerate(flags[1:-1].split(",")) if flag == "1"]
