"""What a rank computes: forward and backward of a stage, on one microbatch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.runtime.models import Stage

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}  # of the weights
MESSAGE_DTYPES = {**DTYPES, "bf16": torch.bfloat16}  # of what passes between stages


class Saved(NamedTuple):
    """What a forward leaves for its backward: the input, and the output with its graph."""

    x: Tensor
    y: Tensor


class _Pull(torch.autograd.Function):
    """A scalar to call backward on, which starts ``gradient`` at ``y``.

    Handing the gradient to ``backward`` itself means the same, but makes torch import sympy to
    compare the two shapes: 0.8 s in every process.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        return ctx.gradient, None


class LocalStage:
    """A stage with the arithmetic of its precision.

    ``bf16`` computes under autocast from float32 weights, which the optimizer updates.
    """

    def __init__(self, module: Stage, precision: str, device: torch.device, loss_scale: float) -> None:
        """``loss_scale`` is 1 over the microbatches of the global batch: losses are averaged."""
        self.module = module
        self.parameters = list(module.parameters())
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        self._loss_scale = loss_scale

    def forward(self, x: Tensor, targets: Tensor | None) -> Saved:
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        with self._autocast:
            return Saved(x, self.module(x, targets))

    def backward(self, saved: Saved, gradient: Tensor | None) -> Tensor | None:
        """Add to the weights' gradients; return that of the input (none of tokens)."""
        torch.autograd.backward(self._pull(saved, gradient))
        return saved.x.grad

    def input_gradient(self, saved: Saved, gradient: Tensor | None) -> Tensor | None:
        """The gradient of the input alone; the graph stays for :meth:`weight_gradient`."""
        if not saved.x.requires_grad:
            return None
        return torch.autograd.grad(self._pull(saved, gradient), saved.x, retain_graph=True)[0]

    def weight_gradient(self, saved: Saved, gradient: Tensor | None) -> None:
        if self.parameters:
            torch.autograd.backward(self._pull(saved, gradient), inputs=self.parameters)

    def _pull(self, saved: Saved, gradient: Tensor | None) -> Tensor:
        """The loss is where gradients start."""
        if gradient is None:
            gradient = torch.full_like(saved.y, self._loss_scale)
        scalar: Tensor = _Pull.apply(saved.y, gradient)  # type: ignore[no-untyped-call]
        return scalar
