"""AdamW and SGD over many tensors at once.

torch.optim would do, but its first optimizer imports the whole of torch.compile only to stay out
of it: 800 modules and 1.7 s of computing in every process. The tests hold these against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Optimizer(ABC):
    """Updates weights from gradients; the weight decay is decoupled from both."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self._lr = lr
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the weights; ``gradients`` are in their order."""
        if self._parameters:
            self._follow(list(gradients))

    @property
    def state(self) -> list[Tensor]:
        """What it keeps from step to step besides the weights."""
        return [tensor for moment in self.moments.values() for tensor in moment]

    @property
    def moments(self) -> dict[str, list[Tensor]]:
        """What it keeps of each weight from step to step, by name, in the order of the weights."""
        return {}

    def resume(self, steps: int) -> None:  # noqa: B027  most count no steps
        """Go on after ``steps`` steps."""

    @abstractmethod
    def _follow(self, gradients: list[Tensor]) -> None: ...


class Sgd(Optimizer):
    """Plain gradient descent."""

    def _follow(self, gradients: list[Tensor]) -> None:
        torch._foreach_mul_(self._parameters, 1 - self._lr * self._weight_decay)
        torch._foreach_add_(self._parameters, gradients, alpha=-self._lr)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), betas as usual."""

    mean_kept, square_kept, eps = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr, weight_decay)
        self._mean = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._square = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in self._parameters[:1]]

    @property
    def state(self) -> list[Tensor]:
        return [*super().state, *self._steps]

    @property
    def moments(self) -> dict[str, list[Tensor]]:
        return {"mean": self._mean, "square": self._square}

    def resume(self, steps: int) -> None:
        torch._foreach_zero_(self._steps)
        torch._foreach_add_(self._steps, steps)

    def _follow(self, gradients: list[Tensor]) -> None:
        """One kernel touches each number once, where one operation after the other takes six times as long."""
        torch._foreach_add_(self._steps, 1)
        torch._fused_adamw_(
            self._parameters,
            gradients,
            self._mean,
            self._square,
            [],
            self._steps * len(self._parameters),
            lr=self._lr,
            beta1=self.mean_kept,
            beta2=self.square_kept,
            weight_decay=self._weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW, "sgd": Sgd}
