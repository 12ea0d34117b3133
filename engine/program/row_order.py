"""Sorting of rows by several columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def lexical_order(keys: Sequence[NDArray[Any]] | NDArray[Any]) -> NDArray[np.int64]:
    """Return ``np.lexsort(keys)``, several times as fast if rows with equal last keys are already in order."""
    order = np.argsort(keys[-1], kind="stable")
    ascends, ties = np.zeros(max(0, len(order) - 1), np.bool_), np.ones(max(0, len(order) - 1), np.bool_)
    for key in reversed(keys):
        ordered = key[order]
        before, after = ordered[:-1], ordered[1:]
        ascends |= ties & (before < after)
        ties &= before == after
    return order if (ascends | ties).all() else np.lexsort(tuple(keys))
