"""Activation functions of feed-forward blocks and their gradients, for experts with an explicit backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwave.engine.document.architecture import Mlp

CLAMP_LIMIT, CLAMP_SLOPE = 7.0, 1.702
"""Limit of the inputs of clamped_swish, and factor inside its sigmoid, as in gpt-oss."""

aten = torch.ops.aten


class Activation(NamedTuple):
    """An activation function of a feed-forward block, and its gradient."""

    apply: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    """Returns the gradient of the input, given the gradient of the output and the input."""


def make_activation(mlp: Mlp) -> Activation:
    """Return the activation between the matrices of a feed-forward block.

    A gated block applies the function to the first half of the inner columns and multiplies the result by the second
    half (Shazeer, arXiv:2002.05202).
    """
    activation = ACTIVATIONS[mlp.activation]
    if not mlp.gated:
        return activation
    limit = CLAMP_LIMIT if mlp.activation == "clamped_swish" else None
    return Activation(partial(_apply_gate, activation, limit), partial(_gate_gradient, activation, limit))


def _apply_gate(activation: Activation, limit: float | None, inner: Tensor) -> Tensor:
    gate, linear = inner.chunk(2, -1)
    return activation.apply(gate) * _linear_factor(linear, limit)


def _gate_gradient(activation: Activation, limit: float | None, gradient: Tensor, inner: Tensor) -> Tensor:
    gate, linear = inner.chunk(2, -1)
    linear_gradient = gradient * activation.apply(gate)
    if limit is not None:
        linear_gradient = linear_gradient * (linear.abs() <= limit)
    gate_gradient = activation.gradient(gradient * _linear_factor(linear, limit), gate)
    return torch.cat((gate_gradient, linear_gradient), -1)


def _linear_factor(linear: Tensor, limit: float | None) -> Tensor:
    """Return the factor from the second half of a gated block: clamped and increased by 1 for gpt-oss, else unchanged."""
    return linear if limit is None else linear.clamp(-limit, limit) + 1


def _clamped_swish(x: Tensor) -> Tensor:
    x = x.clamp(max=CLAMP_LIMIT)
    return x * torch.sigmoid(CLAMP_SLOPE * x)


def _clamped_swish_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    share = torch.sigmoid(CLAMP_SLOPE * x)
    return gradient * (x <= CLAMP_LIMIT) * share * (1 + CLAMP_SLOPE * x * (1 - share))


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(F.gelu, aten.gelu_backward.default),
    "gelu_tanh": Activation(
        partial(F.gelu, approximate="tanh"), partial(aten.gelu_backward.default, approximate="tanh")
    ),
    "silu": Activation(F.silu, aten.silu_backward.default),
    "clamped_swish": Activation(_clamped_swish, _clamped_swish_gradient),
    "relu": Activation(F.relu, lambda gradient, x: gradient * (x > 0)),
    "relu2": Activation(lambda x: F.relu(x).square(), lambda gradient, x: 2 * gradient * F.relu(x)),
}
"""Activations by their names in the document."""
