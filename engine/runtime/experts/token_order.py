"""Order of tokens by the slots of their experts, and back, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from meshwave.engine.experts import StepOp
from meshwave.engine.runtime.experts.gate import Routing
from meshwave.engine.runtime.experts.step_times import BeginStep
from meshwave.engine.runtime.experts.steps import BACKWARD, UNCHUNKED


def order_tokens(tokens: Tensor, routing: Routing, begin_step: BeginStep) -> Tensor:
    """Return the slots ``[slots, hidden]`` of the tokens ``[S, hidden]``, with zeros in empty slots."""
    ordered: Tensor = _Order.apply(tokens, routing, begin_step)  # type: ignore[no-untyped-call]
    return ordered


def restore_tokens(results: Tensor, routing: Routing, begin_step: BeginStep) -> Tensor:
    """Return ``[S, hidden]``: for each token, the weighted sum of its slots of ``[slots, hidden]``."""
    restored: Tensor = _Restore.apply(results, routing.weights, routing, begin_step)  # type: ignore[no-untyped-call]
    return restored


class _Order(Function):
    """Operation of :func:`order_tokens`."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, routing: Routing, begin_step: BeginStep) -> Tensor:
        end_step = begin_step(StepOp.ORDER, UNCHUNKED)
        ctx.slot, ctx.begin_step = routing.slot, begin_step
        ordered = _select_rows(tokens, routing.token)
        end_step()
        return ordered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        end_step = ctx.begin_step(StepOp.RESTORE, BACKWARD)  # the adjoint
        first, *others = ctx.slot
        total = _select_rows(gradient, first)
        for slot in others:
            total += _select_rows(gradient, slot)
        end_step()
        return total, None, None


class _Restore(Function):
    """Operation of :func:`restore_tokens`."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, weights: Tensor, routing: Routing, begin_step: BeginStep) -> Tensor:
        end_step = begin_step(StepOp.RESTORE, UNCHUNKED)
        ctx.begin_step = begin_step
        ctx.save_for_backward(results, weights)
        ctx.routing = routing._replace(weights=weights.detach())
        total = torch.zeros((), dtype=weights.dtype, device=results.device)
        for choice, slot in enumerate(routing.slot):
            total = total + weights[:, choice, None] * _select_rows(results, slot)
        end_step()
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        end_step = ctx.begin_step(StepOp.ORDER, BACKWARD)  # the adjoint
        results, weights = ctx.saved_tensors
        routing: Routing = ctx.routing
        slot_weights = _select_rows(weights.t().reshape(-1, 1), routing.route)
        results_gradient = (slot_weights * _select_rows(gradient, routing.token)).to(results.dtype)
        weights_gradient = torch.stack([(gradient * _select_rows(results, slot)).sum(-1) for slot in routing.slot], -1)
        end_step()
        return results_gradient, weights_gradient, None, None


def _select_rows(rows: Tensor, indices: Tensor) -> Tensor:
    """Return the rows at ``indices``, with zeros for the index ``len(rows)``."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]).index_select(0, indices)
