"""Lines through what was measured: least squares on a scale of ratios, with nothing negative."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS = 40
"""Of a fit at most; a handful is enough."""
Floats = NDArray[np.float64]


class Line(NamedTuple):
    alpha_s: float
    beta_s_per_byte: float
    r2: float


def fit_line(samples: Sequence[tuple[float, float]]) -> Line:
    """The line through (bytes, seconds): :func:`fit` with a constant and the bytes."""
    size, seconds = np.array(samples, float).T
    (alpha, beta), r2 = fit(np.stack([np.ones_like(size), size], axis=1), seconds)
    return Line(alpha, beta, r2)


def fit(columns: Floats, seconds: Floats) -> tuple[list[float], float]:
    """What a unit of each of ``columns [samples, terms]`` takes such that their sums come near ``seconds [samples]``.

    The squares are those of ``log(seconds / predicted)``, so that small sizes, which decide the constants,
    count as much as large ones, and twice as long as much as half as long (Gauss-Newton). Nothing is
    negative: no work takes time off another. Also returns the ``r2`` of the seconds themselves, as papers give it.
    """
    per = _non_negative(columns / seconds[:, None], np.ones_like(seconds))
    for _ in range(STEPS):
        predicted = columns @ per
        off = np.log(seconds / predicted)
        off /= max(1, 2 * np.abs(off).max())  # a part of the way where it is far
        before, per = per, _non_negative(columns / predicted[:, None], 1 + off)
        if np.allclose(before, per, rtol=1e-9, atol=0.0):
            break
    left = float(((seconds - columns @ per) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return per.tolist(), 1 - left / spread if spread else 1.0


def _non_negative(columns: Floats, wanted: Floats) -> Floats:
    """Least squares with the best choice of terms of which none comes out negative.

    There are a handful of terms, so that all choices are tried; those that the samples cannot tell apart are
    left to the choices without one of them.
    """
    terms = columns.shape[1]
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0  # a term that no sample has
    scaled = columns / scale
    best, least = np.zeros(terms), float("inf")
    for chosen in (each for count in range(1, terms + 1) for each in combinations(range(terms), count)):
        part = scaled[:, chosen]
        found, _, rank, _ = np.linalg.lstsq(part, wanted, rcond=1e-10)
        if rank < len(chosen) or (found < 0).any():
            continue
        left = float(((part @ found - wanted) ** 2).sum())
        if left < least:
            best, least = np.zeros(terms), left
            best[list(chosen)] = found
    return np.asarray(best / scale)
