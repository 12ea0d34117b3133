"""Values of quantized weights in checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwave.engine.hugging_face.quantization import SCALED_BLOCK

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of 4-bit floating-point numbers by their lowest three bits; the highest bit is the sign."""
EXPONENT_BIAS = 127


def dequantize_fp8(tensor: Tensor, scales: Tensor) -> Tensor:
    """Return a matrix in float32, whose blocks are multiplied by ``scales``."""
    for dim, size in enumerate(tensor.shape):
        scales = scales.repeat_interleave(SCALED_BLOCK, dim).narrow(dim, 0, size)
    return tensor.float() * scales.float()


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return a matrix ``[inputs, outputs]`` in float32.

    Args:
        blocks: [outputs, groups, 16] bytes with two numbers each, of which the first is in the lower four bits.
        scales: [outputs, groups] biased exponents, by whose powers of two the groups are multiplied.
    """
    values = torch.tensor([*E2M1_VALUES, *(-each for each in E2M1_VALUES)])
    numbers = torch.stack([blocks & 0xF, blocks >> 4], -1).flatten(-2).int()
    exponents = scales.int() - EXPONENT_BIAS
    return torch.ldexp(values[numbers], exponents.unsqueeze(-1)).flatten(-2).t()
