"""Matrix products of linear layers: in the dtype of the weights, or in fp8 with dynamic scales."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FORWARD_DTYPE, GRADIENT_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
"""Dtypes of activations and weights, and of the gradients of outputs (Micikevicius et al., arXiv:2209.05433)."""
MULTIPLE = 16
"""Sizes over which fp8 kernels sum, and numbers of columns, are multiples of this number."""


Kept = Sequence[Tensor]
"""Input of a linear layer in the form in which it is multiplied, and kept for the gradient of the weight."""


class Products:
    """Products of a linear layer and of its backward, in the dtype of the weights."""

    def keep(self, x: Tensor) -> Kept:
        """Return the input ``x [..., inputs]`` in the form that the products read."""
        return (x,)

    def output(self, kept: Kept, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output ``[..., outputs]``."""
        (x,) = kept
        return F.linear(x, weight, bias)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input, ``[rows, inputs]``, for the gradient of the output ``[rows, outputs]``."""
        return gradient.mm(weight)

    def weight_gradient(self, gradient: Tensor, kept: Kept) -> Tensor:
        """Return the gradient of the weight, ``[outputs, inputs]``."""
        (x,) = kept
        return gradient.t().mm(x.flatten(0, -2))


class Float8Products(Products):
    """Products in fp8, each tensor with one scale that maps its largest value to the largest number of the format.

    The input is kept in fp8, in which the gradient of the weight reads it again.
    """

    def keep(self, x: Tensor) -> Kept:
        """Return an fp8 copy of the input, and the factor that scales it back."""
        return to_float8(x, FORWARD_DTYPE)

    def output(self, kept: Kept, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output; the bias is added in its own dtype."""
        x, scale = kept
        other, other_scale = to_float8(weight, FORWARD_DTYPE)
        out = _scaled_product(x.flatten(0, -2), scale, other, other_scale, weight.dtype).view(*x.shape[:-1], -1)
        return out if bias is None else out + bias

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return multiply_float8(gradient, weight, GRADIENT_DTYPE)

    def weight_gradient(self, gradient: Tensor, kept: Kept) -> Tensor:
        """Return the gradient of the weight; the factors are padded with rows of zeros, which do not change the sum."""
        x, scale = kept
        rows = x.flatten(0, -2).view(torch.uint8)  # torch does not pad fp8; a zero has no bits
        padding = (0, 0, 0, -len(rows) % MULTIPLE)
        one, one_scale = to_float8(F.pad(gradient, padding).t(), GRADIENT_DTYPE)
        columns = F.pad(rows, padding).t().contiguous().view(FORWARD_DTYPE)
        return _scaled_product(one, one_scale, columns, scale, gradient.dtype)


PLAIN, FLOAT8 = Products(), Float8Products()


def multiply_float8(first: Tensor, second: Tensor, first_dtype: torch.dtype) -> Tensor:
    """Return the product of two matrices, the second one in ``float8_e4m3fn``, in the dtype of the first one."""
    one, one_scale = to_float8(first, first_dtype)
    other, other_scale = to_float8(second.t(), FORWARD_DTYPE)
    return _scaled_product(one, one_scale, other, other_scale, first.dtype)


def _scaled_product(one: Tensor, one_scale: Tensor, other: Tensor, other_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the product of an fp8 matrix and the transpose of another one, whose rows kernels read.

    On CPUs, torch multiplies fp8 element by element, which takes a thousand times as long as the same product in ``dtype``.
    """
    if one.device.type == "cpu":
        return (one.to(dtype) @ other.to(dtype).t()) * (one_scale * other_scale)
    return torch._scaled_mm(one, other.t(), scale_a=one_scale, scale_b=other_scale, out_dtype=dtype)


def to_float8(tensor: Tensor, dtype: torch.dtype, dims: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return a contiguous fp8 copy, and the factor that scales it back: one for all numbers along ``dims``, or all dims."""
    largest = torch.finfo(dtype).max
    scale = tensor.abs().amax(dims, keepdim=bool(dims)).float().clamp(min=1e-12) / largest
    return (tensor.float() / scale).clamp(-largest, largest).to(dtype).contiguous(), scale


def multiplies_float8(device: torch.device) -> bool:
    """Return True if a device multiplies matrices in fp8."""
    square = torch.ones(MULTIPLE, MULTIPLE, dtype=torch.bfloat16, device=device)
    try:
        multiply_float8(square, square, GRADIENT_DTYPE)
    except (RuntimeError, ValueError):
        return False
    return True


def fits_float8(weight: Tensor) -> bool:
    """Return True if fp8 kernels support the sizes of a matrix."""
    return not any(size % MULTIPLE for size in weight.shape)


def use_float8(modules: Iterable[torch.nn.Module]) -> tuple[int, int]:
    """Let linear layers multiply in fp8 if the kernels support their sizes; return the numbers of these and of all."""
    linear = [each for each in modules if isinstance(each, torch.nn.Linear)]
    chosen = [each for each in linear if fits_float8(each.weight)]
    for each in chosen:
        each.products = FLOAT8  # type: ignore[assignment]
    return len(chosen), len(linear)
