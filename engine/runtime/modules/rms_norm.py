"""RMS norm whose weight gradient can be deferred (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, add_gradient


class RmsNorm(DeferrableModule):
    """RMS norm over the last dim in float32 or higher precision. It saves its input and one number per row.

    If the processes of a ``group`` normalise different rows, such as those of their own heads, the weight gradients are
    summed over the group.
    """

    def __init__(self, features: int, eps: float, group: Group = ALONE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps, self.group = eps, group

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x [..., features]``."""
        deferring = None if self.gradient_queue is None else self
        normed: Tensor = _RmsNorm.apply(x, self.weight, self.eps, self.group, deferring)  # type: ignore[no-untyped-call]
        return normed


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, group: Group, deferring: RmsNorm | None) -> Tensor:
        wide = _at_least_float32(x)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.group, ctx.deferring = group, deferring
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x, weight, scale = ctx.saved_tensors
        weight_gradient = None
        if ctx.deferring is None:
            weight_gradient = _weight_gradient(x, scale, gradient, ctx.group).to(weight.dtype)
        else:
            ctx.deferring.gradient_queue.add(partial(_add_weight_gradient, ctx.deferring, x, scale, gradient))
        normed, inner = _at_least_float32(x) * scale, _at_least_float32(gradient) * weight
        input_gradient = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return input_gradient.to(x.dtype), weight_gradient, None, None, None


def _add_weight_gradient(norm: RmsNorm, x: Tensor, scale: Tensor, gradient: Tensor) -> None:
    add_gradient(norm.weight, _weight_gradient(x, scale, gradient, norm.group))


def _weight_gradient(x: Tensor, scale: Tensor, gradient: Tensor, group: Group) -> Tensor:
    found = (_at_least_float32(gradient) * (_at_least_float32(x) * scale)).flatten(0, -2).sum(0)
    if group.size > 1:
        dist.all_reduce(found, group=group.handle)
    return found


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
