"""Learned vector, such as a number per head, whose gradient can be deferred."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, GradientQueue, add_gradient
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard


class ShardedVector(DeferrableModule):
    """Part of a learned vector that this process holds, with uninitialized values; it is sharded over the group."""

    def __init__(self, size: int, group: Group = ALONE) -> None:
        super().__init__()
        own = group.own_range(size)
        self.weight = nn.Parameter(torch.empty(len(own)))
        if group.size > 1:
            self.weight.shard = WeightShard(0, (own,), size)  # type: ignore[attr-defined]

    def forward(self) -> Tensor:
        """Return this process's part of the vector."""
        if self.gradient_queue is None:
            return self.weight
        weight: Tensor = _DeferringVector.apply(self.weight, self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return weight


class _DeferringVector(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, vector: ShardedVector, queue: GradientQueue) -> Tensor:
        ctx.vector, ctx.queue = vector, queue
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.queue.add(partial(add_gradient, ctx.vector.weight, gradient))
        return None, None, None
