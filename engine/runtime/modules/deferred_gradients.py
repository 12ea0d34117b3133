"""Deferred weight gradients: a backward in two halves without repeated computation.

Zero-bubble schedules (Qi et al., arXiv:2401.10241) compute the gradient of a stage's input as early as possible and
defer its weight gradients. Each part of a model that has weights is a :class:`DeferrableModule`. While it has a
gradient queue, its backward computes only the gradient of its input and adds a deferred gradient to the queue, with the
input and the gradient of the output that it needs; other tensors that autograd saves are freed. Both halves call the
same kernels as autograd, with the same layouts, so that the results are bitwise equal to those of a full backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from meshwave.engine.runtime.device.accelerator import uses_autocast
from meshwave.engine.runtime.modules.products import PLAIN, Products

DeferredGradient = Callable[[], None]
"""Function that computes the weight gradients of a module for one microbatch and accumulates them."""


class GradientQueue:
    """Queue of the deferred weight gradients of one stage and one backward."""

    def __init__(self) -> None:
        self._gradients: list[DeferredGradient] = []

    def add(self, gradient: DeferredGradient) -> None:
        """Append a deferred gradient to the queue."""
        self._gradients.append(gradient)

    def take(self) -> list[DeferredGradient]:
        """Return and remove all deferred gradients."""
        gradients, self._gradients = self._gradients, []
        return gradients


class _NoQueue(GradientQueue):
    """Stand-in for a queue in a full backward, which computes the gradients of weights at once."""

    def add(self, gradient: DeferredGradient) -> None:
        """Compute a deferred gradient at once."""
        gradient()


NO_QUEUE = _NoQueue()


@torch.no_grad()
def compute_deferred_gradients(gradients: list[DeferredGradient]) -> None:
    """Compute deferred gradients in the order of a backward. The list is emptied, so that their tensors are freed."""
    gradients.reverse()
    while gradients:
        gradients.pop()()


class DeferrableModule(nn.Module):
    """Part of a model whose weight gradients can be deferred."""

    gradient_queue: GradientQueue | None = None  # None: autograd computes all gradients at once
    cast: tuple[Tensor | None, ...] | None = None
    """Copies of the weights in the compute dtype; None if it is their own dtype."""

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Make copies of the weights in ``dtype``, used for all inputs until :meth:`drop_cast_weights`.

        Autocast would create copies for every input.
        """

    def drop_cast_weights(self) -> None:
        """Drop the copies of the weights in the compute dtype, because the weights change."""


class CastModule(DeferrableModule):
    """Module whose weights are uninitialized: the model draws them.

    ``cast`` contains weight and bias in the compute dtype; None if it is their own dtype.
    """

    weight: Tensor
    bias: Any  # a tensor; None for a module without a bias
    cast: tuple[Tensor, Tensor | None] | None = None
    products: Products = PLAIN

    def reset_parameters(self) -> None:
        """Leave the weights uninitialized."""

    def cast_weights(self, dtype: torch.dtype) -> None:
        """Make copies in ``dtype``, whose gradients are added to those of the weights."""
        self.cast = cast_weight(self.weight, dtype), None if self.bias is None else cast_weight(self.bias, dtype)

    def drop_cast_weights(self) -> None:
        """Drop the copies of the weights in the compute dtype."""
        self.cast = None


class Linear(CastModule, nn.Linear):
    """Linear map whose weight gradients can be deferred."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., inputs]`` to ``[..., outputs]``."""
        if self._uses_function:
            return self._forward_deferred(x, has_bias=True)
        weight, bias = self.cast or (self.weight, self.bias)
        return F.linear(x, weight, bias)

    def product_and_bias(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the product without the bias, and the bias.

        The caller adds the bias to a tensor that has the same gradient as the product.
        """
        weight, bias = self.cast or (self.weight, self.bias)
        assert bias is not None, "a map with a bias"
        if not self._uses_function:
            return F.linear(x, weight), bias
        return self._forward_deferred(
            x, has_bias=False
        ), bias.detach()  # the gradient of the bias is deferred with that of the weight

    @property
    def _uses_function(self) -> bool:
        """True if autograd's own linear map does not compute the gradients."""
        return self.gradient_queue is not None or self.products is not PLAIN

    def _forward_deferred(self, x: Tensor, *, has_bias: bool) -> Tensor:
        out: Tensor = _DeferringLinear.apply(x, self, self.gradient_queue or NO_QUEUE, has_bias)  # type: ignore[no-untyped-call]
        return out


class Norm(DeferrableModule, nn.LayerNorm):
    """Layer norm over the last dim, whose weight gradients can be deferred."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x [..., features]``."""
        if self.gradient_queue is None:
            return super().forward(x)
        if uses_autocast(x):
            x = x.float()  # as autocast does with norms on an accelerator
        out: Tensor = _DeferringNorm.apply(x, self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return out


class Convolution(CastModule, nn.Conv2d):
    """Convolution of images with a bias."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images ``[batch, channels, height, width]``."""
        if self.gradient_queue is not None:
            out: Tensor = _DeferringConvolution.apply(x, self.weight, self, self.gradient_queue)  # type: ignore[no-untyped-call]
            return out
        weight, bias = self.cast or (self.weight, self.bias)
        return F.conv2d(x, weight, bias, self.stride, self.padding)


class ChannelNorm(DeferrableModule, nn.GroupNorm):
    """Group norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize images ``[batch, channels, height, width]``."""
        if self.gradient_queue is None:
            return super().forward(x)
        if uses_autocast(x):
            x = x.float()  # as autocast does with norms on an accelerator
        out: Tensor = _DeferringChannelNorm.apply(x.contiguous(), self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return out


class EmbeddingTable(DeferrableModule, nn.Embedding):
    """Table with a row of weights for each index, uninitialized like :class:`Linear`."""

    def reset_parameters(self) -> None:
        """Leave the weights uninitialized."""

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows ``[..., hidden]`` for ``indices [...]``."""
        if self.gradient_queue is None:
            return super().forward(indices)
        rows: Tensor = _DeferringLookup.apply(self.weight, indices, self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return rows

    def first_rows(self, count: int) -> Tensor:
        """Return the first ``count`` rows of the table."""
        if self.gradient_queue is None:
            return self.weight[:count]
        rows: Tensor = _DeferringFirstRows.apply(self.weight, count, self, self.gradient_queue)  # type: ignore[no-untyped-call]
        return rows


# ---- input gradients, with deferred weight gradients ----


class _DeferringLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Linear, queue: GradientQueue, has_bias: bool) -> Tensor:
        weight, bias = linear.cast or (linear.weight, linear.bias)
        kept = linear.products.keep(x.to(weight.dtype))
        ctx.save_for_backward(*kept)
        ctx.weight, ctx.linear, ctx.queue = weight, linear, queue
        return linear.products.output(kept, weight, bias if has_bias else None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        rows = gradient.reshape(-1, gradient.shape[-1])
        ctx.queue.add(partial(add_linear_gradients, ctx.linear, rows, *ctx.saved_tensors))
        input_gradient = ctx.linear.products.input_gradient(rows, ctx.weight)
        return input_gradient.view(*gradient.shape[:-1], -1), None, None, None


class _DeferringNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm, queue: GradientQueue) -> Tensor:
        shape, eps = norm.normalized_shape, norm.eps
        out, mean, deviation = torch.native_layer_norm(x, shape, norm.weight, norm.bias, eps)
        ctx.save_for_backward(x, mean, deviation)
        ctx.norm, ctx.queue = norm, queue
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, mean, deviation = ctx.saved_tensors
        ctx.queue.add(partial(_add_norm_gradients, ctx.norm, x, mean, deviation, gradient))
        input_gradient, _, _ = _norm_backward(ctx.norm, x, mean, deviation, gradient, wanted=[True, False, False])
        return input_gradient, None, None


class _DeferringConvolution(Function):
    """Convolution with a deferred weight gradient.

    The operation also takes the module's ``weight``, so that autograd runs its backward even if the input needs no
    gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, convolution: Convolution, queue: GradientQueue) -> Tensor:
        used, bias = convolution.cast or (weight, convolution.bias)
        x = x.to(used.dtype)
        ctx.save_for_backward(x)
        ctx.weight, ctx.convolution, ctx.queue = used, convolution, queue
        return F.conv2d(x, used, bias, convolution.stride, convolution.padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()  # a copy, because a view of a message would keep it in memory
        ctx.queue.add(partial(_add_convolution_gradients, ctx.convolution, x, ctx.weight, gradient))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        wanted = [True, False, False]
        input_gradient, _, _ = _convolution_backward(ctx.convolution, x, ctx.weight, gradient, wanted=wanted)
        return input_gradient, None, None, None


class _DeferringChannelNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: ChannelNorm, queue: GradientQueue) -> Tensor:
        batch, channels = x.shape[:2]
        sizes = batch, channels, x[0, 0].numel(), norm.num_groups
        out, mean, deviation = torch.native_group_norm(x, norm.weight, norm.bias, *sizes, norm.eps)
        ctx.save_for_backward(x, mean, deviation)
        ctx.norm, ctx.queue = norm, queue
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, mean, deviation = ctx.saved_tensors
        gradient = gradient.contiguous()
        ctx.queue.add(partial(_add_channel_norm_gradients, ctx.norm, x, mean, deviation, gradient))
        input_gradient, _, _ = _channel_norm_backward(
            ctx.norm, x, mean, deviation, gradient, wanted=[True, False, False]
        )
        return input_gradient, None, None


class _DeferringLookup(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, table: EmbeddingTable, queue: GradientQueue) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.table, ctx.queue = table, queue
        return F.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        (indices,) = ctx.saved_tensors
        ctx.queue.add(partial(_add_lookup_gradient, ctx.table, indices, gradient))
        return None, None, None, None


class _DeferringFirstRows(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, count: int, table: EmbeddingTable, queue: GradientQueue) -> Tensor:
        ctx.table, ctx.queue = table, queue
        return weight[:count]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.queue.add(partial(_add_first_rows_gradient, ctx.table, gradient))
        return None, None, None, None


# ---- weight gradients ----


def add_linear_gradients(linear: Linear, gradient: Tensor, *kept: Tensor) -> None:
    """Add to the gradients of weight and bias, given the output gradient ``[rows, outputs]`` and the kept input."""
    add_gradient(linear.weight, linear.products.weight_gradient(gradient, kept))
    if linear.bias is not None:
        add_gradient(linear.bias, gradient.sum(0))


def _add_norm_gradients(norm: Norm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor) -> None:
    has_bias = norm.bias is not None
    _, weight, bias = _norm_backward(norm, x, mean, deviation, gradient, wanted=[False, True, has_bias])
    add_gradient(norm.weight, weight)
    if has_bias:
        add_gradient(norm.bias, bias)


def _norm_backward(
    norm: Norm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; gradients that ``wanted`` marks False are not computed."""
    shape = list(norm.normalized_shape)
    kernel = torch.ops.aten.native_layer_norm_backward.default
    gradients: tuple[Tensor, Tensor, Tensor] = kernel(
        gradient, x, shape, mean, deviation, norm.weight, norm.bias, wanted
    )
    return gradients


def _add_convolution_gradients(convolution: Convolution, x: Tensor, weight: Tensor, gradient: Tensor) -> None:
    _, weight_gradient, bias_gradient = _convolution_backward(
        convolution, x, weight, gradient, wanted=[False, True, True]
    )
    assert convolution.bias is not None, "a convolution with a bias"
    add_gradient(convolution.weight, weight_gradient)
    add_gradient(convolution.bias, bias_gradient)


def _convolution_backward(
    convolution: Convolution, x: Tensor, weight: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; gradients that ``wanted`` marks False are not computed."""
    settings = [list(convolution.stride), list(convolution.padding), [1, 1], False, [0, 0], 1]
    kernel = torch.ops.aten.convolution_backward.default
    gradients: tuple[Tensor, Tensor, Tensor] = kernel(gradient, x, weight, [weight.shape[0]], *settings, wanted)
    return gradients


def _add_channel_norm_gradients(
    norm: ChannelNorm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor
) -> None:
    _, weight, bias = _channel_norm_backward(norm, x, mean, deviation, gradient, wanted=[False, True, True])
    add_gradient(norm.weight, weight)
    add_gradient(norm.bias, bias)


def _channel_norm_backward(
    norm: ChannelNorm, x: Tensor, mean: Tensor, deviation: Tensor, gradient: Tensor, *, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; gradients that ``wanted`` marks False are not computed."""
    sizes = x.shape[0], x.shape[1], x[0, 0].numel(), norm.num_groups
    kernel = torch.ops.aten.native_group_norm_backward.default
    gradients: tuple[Tensor, Tensor, Tensor] = kernel(gradient, x, mean, deviation, norm.weight, *sizes, wanted)
    return gradients


def _add_lookup_gradient(table: EmbeddingTable, indices: Tensor, gradient: Tensor) -> None:
    kernel = torch.ops.aten.embedding_dense_backward.default
    add_gradient(table.weight, kernel(gradient, indices, table.num_embeddings, -1, False))


def _add_first_rows_gradient(table: EmbeddingTable, gradient: Tensor) -> None:
    kernel = torch.ops.aten.slice_backward.default
    add_gradient(table.weight, kernel(gradient, list(table.weight.shape), 0, 0, len(gradient), 1))


def cast_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in ``dtype``. The gradient of a copy is added to that of the weight as soon as it is known.

    Autograd would pass the gradients of all copies to their weights only at the end of a backward.
    """
    if weight.dtype is dtype:
        return weight
    copy = weight.detach().to(dtype).requires_grad_(weight.requires_grad)

    def pass_on(_: Tensor) -> None:
        assert copy.grad is not None, "just accumulated"
        add_gradient(weight, copy.grad)
        copy.grad = None

    if copy.requires_grad:
        copy.register_post_accumulate_grad_hook(pass_on)  # type: ignore[no-untyped-call]
    return copy


def add_gradient(weight: Tensor, gradient: Tensor) -> None:
    """Add to the gradient of a weight in the dtype of the weight, in the same way as autograd."""
    if gradient.dtype is not weight.dtype:
        gradient = gradient.to(weight.dtype)
    if weight.grad is None:
        weight.grad = gradient
    else:
        weight.grad += gradient
