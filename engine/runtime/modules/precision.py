"""Precision of sums, logarithms and norms."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or in its own dtype if that is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
