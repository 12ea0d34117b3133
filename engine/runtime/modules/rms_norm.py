"""RMS norm whose weight gradient can be deferred (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, GradientQueue, add_gradient
from meshwave.engine.runtime.modules.tensor_parallel import copy_to_group


class RmsNorm(DeferrableModule):
    """RMS norm over the last dim. While gradients are deferred, the scale is a step of its own.

    If each process of a ``group`` norms other rows, such as those of its heads, the gradients of the scale are summed.
    """

    def __init__(self, features: int, eps: float, group: Group = ALONE) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x [..., features]``."""
        if self.gradient_queue is None:
            weight = copy_to_group(self.weight, self.group).to(x.dtype)
            return F.rms_norm(x, self.weight.shape, weight, self.eps)
        normed = F.rms_norm(x, self.weight.shape, None, self.eps)
        scaled: Tensor = _DeferringScale.apply(normed, self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return scaled


class _DeferringScale(Function):
    @staticmethod
    def forward(ctx: Any, normed: Tensor, norm: RmsNorm, queue: GradientQueue) -> Tensor:
        ctx.save_for_backward(normed)
        ctx.norm, ctx.queue = norm, queue
        return normed * norm.weight.to(normed.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (normed,) = ctx.saved_tensors
        ctx.queue.add(partial(_add_scale, ctx.norm, normed, gradient))
        return gradient * ctx.norm.weight.to(gradient.dtype), None, None


def _add_scale(norm: RmsNorm, normed: Tensor, gradient: Tensor) -> None:
    scale_gradient = (gradient * normed).flatten(0, -2).sum(0)
    if norm.group.size > 1:
        dist.all_reduce(scale_gradient, group=norm.group.handle)
    add_gradient(norm.weight, scale_gradient)
