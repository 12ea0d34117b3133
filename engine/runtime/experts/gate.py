"""The gate: the experts of each token, their slots and their weights.

Scores, softmax and choice are in float32 at least, whatever the precision of the layer. Of equal
probabilities the lower expert wins, so that all processes with the same tokens choose the same.
The ``k`` weights of a token are normalised *before* tokens are dropped, as Tutel and Megatron do: a
dropped choice leaves the other weights unchanged. With ``k = 1`` the weight is the probability itself.

Slots are filled choice by choice, in the order of the tokens inside a choice (GShard,
arXiv:2006.16668): all first choices come before all second ones. A route that finds no slot is dropped. The
same input is always routed the same, also when a layer is recomputed for its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, add_gradient

CapacityRule = Callable[[Tensor], int]
"""Returns the slots of an expert, given the load ``[experts]``: the number of routes to each."""


class Routing(NamedTuple):
    """Slots and weights of all routes.

    Route ``c * S + s`` is choice ``c`` of token ``s``. An empty slot has route ``k * S``; a dropped route has slot
    ``len(route)``.
    """

    weights: Tensor  # [S, k], differentiable
    slot: Tensor  # [k, S] the slot of each route
    route: Tensor  # [slots] the route in each slot, expert by expert
    load: Tensor  # [experts] the routes to each, including dropped ones
    capacity: int  # slots of an expert

    def select_slots(self, slots: Tensor) -> Routing:
        """Return the routing to some of the slots; routes to others count as dropped."""
        position = torch.full((len(self.route) + 1,), len(slots), device=slots.device)
        position[slots] = torch.arange(len(slots), device=slots.device)
        return self._replace(slot=position[self.slot], route=self.route[slots])

    @property
    def token(self) -> Tensor:
        """``[slots]`` the token in each slot; ``S`` where the slot is empty."""
        choices, tokens = self.slot.shape
        return torch.where(self.route < choices * tokens, self.route % tokens, tokens)


class Gate(DeferrableModule):
    """Scores of ``[S, hidden]`` tokens for ``experts``, left uninitialised: the layer draws the weights.

    The load-balancing loss is ``E * sum(me * ce)``, where ``me`` is the mean probability of each expert and ``ce`` its
    fraction of all routes, including those that will be dropped: 1 for equal experts (GShard, arXiv:2006.16668). The
    z-loss is the mean square of ``logsumexp`` (ST-MoE, arXiv:2202.08906). Both are means over the
    gate's tokens. They add nothing to the output; their gradients enter in its backward.
    """

    loss_scale: float = 1.0  # factor of this step's losses before the backward

    def __init__(
        self,
        hidden: int,
        experts: int,
        top_k: int,
        *,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        loss_share: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        """``loss_share`` is this gate's share of the two losses, if the gradients of several gates are summed."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden, dtype=dtype, device=device))
        self.top_k, self.loss_share = top_k, loss_share
        self.aux_loss, self.z_loss = aux_loss, z_loss
        self.extra_loss = torch.zeros(())  # the weighted sum of both losses of the last input, this gate's share of it

    def forward(self, x: Tensor, capacity_rule: CapacityRule, sum_load: Callable[[Tensor], Tensor]) -> Routing:
        """Route the tokens ``x [S, hidden]``.

        ``sum_load`` sums a load over the gates that see other parts of the same tokens.
        """
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = _Scores.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
            probabilities = scores.softmax(-1)
            choice = torch.sort(probabilities.detach(), dim=-1, descending=True, stable=True).indices[:, : self.top_k]
            weights = probabilities.gather(-1, choice)
            if self.top_k > 1:
                weights = weights / weights.sum(-1, keepdim=True)
            load = choice.new_zeros(len(self.weight))  # bincount would make an accelerator wait for the host
            load = load.scatter_add(0, choice.flatten(), torch.ones_like(choice.flatten()))
            if self.aux_loss or self.z_loss:
                extra = self._extra_loss(scores, probabilities, sum_load(load))
                weights = _AttachLoss.apply(weights, extra, self.loss_scale)  # type: ignore[no-untyped-call]
        capacity = capacity_rule(load)
        return Routing(weights, *_assign_slots(choice, load, capacity), load, capacity)

    def _extra_loss(self, scores: Tensor, probabilities: Tensor, load: Tensor) -> Tensor:
        fraction = load.to(scores.dtype) / load.sum()
        balance = len(load) * (probabilities.mean(0) * fraction).sum() * self.loss_share
        squared = scores.logsumexp(-1).square().mean() * self.loss_share
        extra: Tensor = self.aux_loss * balance + self.z_loss * squared
        self.extra_loss = extra.detach()
        return extra


def _assign_slots(choice: Tensor, load: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the slot of each route ``[k, S]`` and the route in each slot, given the ``choice [S, k]`` of experts."""
    expert = choice.t().flatten()
    routes, device = len(expert), expert.device
    by_expert = expert.argsort(stable=True)
    first = load.cumsum(0) - load  # of each expert, in by_expert
    position = torch.empty_like(expert)
    position[by_expert] = torch.arange(routes, device=device) - first[expert[by_expert]]
    slot = torch.where(position < capacity, expert * capacity + position, len(load) * capacity)
    number = torch.arange(capacity, device=device)
    is_occupied = number < load[:, None]
    route = torch.where(is_occupied, by_expert[(first[:, None] + number).clamp(max=routes - 1)], routes)
    return slot.view(choice.shape[1], -1), route.flatten()


class _Scores(Function):
    """``x @ weight.T`` in float32 at least, with a weight gradient that can be deferred.

    In 16 bits, two scores that differ by less than a part in 256 would be equal, and a token would
    visit another expert than its probabilities ask for.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gate: Gate) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gate = gate
        return _at_least_float32(x) @ _at_least_float32(weight).t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        gate: Gate = ctx.gate
        deferred = partial(_add_scores, gate.weight, x, gradient)
        deferred() if gate.gradient_queue is None else gate.gradient_queue.add(deferred)
        return (gradient @ _at_least_float32(gate.weight)).to(x.dtype), None, None


@torch.no_grad()
def _add_scores(weight: nn.Parameter, x: Tensor, gradient: Tensor) -> None:
    add_gradient(weight, gradient.t() @ _at_least_float32(x))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _AttachLoss(Function):
    """Returns a tensor unchanged; its backward also starts the backward of a loss, with gradient ``scale``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.dtype = scale, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, torch.tensor(ctx.scale, dtype=ctx.dtype, device=gradient.device), None
