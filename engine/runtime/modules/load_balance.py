"""Router biases that balance the load of experts, updated from the load of a step instead of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mark_balance_bias(bias: nn.Parameter, rate: float) -> nn.Parameter:
    """Mark a parameter as a bias per expert whose gradient holds the load of the step, and return it."""
    bias.balance_rate = rate  # type: ignore[attr-defined]
    return bias


def is_balance_bias(parameter: Tensor) -> bool:
    """Return True if a parameter is a bias that balances the load."""
    return hasattr(parameter, "balance_rate")


@torch.no_grad()
def update_balance_bias(bias: nn.Parameter, load: Tensor) -> None:
    """Raise the bias of experts with less than the mean load, and lower that of the others (arXiv:2408.15664, alg. 1)."""
    load = load.round()  # sums of fractions per process, rounded to whole counts
    bias.add_((load.mean() - load).sign(), alpha=bias.balance_rate)  # type: ignore[attr-defined]
