"""Rotary position embeddings (Su et al., arXiv:2104.09864)."""

from __future__ import annotations

from functools import lru_cache
from math import pi

import torch
from torch import Tensor

from meshwave.engine.document.architecture import RopeScaling


def apply_rotary_embedding(x: Tensor, dims: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Rotate the first ``dims`` dimensions of ``x [batch, heads, sequence, head_dim]`` by position."""
    cosines, sines = rotary_cosines_and_sines(x.shape[2], dims, theta, scaling, x.dtype, x.device)
    turned, rest = x[..., :dims], x[..., dims:]
    first, second = turned.chunk(2, -1)
    turned = turned * cosines + torch.cat((-second, first), -1) * sines
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


@lru_cache(maxsize=16)
def rotary_cosines_and_sines(
    length: int, dims: int, theta: float, scaling: RopeScaling | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines ``[length, dims]`` of rotary positions.

    Dimension ``i`` is rotated with dimension ``i + dims / 2``, as in GPT-NeoX and Llama.
    """
    frequencies = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    if scaling is not None:
        frequencies = _scale(frequencies, scaling)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def _scale(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide frequencies by the factor: all of them, or only low ones as in Llama 3.1 (arXiv:2407.21783)."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    assert scaling.kind == "llama3" and scaling.original_context is not None, "checked before a run"
    turns = scaling.original_context * frequencies / (2 * pi)  # over the context length of pretraining
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0 for wavelengths beyond the context
    return frequencies * (kept + (1 - kept) / scaling.factor)
