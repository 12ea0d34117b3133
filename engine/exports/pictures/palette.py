"""Colours of actions and meshes, shared by the page and all exported pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import WORDS, Op
from meshwave.engine.program.timeline import Timeline

Theme = Literal["light", "dark"]

# Okabe and Ito's set, which colour-blind readers can distinguish; the dark set is the same, but lighter.
# A transfer has the colour of its tensor. I is light and W is dark, since their hues are alike under deuteranopia.
OPS: Mapping[Theme, Mapping[str, str]] = {
    "light": {
        "F": "#2b75b3",
        "B": "#e69f00",
        "I": "#cc79a7",
        "W": "#0f7156",
        "SEND_F": "#2b75b3",
        "SEND_B": "#b87a00",
        "REDUCE_GRAD": "#c4500c",
        "STEP": "#4d5563",
        "UNSHARD": "#5b3fa6",
        "RESHARD": "#5b3fa6",
    },
    "dark": {
        "F": "#4d9de0",
        "B": "#f0b133",
        "I": "#da8fb8",
        "W": "#1c8f6d",
        "SEND_F": "#7cb9ec",
        "SEND_B": "#f3c566",
        "REDUCE_GRAD": "#ee7f42",
        "STEP": "#a9b1bf",
        "UNSHARD": "#a58cf0",
        "RESHARD": "#a58cf0",
    },
}

# Twelve hues in their order of use, after Paul Tol's sets; rank 12 has the colour of rank 0 again.
MESHES: tuple[str, ...] = (
    "#4477aa", "#ee7733", "#228833", "#aa3377", "#33bbee", "#ccaa22",
    "#cc3311", "#009988", "#7755bb", "#997700", "#ee6699", "#667788",
)  # fmt: skip

# From far below an even load through balanced to far above: colour-blind readers can distinguish blue and
# orange, and both ends stand out more than the middle.
LOADS: Mapping[Theme, tuple[str, ...]] = {
    "light": ("#2c6fad", "#86b4da", "#c9dff0", "#e6e9ee", "#f8d7ab", "#ee9f48", "#c4500c"),
    "dark": ("#58aef5", "#3f7fb5", "#36587a", "#41454f", "#7a5430", "#bf7526", "#f7a13c"),
}
LOAD_BOUNDS = (0.4, 0.65, 0.9, 1.1, 1.5, 2.5)
"""Loads, relative to an even share, at which the next of these colours begins."""

SURFACES: Mapping[Theme, Mapping[str, str]] = {
    "light": {
        "background": "#ffffff",
        "text": "#1c1e23",
        "muted": "#666c78",
        "line": "#e4e6ea",
        "idle": "#f4f3f0",
        "hatch": "#d9d5cd",
        "memory": "#7263c9",
        "warning": "#c02b37",
    },
    "dark": {
        "background": "#16171b",
        "text": "#e8e9ec",
        "muted": "#969ca8",
        "line": "#2c2f36",
        "idle": "#1f2126",
        "hatch": "#383c45",
        "memory": "#8d80de",
        "warning": "#ff7d85",
    },
}

Rgb = tuple[float, float, float]


def rgb(colour: str) -> Rgb:
    """Return the red, green and blue of ``#rrggbb``, each from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix_colours(colour: str, other: str, part: float) -> str:
    """Return ``colour`` mixed with the fraction ``part`` (0 to 1) of ``other``."""
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(rgb(colour), rgb(other), strict=True))


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour as in WCAG 2: 0 for black, 1 for white."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    """Return the contrast ratio of two colours as in WCAG 2, from 1 to 21; text requires 4.5."""
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_colour(block_colour: str) -> str:
    """Return black or white, whichever has more contrast with ``block_colour``; at least 4.5:1."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, block_colour))


def shades(timeline: Timeline) -> NDArray[np.uint8]:
    """Return the shade of each stage on each rank, ``[ranks, stages]``: twice its pass over the ranks, plus 1 if upward.

    A microbatch that moves to higher ranks moves down in the picture; the passes of a rank are numbered in the order in
    which a microbatch reaches them, separately for each direction. A wave thus has shades 0 (down) and 1 (up), its
    second wave 2 and 3, and interleaved chunks 0, 2, 4.
    """
    compute = np.flatnonzero(timeline.is_compute)
    stage, microbatch = timeline.stage[compute], timeline.microbatch[compute]
    if not len(compute):
        return np.zeros((timeline.ranks, 0), np.uint8)
    stages = int(stage.max()) + 1
    routes = np.full((int(microbatch.max()) + 1, stages), -1, np.int32)
    routes[microbatch, stage] = timeline.rank[compute]
    shade = np.zeros((timeline.ranks, stages), np.uint8)
    differs = np.append(True, (routes[1:] != routes[:-1]).any(axis=1))  # nearly all routes of a large step are equal
    for route in np.unique(routes[differs], axis=0):
        _shade_route(shade, route)
    return shade


def _shade_route(shade: NDArray[np.uint8], route: NDArray[np.int32]) -> None:
    step = np.diff(route)
    step = np.where(np.abs(step) == 1, step, 0)  # a jump, as from the last rank to the first, has no direction
    up = np.concatenate(([0], step)) + np.concatenate((step, [0])) < 0
    met: dict[tuple[int, bool], int] = {}
    for stage, (rank, rises) in enumerate(zip(route.tolist(), up.tolist(), strict=True)):
        if rank >= 0:
            passed = met.get((rank, rises), 0)
            met[rank, rises] = passed + 1
            shade[rank, stage] = min(2 * passed + rises, 255)


def tints(shade: NDArray[np.uint8]) -> list[float]:
    """Return the fraction of white in each shade up to the highest, so that the shades of a picture are distinct."""
    highest = int(shade.max(initial=0))
    passes = highest // 2 + 1
    rises = bool((shade & 1).any())
    spread = (0.24 if rises else 0.5) / max(passes - 1, 1)
    return [0.36 * (number & 1) + spread * (number >> 1) for number in range(2 * passes)]


def block_colour(op: Op, tint: float = 0.0, theme: Theme = "light") -> str:
    """Return the colour of a block as ``#rrggbb``."""
    return mix_colours(OPS[theme][op.name], "#ffffff", tint)


def as_data() -> dict[str, Any]:
    """Return all colours as JSON data for the page."""
    return {
        "ops": {theme: dict(colours) for theme, colours in OPS.items()},
        "surfaces": {theme: dict(colours) for theme, colours in SURFACES.items()},
        "meshes": list(MESHES),
        "words": dict(WORDS),
        "names": [op.name for op in Op],
    }
