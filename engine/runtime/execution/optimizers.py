"""AdamW and SGD that update many tensors at once.

They replace torch.optim, whose first optimizer imports torch.compile: 800 modules and 1.7 s in every process. Tests
compare them with torch.optim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Optimizer(ABC):
    """Optimizer with decoupled weight decay, which updates weights from gradients."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self.lr = lr
        """Learning rate of the next step."""
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the weights; ``gradients`` are in the order of the parameters."""
        if self._parameters:
            self._update(list(gradients))

    @property
    def state(self) -> list[Tensor]:
        """Tensors that persist between steps in addition to the weights."""
        return [tensor for moment in self.moments.values() for tensor in moment]

    @property
    def moments(self) -> dict[str, list[Tensor]]:
        """Optimizer tensors of each weight by name of the moment, in the order of the weights."""
        return {}

    def resume(self, steps: int) -> None:  # noqa: B027  only optimizers that count steps override it
        """Continue as if ``steps`` steps had been taken."""

    @abstractmethod
    def _update(self, gradients: list[Tensor]) -> None: ...


class Sgd(Optimizer):
    """Stochastic gradient descent without momentum."""

    def _update(self, gradients: list[Tensor]) -> None:
        torch._foreach_mul_(self._parameters, 1 - self.lr * self._weight_decay)
        torch._foreach_add_(self._parameters, gradients, alpha=-self.lr)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101)."""

    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr, weight_decay)
        self._mean = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._square = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in self._parameters[:1]]

    @property
    def state(self) -> list[Tensor]:
        """Moments of the gradients, and the step counter."""
        return [*super().state, *self._steps]

    @property
    def moments(self) -> dict[str, list[Tensor]]:
        """Running means of the gradients and of the squared gradients."""
        return {"mean": self._mean, "square": self._square}

    def resume(self, steps: int) -> None:
        """Continue as if ``steps`` steps had been taken."""
        torch._foreach_zero_(self._steps)
        torch._foreach_add_(self._steps, steps)

    def _update(self, gradients: list[Tensor]) -> None:
        """Update all weights with one fused kernel, six times as fast as separate operations."""
        torch._foreach_add_(self._steps, 1)
        torch._fused_adamw_(
            self._parameters,
            gradients,
            self._mean,
            self._square,
            [],
            self._steps * len(self._parameters),
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self._weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW, "sgd": Sgd}
