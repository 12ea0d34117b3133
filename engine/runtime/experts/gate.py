"""Gate of an expert layer: chooses the experts, slots and weights of each token.

Scores, their softmax or sigmoid, and the choice are in float32 or higher precision, whatever the precision of the
layer. If probabilities are equal, the lower expert number wins, so that all processes with the same tokens choose the
same experts. The ``k`` weights of a token are normalized *before* tokens are dropped, as in Tutel and Megatron: a
dropped choice leaves the other weights unchanged. With ``k = 1`` the weight is the probability itself.

A bias per expert can balance the load without a loss (Wang et al., arXiv:2408.15664): it is added to the probabilities
for the choice only. Its gradient is the load of the step, from which the update computes its change.

Slots are filled choice by choice, in token order within a choice (GShard, arXiv:2006.16668): all first choices precede
all second choices. A route that finds no slot is dropped. The same input is always routed identically, even when a
layer is recomputed for its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.document.model import PLAIN_ROUTER, Router
from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, add_gradient
from meshwave.engine.runtime.modules.load_balance import mark_balance_bias
from meshwave.engine.runtime.modules.precision import at_least_float32
from meshwave.engine.runtime.modules.recomputation import is_first_forward

CapacityRule = Callable[[Tensor], int]
"""Function that returns the number of slots of an expert, given the number of routes to each expert, ``[experts]``."""


class Routing(NamedTuple):
    """Slots and weights of all routes of a gate.

    Route ``c * S + s`` is choice ``c`` of token ``s``. An empty slot has route ``k * S``; a dropped route has slot
    ``len(route)``.
    """

    weights: Tensor  # weights [S, k], differentiable
    slot: Tensor  # slot of each route [k, S]
    route: Tensor  # route in each slot [slots], sorted by expert
    load: Tensor  # number of routes to each expert [experts], including dropped routes
    capacity: int  # number of slots per expert

    def select_slots(self, slots: Tensor) -> Routing:
        """Return the routing restricted to some slots; routes to other slots are treated as dropped."""
        position = torch.full((len(self.route) + 1,), len(slots), device=slots.device)
        position[slots] = torch.arange(len(slots), device=slots.device)
        return self._replace(slot=position[self.slot], route=self.route[slots])

    @property
    def token(self) -> Tensor:
        """Token in each slot, ``[slots]``; ``S`` for an empty slot."""
        choices, tokens = self.slot.shape
        return torch.where(self.route < choices * tokens, self.route % tokens, tokens)


class Gate(DeferrableModule):
    """Gate that scores ``[S, hidden]`` tokens for ``experts``. Its weights are uninitialized; the layer draws them.

    The load-balancing loss is ``E * sum(me * ce)``, where ``me`` is the mean probability of each expert and ``ce`` its
    fraction of all routes, including routes that are dropped later. It is 1 for equally loaded experts (GShard,
    arXiv:2006.16668). The z-loss is the mean square of ``logsumexp`` (ST-MoE, arXiv:2202.08906). Both are means over
    the gate's tokens. They do not change the output; their gradients are added in its backward. In the load-balancing
    loss, sigmoid scores are divided by their sum over all experts (DeepSeek-V3, arXiv:2412.19437, eq. 19).
    """

    loss_scale: float = 1.0  # factor of the losses of this step, set before the backward

    def __init__(
        self,
        hidden: int,
        experts: int,
        top_k: int,
        *,
        router: Router = PLAIN_ROUTER,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        loss_share: float = 1.0,
        load_share: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        """Create a gate.

        ``loss_share`` is its share of the two losses if the gradients of several gates are summed, and ``load_share``
        its share of each route in the load of the step if several gates see the same tokens.
        """
        super().__init__()

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device))

        self.weight = empty(experts, hidden)
        self.bias = empty(experts) if router.has_bias else None
        self.balance = (
            mark_balance_bias(empty(experts), router.balance_rate) if router.balance_rate is not None else None
        )
        self.router, self.top_k, self.loss_share, self.load_share = router, top_k, loss_share, load_share
        self.aux_loss, self.z_loss = aux_loss, z_loss
        self.extra_loss = torch.zeros(())  # this gate's share of the weighted sum of both losses of the last input

    def forward(self, x: Tensor, capacity_rule: CapacityRule, sum_load: Callable[[Tensor], Tensor]) -> Routing:
        """Route the tokens ``x [S, hidden]``.

        ``sum_load`` sums a load over the gates that route other parts of the same tokens.
        """
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = _Scores.apply(x, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
            probabilities = scores.softmax(-1) if self.router.score == "softmax" else scores.sigmoid()
            choice = self._choose(probabilities.detach())
            weights = self._weigh(probabilities.gather(-1, choice))
            load = choice.new_zeros(len(self.weight))  # bincount would make an accelerator wait for the host
            load = load.scatter_add(0, choice.flatten(), torch.ones_like(choice.flatten()))
            if self.aux_loss or self.z_loss:
                extra = self._gate_loss(scores, probabilities, sum_load(load))
                weights = _AttachLoss.apply(weights, extra, self.loss_scale)  # type: ignore[no-untyped-call]
        if self.balance is not None and is_first_forward():
            add_gradient(self.balance, load.to(self.balance.dtype) * self.load_share)
        capacity = capacity_rule(load)
        return Routing(weights, *_assign_slots(choice, load, capacity), load, capacity)

    def draw_weights(self, generator: torch.Generator) -> None:
        """Draw the matrix as GPT-2 does, and set the biases to 0."""
        with torch.no_grad():
            self.weight.copy_(torch.empty(self.weight.shape).normal_(0.0, 0.02, generator=generator))
            for bias in (self.bias, self.balance):
                if bias is not None:
                    bias.zero_()

    def _choose(self, probabilities: Tensor) -> Tensor:
        """Return the experts ``[S, k]`` of each token, the best first."""
        ranked = probabilities if self.balance is None else probabilities + self.balance.detach()
        if self.router.top_groups < self.router.groups:
            ranked = self._keep_best_groups(ranked.view(len(ranked), self.router.groups, -1))
        return torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, : self.top_k]

    def _keep_best_groups(self, ranked: Tensor) -> Tensor:
        """Return ``ranked [S, groups, experts of a group]`` as ``[S, experts]``, with -inf outside the best groups."""
        counted = 1 if self.balance is None else min(2, ranked.shape[-1])
        best = ranked.topk(counted, -1).values.sum(-1)
        kept = torch.sort(best, dim=-1, descending=True, stable=True).indices[:, : self.router.top_groups]
        is_kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
        return ranked.masked_fill(~is_kept.unsqueeze(-1), -torch.inf).flatten(-2)

    def _weigh(self, weights: Tensor) -> Tensor:
        """Return the weights of the chosen experts, given their probabilities ``[S, k]``."""
        if self.router.normalize and self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights if self.router.scale == 1 else weights * self.router.scale

    def _gate_loss(self, scores: Tensor, probabilities: Tensor, load: Tensor) -> Tensor:
        if self.router.score == "sigmoid":
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        fraction = load.to(scores.dtype) / load.sum()
        balance = len(load) * (probabilities.mean(0) * fraction).sum() * self.loss_share
        squared = scores.logsumexp(-1).square().mean() * self.loss_share
        extra: Tensor = self.aux_loss * balance + self.z_loss * squared
        self.extra_loss = extra.detach()
        return extra


def _assign_slots(choice: Tensor, load: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return the slot of each route ``[k, S]`` and the route in each slot ``[slots]``, given the ``choice [S, k]``."""
    expert = choice.t().flatten()
    routes, device = len(expert), expert.device
    by_expert = expert.argsort(stable=True)
    first = load.cumsum(0) - load  # first index of each expert in by_expert
    position = torch.empty_like(expert)
    position[by_expert] = torch.arange(routes, device=device) - first[expert[by_expert]]
    slot = torch.where(position < capacity, expert * capacity + position, len(load) * capacity)
    number = torch.arange(capacity, device=device)
    is_occupied = number < load[:, None]
    route = torch.where(is_occupied, by_expert[(first[:, None] + number).clamp(max=routes - 1)], routes)
    return slot.view(choice.shape[1], -1), route.flatten()


class _Scores(Function):
    """``x @ weight.T`` plus a bias, in float32 or higher precision, with weight gradients that can be deferred.

    In 16 bits, two scores whose relative difference is below 1/256 would be equal, and a token could be sent to an
    expert other than the most probable one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Gate) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gate = gate
        scores = at_least_float32(x) @ at_least_float32(weight).t()
        return scores if bias is None else scores + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        gate: Gate = ctx.gate
        deferred = partial(_add_score_gradient, gate, x, gradient)
        deferred() if gate.gradient_queue is None else gate.gradient_queue.add(deferred)
        return (gradient @ at_least_float32(gate.weight)).to(x.dtype), None, None, None


@torch.no_grad()
def _add_score_gradient(gate: Gate, x: Tensor, gradient: Tensor) -> None:
    add_gradient(gate.weight, gradient.t() @ at_least_float32(x))
    if gate.bias is not None:
        add_gradient(gate.bias, gradient.sum(0))


class _AttachLoss(Function):
    """Identity whose backward also starts the backward of a loss, with gradient ``scale``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.dtype = scale, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, torch.tensor(ctx.scale, dtype=ctx.dtype, device=gradient.device), None
