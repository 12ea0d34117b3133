"""The end of a step: gradients reduced, clipped, and the weights updated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.runtime.wire import Pending, Wire

BUCKET = 2**23  # numbers that are reduced in one message
Watch = Callable[[Mapping[str, Tensor]], None]


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


def make_optimizer(training: Training, parameters: Collection[nn.Parameter]) -> torch.optim.Optimizer:
    _leave_the_compiler_out()
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    return kind(parameters, lr=training.lr, weight_decay=training.weight_decay)


def _leave_the_compiler_out() -> None:
    """Spare every process the import of torch.compile: 800 modules and 1.7 s of computing.

    The first optimizer imports it for nothing but to exempt two of its methods from it. torch
    keeps the exempted method under this name; a torch that keeps it elsewhere imports as before.
    """
    for method in (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad):
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            setattr(plain, "__dynamo_disable", plain)  # noqa: B010 - the two underscores would be mangled in a class


class Update:
    """Reduces the gradients of the stages of a rank and updates their weights."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        counted: Collection[int],
        wire: Wire,
        training: Training,
        watch: Watch | None = None,
    ) -> None:
        """``counted`` are the stages whose share of the gradient norm this process adds.

        Every stage is counted by one of its holders. ``watch`` is shown the reduced gradients,
        before clipping, under their names in the whole model.
        """
        self._stages = stages
        self._counted = counted
        self._wire = wire
        self._clip_norm = training.clip_norm
        self._watch = watch
        parameters = [p for stage in stages.values() for p in stage.parameters()]
        self._optimizer = make_optimizer(training, parameters) if parameters else None
        self._reducing: list[tuple[int, list[nn.Parameter], Pending]] = []
        self.square = torch.zeros((), dtype=torch.float64)  # this process's share of the squared norm

    def reduce(self, stage: int) -> None:
        """Start to sum the gradients of ``stage`` over all who hold it."""
        for bucket in _buckets(list(self._stages[stage].parameters())):
            flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
            self._reducing.append((stage, bucket, self._wire.reduce(stage, flat)))

    def collect(self) -> dict[int, Pending]:
        """Wait for what the others have to say; return the last reduction of each stage."""
        for _, bucket, reduction in self._reducing:
            pieces = reduction.wait().split([parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
        last = {stage: reduction for stage, _, reduction in self._reducing}
        self._reducing.clear()
        self.square = self._own_square()
        if self._clip_norm is not None:
            self._norm = self._wire.total([self.square])[0].sqrt()
        return last

    def apply(self) -> None:
        """Clip, update the weights, and forget the gradients."""
        if self._watch is not None:
            self._watch(dict(self._named_gradients()))
        if self._clip_norm is not None:
            scale = (self._clip_norm / (self._norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
            for _, gradient in self._named_gradients():
                gradient.mul_(scale.to(gradient))
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def _own_square(self) -> Tensor:
        gradients = [gradient for _, gradient in self._named_gradients(self._counted)]
        return torch.nn.utils.get_total_norm(gradients).double() ** 2

    def _named_gradients(self, stages: Collection[int] | None = None) -> Iterator[tuple[str, Tensor]]:
        for stage, module in self._stages.items():
            if stages is None or stage in stages:
                for name, parameter in module.named_parameters():
                    yield name, _gradient(parameter)


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
