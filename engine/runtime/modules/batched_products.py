"""Matrix products of several experts with equally many rows each: in the dtype of the weights, or in fp8."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from meshwave.engine.runtime.modules.products import FLOAT8, FORWARD_DTYPE, Kept, to_float8
from meshwave.engine.runtime.modules.recomputation import recompute_products


class BatchedProducts:
    """Products of rows ``[experts, rows, inputs]`` with weights ``[experts, inputs, outputs]``, and of their backward."""

    kept_tensors: ClassVar = 1
    """Number of tensors that are kept of an input."""

    def keep(self, x: Tensor) -> Kept:
        """Return the input in the form that the products read."""
        return (x,)

    def output(self, kept: Kept, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output ``[experts, rows, outputs]``."""
        (x,) = kept
        return x.bmm(weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input for the gradient of the output."""
        return gradient.bmm(weight.mT)

    def weight_gradient(self, gradient: Tensor, kept: Kept) -> Tensor:
        """Return the gradient of the weights."""
        (x,) = kept
        return x.mT.bmm(gradient)


class Float8BatchedProducts(BatchedProducts):
    """Products in fp8, with one scale for the input, one for the weight and one for the gradient of each expert."""

    kept_tensors: ClassVar = 2

    def keep(self, x: Tensor) -> Kept:
        """Return an fp8 copy of the input, and the factors that scale it back, ``[experts]``."""
        rounded, scales = to_float8(x, FORWARD_DTYPE, (1, 2))
        return rounded, scales.flatten()

    def output(self, kept: Kept, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output; the biases are added in their own dtype."""
        parts = zip(*kept, weight, strict=True)
        with recompute_products():  # as batched products in other formats
            out = torch.stack([FLOAT8.output(each, matrix.t(), None) for *each, matrix in parts])
        return out if bias is None else out + bias.unsqueeze(1)

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the input."""
        return torch.stack([FLOAT8.input_gradient(*each) for each in zip(gradient, weight.mT, strict=True)])

    def weight_gradient(self, gradient: Tensor, kept: Kept) -> Tensor:
        """Return the gradient of the weights."""
        parts = zip(gradient, *kept, strict=True)
        return torch.stack([FLOAT8.weight_gradient(each, own).t() for each, *own in parts])


PLAIN_BATCHES, FLOAT8_BATCHES = BatchedProducts(), Float8BatchedProducts()
