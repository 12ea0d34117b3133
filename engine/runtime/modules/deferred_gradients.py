"""Weight gradients for later: a backward in two halves that computes nothing twice.

Zero-bubble schedules (Qi et al., arXiv:2401.10241) run the gradient of a stage's input as soon as
they can and put off those of its weights. Each part of a model that holds weights is a
:class:`Defers`. While it has a place to put them, its backward computes the input's gradient alone
and leaves there what the weights' gradients need, which is what went in and what came back; the
rest that autograd keeps is freed. Both halves call the kernels that autograd would call, with the
same layouts, so that the bits are those of a whole backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.device.accelerator import is_autocast

Due = Callable[[], None]
"""Adds one part's share to the gradients of its weights."""


class Later:
    """Where the parts of one stage leave the weight gradients of one backward."""

    def __init__(self) -> None:
        self._due: list[Due] = []

    def add(self, due: Due) -> None:
        self._due.append(due)

    def take(self) -> list[Due]:
        """What was left since the last call."""
        due, self._due = self._due, []
        return due


@torch.no_grad()
def settle(due: list[Due]) -> None:
    """Compute the gradients that were put off, in the order of a backward, and let go of each one's tensors."""
    due.reverse()
    while due:
        due.pop()()


class Defers(nn.Module):
    """A part of a model that can leave the gradients of its weights for later."""

    later: Later | None = None  # none: autograd computes all gradients at once

    def copy_weights(self, dtype: torch.dtype) -> None:
        """Have copies of the weights to compute with, where autocast would make them for every input; for the
        inputs from now on until :meth:`forget_copies`."""

    def forget_copies(self) -> None:
        """The weights have changed, or are about to."""


class Linear(Defers, nn.Linear):
    """A linear map, left empty: who builds a model draws its weights.

    ``cast`` are weight and bias in the precision that it computes in, if that is not theirs.
    """

    cast: tuple[Tensor, Tensor | None] | None = None

    def reset_parameters(self) -> None:
        pass

    @torch.enable_grad()
    def copy_weights(self, dtype: torch.dtype) -> None:
        """In a way that autograd knows: the copies' gradients are the weights'."""
        self.cast = self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype)

    def forget_copies(self) -> None:
        self.cast = None

    def forward(self, x: Tensor) -> Tensor:
        if self.later is not None:
            out: Tensor = _Product.apply(x, self, self.later, True)  # type: ignore[no-untyped-call]
            return out
        weight, bias = self.cast or (self.weight, self.bias)
        return F.linear(x, weight, bias)

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The product alone, and the bias, to be added by the caller to something with the same gradient."""
        weight, bias = self.cast or (self.weight, self.bias)
        assert bias is not None, "a map with a bias"
        if self.later is None:
            return F.linear(x, weight), bias
        out: Tensor = _Product.apply(x, self, self.later, False)  # type: ignore[no-untyped-call]
        return out, bias.detach()  # its gradient is put off with the weight's


class Norm(Defers, nn.LayerNorm):
    """Layer norm over the last dim."""

    def forward(self, x: Tensor) -> Tensor:
        if self.later is None:
            return super().forward(x)
        if is_autocast(x):
            x = x.float()  # as autocast does with norms on a GPU
        out: Tensor = _Normed.apply(x, self, self.later)  # type: ignore[no-untyped-call]
        return out


class Convolution(Defers, nn.Conv2d):
    """A convolution of images with a bias, left empty like :class:`Linear`, with ``cast`` as there."""

    cast: tuple[Tensor, Tensor] | None = None

    def reset_parameters(self) -> None:
        pass

    @torch.enable_grad()
    def copy_weights(self, dtype: torch.dtype) -> None:
        """In a way that autograd knows: the copies' gradients are the weights'."""
        assert self.bias is not None, "a convolution with a bias"
        self.cast = self.weight.to(dtype), self.bias.to(dtype)

    def forget_copies(self) -> None:
        self.cast = None

    def forward(self, x: Tensor) -> Tensor:
        if self.later is not None:
            out: Tensor = _Convolved.apply(x, self.weight, self, self.later)  # type: ignore[no-untyped-call]
            return out
        weight, bias = self.cast or (self.weight, self.bias)
        return F.conv2d(x, weight, bias, self.stride, self.padding)


class ChannelNorm(Defers, nn.GroupNorm):
    """Group norm of the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        if self.later is None:
            return super().forward(x)
        if is_autocast(x):
            x = x.float()  # as autocast does with norms on a GPU
        out: Tensor = _GroupNormed.apply(x.contiguous(), self, self.later)  # type: ignore[no-untyped-call]
        return out


class Table(Defers, nn.Embedding):
    """A row of weights a number, left empty like :class:`Linear`."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, numbers: Tensor) -> Tensor:
        if self.later is None:
            return super().forward(numbers)
        rows: Tensor = _Looked.apply(self.weight, numbers, self, self.later)  # type: ignore[no-untyped-call]
        return rows

    def first(self, count: int) -> Tensor:
        """The rows of the numbers below ``count``."""
        if self.later is None:
            return self.weight[:count]
        rows: Tensor = _First.apply(self.weight, count, self, self.later)  # type: ignore[no-untyped-call]
        return rows


# ---- the input's gradient, and what is left for the weights' ----


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Linear, later: Later, biased: bool) -> Tensor:
        weight, bias = linear.cast or (linear.weight, linear.bias)
        x = x.to(weight.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.linear, ctx.later = weight, linear, later
        return F.linear(x, weight, bias if biased else None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        ctx.later.add(partial(_add_product, ctx.linear, x.view(-1, x.shape[-1]), rows))
        return rows.mm(ctx.weight).view(x.shape), None, None, None


class _Normed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm, later: Later) -> Tensor:
        shape, eps = norm.normalized_shape, norm.eps
        out, mean, deviation = torch.native_layer_norm(x, shape, norm.weight, norm.bias, eps)
        ctx.save_for_backward(x, mean, deviation)
        ctx.norm, ctx.later = norm, later
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, mean, deviation = ctx.saved_tensors
        ctx.later.add(partial(_add_norm, ctx.norm, x, mean, deviation, gradient))
        of_input, _, _ = _norm_backward(ctx.norm, x, mean, deviation, gradient, wanted=[True, False, False])
        return of_input, None, None


class _Convolved(Function):
    """``weight`` is the module's, so that autograd comes by also where nobody wants the input's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, convolution: Convolution, later: Later) -> Tensor:
        used, bias = convolution.cast or (weight, convolution.bias)
        x = x.to(used.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.convolution, ctx.later = used, convolution, later
        return F.conv2d(x, used, bias, convolution.stride, convolution.padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()  # no view of a message, which would be held as long
        ctx.later.add(partial(_add_convolution, ctx.convolution, x, ctx.weight, gradient))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        wanted = [True, False, False]
        of_input, _, _ = _convolution_backward(ctx.convolution, x, ctx.weight, gradient, wanted=wanted)
        return of_input, None, None, None


class _GroupNormed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: ChannelNorm, later: Later) -> Tensor:
        batch, channels = x.shape[:2]
        sizes = batch, channels, x[0, 0].numel(), norm.num_groups
        out, mean, deviation = torch.native_group_norm(x, norm.weight, norm.bias, *sizes, norm.eps)
        ctx.save_for_backward(x, mean, deviation)
        ctx.norm, ctx.later = norm, later
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, mean, deviation = ctx.saved_tensors
        gradient = gradient.contiguous()
        ctx.later.add(partial(_add_group_norm, ctx.norm, x, mean, deviation, gradient))
        of_input, _, _ = _group_norm_backward(ctx.norm, x, mean, deviation, gradient, wanted=[True, False, False])
        return of_input, None, None


class _Looked(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, numbers: Tensor, table: Table, later: Later) -> Tensor:
        ctx.save_for_backward(numbers)
        ctx.table, ctx.later = table, later
        return F.embedding(numbers, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        (numbers,) = ctx.saved_tensors
        ctx.later.add(partial(_add_looked, ctx.table, numbers, gradient))
        return None, None, None, None


class _First(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, count: int, table: Table, later: Later) -> Tensor:
        ctx.table, ctx.later = table, later
        return weight[:count]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.later.add(partial(_add_first, ctx.table, gradient))
        return None, None, None, None


# ---- the weights' gradients ----


def _add_product(linear: Linear, x: Tensor, gradient: Tensor) -> None:
    accumulate(linear.weight, gradient.t().mm(x))
    if linear.bias is not None:
        accumulate(linear.bias, gradient.sum(0))


def _add_norm(norm: Norm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor) -> None:
    _, weight, bias = _norm_backward(norm, x, mean, deviation, gradient, wanted=[False, True, True])
    accumulate(norm.weight, weight)
    accumulate(norm.bias, bias)


def _norm_backward(
    norm: Norm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias, those that are wanted."""
    shape = list(norm.normalized_shape)
    kernel = torch.ops.aten.native_layer_norm_backward.default
    found: tuple[Tensor, Tensor, Tensor] = kernel(gradient, x, shape, mean, deviation, norm.weight, norm.bias, wanted)
    return found


def _add_convolution(convolution: Convolution, x: Tensor, weight: Tensor, gradient: Tensor) -> None:
    _, of_weight, of_bias = _convolution_backward(convolution, x, weight, gradient, wanted=[False, True, True])
    assert convolution.bias is not None, "a convolution with a bias"
    accumulate(convolution.weight, of_weight)
    accumulate(convolution.bias, of_bias)


def _convolution_backward(
    convolution: Convolution, x: Tensor, weight: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias, those that are wanted."""
    how = [list(convolution.stride), list(convolution.padding), [1, 1], False, [0, 0], 1]
    kernel = torch.ops.aten.convolution_backward.default
    found: tuple[Tensor, Tensor, Tensor] = kernel(gradient, x, weight, [weight.shape[0]], *how, wanted)
    return found


def _add_group_norm(norm: ChannelNorm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor) -> None:
    _, weight, bias = _group_norm_backward(norm, x, mean, deviation, gradient, wanted=[False, True, True])
    accumulate(norm.weight, weight)
    accumulate(norm.bias, bias)


def _group_norm_backward(
    norm: ChannelNorm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias, those that are wanted."""
    sizes = x.shape[0], x.shape[1], x[0, 0].numel(), norm.num_groups
    kernel = torch.ops.aten.native_group_norm_backward.default
    found: tuple[Tensor, Tensor, Tensor] = kernel(gradient, x, mean, deviation, norm.weight, *sizes, wanted)
    return found


def _add_looked(table: Table, numbers: Tensor, gradient: Tensor) -> None:
    kernel = torch.ops.aten.embedding_dense_backward.default
    accumulate(table.weight, kernel(gradient, numbers, table.num_embeddings, -1, False))


def _add_first(table: Table, gradient: Tensor) -> None:
    kernel = torch.ops.aten.slice_backward.default
    accumulate(table.weight, kernel(gradient, list(table.weight.shape), 0, 0, len(gradient), 1))


def accumulate(weight: Tensor, gradient: Tensor) -> None:
    """Add to the gradient, as autograd does: in the precision of the weight."""
    if gradient.dtype is not weight.dtype:
        gradient = gradient.to(weight.dtype)
    if weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad += gradient
