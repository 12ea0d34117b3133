"""Small random images: discs and bars over a gradient."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MOST_FIGURES = 4


def draw_image(channels: int, side: int, chance: Generator) -> Floats:
    """Return a random image ``[channels, side, side]`` with values from -1 to 1: up to four shapes over a gradient."""
    at = (np.arange(side, dtype=np.float32) + 0.5) / side
    down, right = at[:, None], at[None, :]
    tilt, base = chance.uniform(-0.5, 0.5, (2, channels)), chance.uniform(-0.5, 0.5, channels)
    image = base[:, None, None] + tilt[0][:, None, None] * (down - 0.5) + tilt[1][:, None, None] * (right - 0.5)
    for _ in range(int(chance.integers(1, MOST_FIGURES + 1))):
        y, x, height, width = chance.uniform((0.1, 0.1, 0.05, 0.05), (0.9, 0.9, 0.35, 0.35))
        if chance.random() < 0.5:
            inside = ((down - y) / height) ** 2 + ((right - x) / width) ** 2 < 1
        else:
            inside = (abs(down - y) < height) & (abs(right - x) < width)
        image = np.where(inside, chance.uniform(-1, 1, (channels, 1, 1)), image)
    clipped: NDArray[np.float32] = np.clip(image, -1, 1).astype(np.float32)
    return clipped
