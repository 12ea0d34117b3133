"""The end of a step: gradients reduced, clipped, and the weights updated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from meshwave.engine.runtime.communication.communicator import Communicator, PendingTensor
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS

BUCKET = 2**23  # numbers that are reduced in one message
Watch = Callable[[Mapping[str, Tensor]], None]
Members = tuple[int, ...]
Sharers = Callable[[int, nn.Parameter], tuple[Members, int]]
"""Of a weight of a stage: the processes that sum its gradient, and the one that counts it in the norm."""


class Training(Protocol):
    """What the update reads of the ``training`` section of a design."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float | None: ...


class Update:
    """Reduces the gradients of the stages of a rank and updates their weights."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        sharers: Sharers,
        process: int,
        communicator: Communicator,
        training: Training,
        watch: Watch | None = None,
    ) -> None:
        """``sharers`` says which processes hold, and so sum the gradients of, a weight of a stage.

        ``watch`` is shown the reduced gradients, before clipping, under their names in the whole model.
        """
        self._shared = {stage: _by_sharers(stage, module, sharers) for stage, module in stages.items()}
        self._named = [pair for module in stages.values() for pair in module.named_parameters()]
        self._counted = [
            parameter
            for shared in self._shared.values()
            for weights in shared.values()
            for parameter, first in weights
            if first == process
        ]
        self._communicator = communicator
        self._clip_norm = training.clip_norm
        self._watch = watch
        self._parameters = [parameter for _, parameter in self._named]
        self._optimizer = OPTIMIZERS[training.optimizer](self._parameters, training.lr, training.weight_decay)
        self._reducing: list[tuple[int, list[nn.Parameter], PendingTensor]] = []
        self.square = torch.zeros((), dtype=torch.float64)  # this process's share of the squared norm

    @property
    def state(self) -> list[Tensor]:
        """What the optimizer keeps from step to step."""
        return self._optimizer.state

    def named_moments(self) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
        """Yield what the optimizer keeps of each weight: its name in the whole training state, the weight, the tensor."""
        for moment, tensors in self._optimizer.moments.items():
            for (name, parameter), tensor in zip(self._named, tensors, strict=True):
                yield f"{moment}/{name}", parameter, tensor

    def resume(self, steps: int) -> None:
        """Let the optimizer go on after ``steps`` steps."""
        self._optimizer.resume(steps)

    def reduce(self, stage: int) -> None:
        """Start to sum the gradients of ``stage`` over all who hold it."""
        for members, weights in self._shared[stage].items():
            for bucket in _buckets([parameter for parameter, _ in weights]):
                flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
                self._reducing.append((stage, bucket, self._communicator.reduce(stage, members, flat)))

    def collect(self) -> dict[int, PendingTensor]:
        """Wait for what the others have to say; return the last reduction of each stage."""
        for _, bucket, reduction in self._reducing:
            pieces = torch.split(reduction.wait(), [parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
        last = {stage: reduction for stage, _, reduction in self._reducing}
        self._reducing.clear()
        self.square = self._own_square()
        if self._clip_norm is not None:
            self._norm = self._communicator.total([self.square])[0].sqrt()
        return last

    def apply(self) -> None:
        """Clip, update the weights, and forget the gradients."""
        if self._watch is not None:
            self._watch({name: _gradient(parameter) for name, parameter in self._named})
        gradients = [_gradient(parameter) for parameter in self._parameters]
        if self._clip_norm is not None and gradients:
            scale = (self._clip_norm / (self._norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
            torch._foreach_mul_(gradients, scale.to(gradients[0]))
        self._optimizer.step(gradients)
        for parameter in self._parameters:
            parameter.grad = None

    def _own_square(self) -> Tensor:
        return torch.nn.utils.get_total_norm(map(_gradient, self._counted)).double() ** 2


def _by_sharers(stage: int, module: nn.Module, sharers: Sharers) -> dict[Members, list[tuple[nn.Parameter, int]]]:
    """The weights of a stage by who shares them, each with the process that counts it."""
    found: dict[Members, list[tuple[nn.Parameter, int]]] = {}
    for parameter in module.parameters():
        members, first = sharers(stage, parameter)
        found.setdefault(members, []).append((parameter, first))
    return dict(sorted(found.items()))  # in one order for all, whoever else each shares with


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient, zero where no microbatch came by (a replica with less than its share)."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and size + parameter.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket
