"""Non-negative least-squares fits of seconds to work, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ITERATIONS = 40
"""Maximum number of iterations of a fit; a few suffice."""
ROUNDING = 1e-9
"""Relative error of seconds below which they count as equal."""
Floats = NDArray[np.float64]


class Line(NamedTuple):
    """Duration of a message in seconds as a line: ``alpha_s + bytes * beta_s_per_byte``."""

    alpha_s: float
    beta_s_per_byte: float
    r2: float


def fit_line(samples: Sequence[tuple[float, float]]) -> Line:
    """Fit a line to samples of (bytes, seconds): :func:`fit_terms` with a constant and the bytes as terms."""
    size, seconds = np.array(samples, float).T
    (alpha, beta), r2 = fit_terms(np.stack([np.ones_like(size), size], axis=1), seconds)
    return Line(alpha, beta, r2)


def fit_terms(columns: Floats, seconds: Floats) -> tuple[list[float], float]:
    """Fit the seconds per unit of each term; return them, and the ``r2`` of the seconds.

    Gauss-Newton minimizes the squares of ``log(seconds / predicted)``. Small sizes, which determine the constants,
    therefore weigh as much as large ones, and a factor of two as much as a factor of one half. No coefficient is
    negative. The ``r2`` is that of the seconds themselves, as papers report it.

    Args:
        columns: [samples, terms] amount of each term.
        seconds: [samples] measured seconds.
    """
    per = _fit_best_subset(columns / seconds[:, None], np.ones_like(seconds))
    for _ in range(MAX_ITERATIONS):
        predicted = columns @ per
        off = np.log(seconds / predicted)
        off /= max(1, 2 * np.abs(off).max())  # damp large steps
        before, per = per, _fit_best_subset(columns / predicted[:, None], 1 + off)
        if np.allclose(before, per, rtol=1e-9, atol=0.0):
            break
    left = float(((seconds - columns @ per) ** 2).sum())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    rounding = len(seconds) * (ROUNDING * float(np.abs(seconds).max(initial=0.0))) ** 2
    if spread > rounding:
        return per.tolist(), 1 - left / spread
    return per.tolist(), 1.0 if left <= rounding else 0.0


def _fit_best_subset(columns: Floats, wanted: Floats) -> Floats:
    """Return the least-squares solution over the best subset of terms with non-negative coefficients.

    All subsets are tried, since there are few terms. Subsets of terms that the samples cannot distinguish are skipped.
    """
    terms = columns.shape[1]
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1.0  # no sample has the term
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
