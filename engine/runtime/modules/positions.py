"""Positions in attention: rotary embeddings (Su et al., arXiv:2104.09864) and ALiBi (Press et al., arXiv:2108.12409)."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, log, pi

import torch
from torch import Tensor

from meshwave.engine.document.architecture import RopeScaling
from meshwave.engine.runtime.modules.context_share import ContextShare


def apply_rotary_embedding(
    x: Tensor, dims: int, theta: float, scaling: RopeScaling | None = None, share: ContextShare | None = None
) -> Tensor:
    """Rotate the first ``dims`` dimensions of ``x [batch, heads, tokens, head_dim]`` by position.

    The tokens are whole sequences, or with context parallelism a ``share`` of them.
    """
    length = x.shape[2] if share is None else share.resize(x.shape[2]).sequence
    cosines, sines = rotary_cosines_and_sines(length, dims, theta, scaling, x.dtype, x.device)
    if share is not None:
        cosines, sines = share.select_own(cosines, 0), share.select_own(sines, 0)
    turned, rest = x[..., :dims], x[..., dims:]
    first, second = turned.chunk(2, -1)
    turned = turned * cosines + torch.cat((-second, first), -1) * sines
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


@lru_cache(maxsize=16)
def rotary_cosines_and_sines(
    length: int, dims: int, theta: float, scaling: RopeScaling | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines ``[length, dims]`` of rotary positions.

    Dimension ``i`` is rotated with dimension ``i + dims / 2``, as in GPT-NeoX and Llama. With YaRN and LongRoPE, both
    are multiplied by the magnitude of the scaling.
    """
    frequencies = _rope_frequencies(length, dims, theta, scaling)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    magnitude = 1.0 if scaling is None else scaling.magnitude
    return (angles.cos() * magnitude).to(device, dtype), (angles.sin() * magnitude).to(device, dtype)


def _rope_frequencies(length: int, dims: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Return the scaled frequencies ``[dims / 2]`` for a sequence of ``length`` tokens."""
    if scaling is not None and scaling.kind == "dynamic":
        assert scaling.original_context is not None, "checked before a run"
        growth = max(1.0, length / scaling.original_context)
        theta *= (scaling.factor * growth - scaling.factor + 1) ** (dims / (dims - 2))
    frequencies = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    if scaling is None or scaling.kind == "dynamic":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "longrope":
        assert scaling.original_context is not None, "checked before a run"
        is_long = length > scaling.original_context
        factors = scaling.long_factors if is_long else scaling.short_factors
        return frequencies / torch.tensor(factors, dtype=torch.float64)
    kept = _kept_share(frequencies, dims, theta, scaling)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _kept_share(frequencies: Tensor, dims: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Return the share of each frequency that is not divided by the factor: 1 for high ones, 0 for low ones.

    It is linear in the frequency for Llama 3.1 (arXiv:2407.21783), and in the dimension for YaRN (arXiv:2309.00071).
    """
    assert scaling.original_context is not None, "checked before a run"
    if scaling.kind == "llama3":
        turns = scaling.original_context * frequencies / (2 * pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        return ((turns - low) / (high - low)).clamp(0, 1)
    first, last = (
        dims * log(scaling.original_context / (2 * pi * turns)) / (2 * log(theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    dimension = torch.arange(dims // 2, dtype=torch.float64)
    return 1 - ((dimension - first) / max(last - first, 1e-3)).clamp(0, 1)


@lru_cache(maxsize=16)
def alibi_bias(
    queries: range, keys: range, heads: int, own: range, scale: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the bias of the attention scores ``[len(own), queries, keys]`` for the heads ``own`` of ``heads``.

    The slopes are ``2^(-8 i / n)`` for a power of two ``n``; further heads take every second slope of ``2n`` heads.
    """
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * number / power for number in range(1, power + 1)]
    exponents += [4 * number / power for number in range(1, 2 * (heads - power), 2)]
    slopes = scale * torch.tensor([2 ** -exponents[head] for head in own], dtype=torch.float64)
    distance = (torch.tensor(queries)[:, None] - torch.tensor(keys)).abs()
    return (-slopes[:, None, None] * distance).to(device, dtype)
