"""The gate: which experts each token visits, in which slot, and with what weight.

Scores, softmax and choice are in float32 at least, whatever the precision of the layer. Of equal
probabilities the lower expert wins, so that all processes with the same tokens choose the same.
The ``k`` weights of a token are normalised *before* tokens are dropped, as Tutel and Megatron do: a
dropped choice leaves its share empty and the others as they were. With ``k = 1`` the weight is
the probability itself.

Slots are filled choice by choice, in the order of the tokens inside a choice (GShard,
arXiv:2006.16668): all first choices come before all second ones. What finds no slot is dropped. The
same input is routed the same every time, so also when a layer is computed again for its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.modules.deferred_gradients import DeferrableModule, add_gradient

Room = Callable[[Tensor], int]
"""Slots of an expert, given its load: ``[experts]`` routes to each."""


class Routing(NamedTuple):
    """Who sits where. Route ``c * S + s`` is choice ``c`` of token ``s``; a slot that is empty has
    route ``k * S``, a route that was dropped has slot ``len(route)``."""

    weights: Tensor  # [S, k] differentiable
    slot: Tensor  # [k, S] of each route
    route: Tensor  # [slots] of each slot; expert by expert
    load: Tensor  # [experts] routes to each, with those that were dropped
    capacity: int  # slots of an expert

    def only(self, slots: Tensor) -> Routing:
        """The same for some of the slots; routes to others count as dropped."""
        place = torch.full((len(self.route) + 1,), len(slots), device=slots.device)
        place[slots] = torch.arange(len(slots), device=slots.device)
        return self._replace(slot=place[self.slot], route=self.route[slots])

    @property
    def token(self) -> Tensor:
        """``[slots]`` the token in each slot; ``S`` where it is empty."""
        choices, tokens = self.slot.shape
        return torch.where(self.route < choices * tokens, self.route % tokens, tokens)


class Gate(DeferrableModule):
    """Scores of ``[S, hidden]`` tokens for ``experts``, left empty: who builds a model draws its weights.

    The load-balancing loss is ``E * sum(me * ce)``, of the mean probability of each expert and its
    fraction of all routes, those that will be dropped included: 1 where all experts are alike. The
    z-loss is the mean square of ``logsumexp`` (ST-MoE, arXiv:2202.08906). Both are means over the
    gate's tokens. They add nothing to the output; their gradients enter in its backward.
    """

    loss_scale: float = 1.0  # of this step: what a loss is multiplied with before its backward

    def __init__(
        self,
        hidden: int,
        experts: int,
        top_k: int,
        *,
        aux_loss: float = 0.0,
        z_loss: float = 0.0,
        share: float = 1.0,
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
    ) -> None:
        """``share`` is this gate's part of the two losses, where several gates' gradients are summed."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden, dtype=dtype, device=device))
        self.top_k, self.share = top_k, share
        self.aux_loss, self.z_loss = aux_loss, z_loss
        self.load_balance = self.squared_scores = torch.zeros(
            ()
        )  # the two losses of the last input, this gate's share of them

    def forward(self, x: Tensor, room: Room, whole: Callable[[Tensor], Tensor]) -> Routing:
        """Route the tokens ``x [S, hidden]``.

        ``whole`` sums a load over the gates that see other parts of the same tokens.
        """
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = _Scores.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
            probabilities = scores.softmax(-1)
            choice = torch.sort(probabilities.detach(), dim=-1, descending=True, stable=True).indices[:, : self.top_k]
            weights = probabilities.gather(-1, choice)
            if self.top_k > 1:
                weights = weights / weights.sum(-1, keepdim=True)
            load = choice.new_zeros(len(self.weight))  # bincount would have a GPU wait for the host
            load = load.scatter_add(0, choice.flatten(), torch.ones_like(choice.flatten()))
            if self.aux_loss or self.z_loss:
                extra = self._extra_loss(scores, probabilities, whole(load))
                weights = _Beside.apply(weights, extra, self.loss_scale)  # type: ignore[no-untyped-call]
        capacity = room(load)
        return Routing(weights, *_slots(choice, load, capacity), load, capacity)

    def _extra_loss(self, scores: Tensor, probabilities: Tensor, load: Tensor) -> Tensor:
        fraction = load.to(scores.dtype) / load.sum()
        balance = len(load) * (probabilities.mean(0) * fraction).sum() * self.share
        squared = scores.logsumexp(-1).square().mean() * self.share
        self.load_balance, self.squared_scores = balance.detach(), squared.detach()
        return self.aux_loss * balance + self.z_loss * squared


def _slots(choice: Tensor, load: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """The slot of each route ``[k, S]`` and the route of each slot, of the ``choice [S, k]`` of experts."""
    expert = choice.t().flatten()
    routes, device = len(expert), expert.device
    by_expert = expert.argsort(stable=True)
    first = load.cumsum(0) - load  # of each expert, in by_expert
    position = torch.empty_like(expert)
    position[by_expert] = torch.arange(routes, device=device) - first[expert[by_expert]]
    slot = torch.where(position < capacity, expert * capacity + position, len(load) * capacity)
    number = torch.arange(capacity, device=device)
    taken = number < load[:, None]
    route = torch.where(taken, by_expert[(first[:, None] + number).clamp(max=routes - 1)], routes)
    return slot.view(choice.shape[1], -1), route.flatten()


class _Scores(Function):
    """``x @ weight.T`` in float32 at least; the gradient of the weight now or later, as the gate is told.

    In 16 bits two scores that differ by less than a part in 256 would be equal, and a token would
    visit another expert than the one that its probabilities ask for.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gate: Gate) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gate = gate
        return _wide(x) @ _wide(weight).t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        gate: Gate = ctx.gate
        due = partial(_add_scores, gate.weight, x, gradient)
        due() if gate.gradient_queue is None else gate.gradient_queue.add(due)
        return (gradient @ _wide(gate.weight)).to(x.dtype), None, None


@torch.no_grad()
def _add_scores(weight: nn.Parameter, x: Tensor, gradient: Tensor) -> None:
    add_gradient(weight, gradient.t() @ _wide(x))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Beside(Function):
    """A tensor as it is; a loss beside it starts its own gradient when that of the tensor passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.dtype = scale, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, torch.tensor(ctx.scale, dtype=ctx.dtype, device=gradient.device), None
