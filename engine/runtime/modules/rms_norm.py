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
from meshwave.engine.runtime.modules.precision import at_least_float32
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard


class RmsNorm(DeferrableModule):
    """RMS norm over the last dim in float32 or higher precision. It saves its input and one number per row.

    If the processes of a ``group`` normalize different rows, such as those of their own heads, the weight gradients are
    summed over the group.
    """

    def __init__(self, features: int, eps: float, group: Group = ALONE) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps, self.group = eps, group

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x [..., features]``."""
        normed: Tensor = _RmsNorm.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return normed

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of each row ``[..., 1]``."""
        return x.mean(-1, keepdim=True)

    def weight_gradient(self, x: Tensor, scale: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the weight, given the input, the factor of each row and the gradient of the output."""
        found = (at_least_float32(gradient) * (at_least_float32(x) * scale)).flatten(0, -2).sum(0)
        if self.group.size > 1:
            dist.all_reduce(found, group=self.group.handle)
        return found


class ShardedRmsNorm(RmsNorm):
    """RMS norm over features of which each process of a group has a shard."""

    def __init__(self, features: int, eps: float, group: Group = ALONE) -> None:
        own = group.own_range(features)
        super().__init__(len(own), eps)
        self.features, self.shards = features, group
        if group.size > 1:
            self.weight.shard = WeightShard(0, (own,), features)  # type: ignore[attr-defined]

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of each row ``[..., 1]`` over the shards."""
        total = x.sum(-1, keepdim=True)
        if self.shards.size > 1:
            dist.all_reduce(total, group=self.shards.handle)
        return total / self.features


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, norm: RmsNorm) -> Tensor:
        wide = at_least_float32(x)
        scale = torch.rsqrt(norm.mean(wide.square()) + norm.eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.norm, ctx.queue = norm, norm.gradient_queue
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        norm: RmsNorm = ctx.norm
        weight_gradient = None
        if ctx.queue is None:
            weight_gradient = norm.weight_gradient(x, scale, gradient).to(weight.dtype)
        else:
            ctx.queue.add(partial(_add_weight_gradient, norm, x, scale, gradient))
        normed, inner = at_least_float32(x) * scale, at_least_float32(gradient) * weight
        input_gradient = scale * (inner - normed * norm.mean(inner * normed))
        return input_gradient.to(x.dtype), weight_gradient, None


def _add_weight_gradient(norm: RmsNorm, x: Tensor, scale: Tensor, gradient: Tensor) -> None:
    add_gradient(norm.weight, norm.weight_gradient(x, scale, gradient))
