"""Biases that balance the load of experts: they change with the load of a step, and not with a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mark_balance(bias: nn.Parameter, rate: float) -> nn.Parameter:
    """Mark a bias per expert, whose gradient is the load of the step, and return it."""
    bias.balance_rate = rate  # type: ignore[attr-defined]
    return bias


def is_balance(parameter: Tensor) -> bool:
    """Return whether a parameter is a bias that balances the load."""
    return hasattr(parameter, "balance_rate")


@torch.no_grad()
def update_balance(bias: nn.Parameter, load: Tensor) -> None:
    """Raise the bias of experts with less than the mean load, and lower that of the others (arXiv:2408.15664, alg. 1)."""
    load = load.round()  # whole numbers, of which processes have summed shares
    bias.add_((load.mean() - load).sign(), alpha=bias.balance_rate)  # type: ignore[attr-defined]
