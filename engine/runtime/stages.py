"""What a rank computes: forward and backward of a stage, on one microbatch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.runtime.models import Stage

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}  # of the weights
MESSAGE_DTYPES = {**DTYPES, "bf16": torch.bfloat16}  # of what passes between stages


class Saved(NamedTuple):
    """What a forward leaves for its backward: the input, and the output with its graph."""

    x: Tensor
    y: Tensor


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
        torch.autograd.backward(saved.y, self._seed(saved, gradient))
        return saved.x.grad

    def input_gradient(self, saved: Saved, gradient: Tensor | None) -> Tensor | None:
        """The gradient of the input alone; the graph stays for :meth:`weight_gradient`."""
        if not saved.x.requires_grad:
            return None
        return torch.autograd.grad(saved.y, saved.x, self._seed(saved, gradient), retain_graph=True)[0]

    def weight_gradient(self, saved: Saved, gradient: Tensor | None) -> None:
        if self.parameters:
            torch.autograd.backward(saved.y, self._seed(saved, gradient), inputs=self.parameters)

    def _seed(self, saved: Saved, gradient: Tensor | None) -> Tensor:
        """The loss is where gradients start."""
        return torch.full_like(saved.y, self._loss_scale) if gradient is None else gradient
