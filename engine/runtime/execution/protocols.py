"""Interfaces between an executor and its stages, its messages, and the update of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from meshwave.engine.program.action import Action
from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.execution.stages import Saved, Tensors
from meshwave.engine.runtime.modules.deferred_gradients import DeferredGradient


class ComputeStage(Protocol):
    """Interface of a stage: a :class:`~meshwave.engine.runtime.execution.stages.LocalStage`, or a stage of a dry run."""

    recomputes: bool
    skip_sources: tuple[int, ...]
    skip_targets: tuple[int, ...]
    on_final_gradients: Callable[[int], None] | None
    """Function that is called with the number of each bucket whose gradients become final inside a computation."""

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        """Compute the output of a microbatch, and return it with the tensors that its backward needs."""

    def backward(self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()) -> Tensor | None:
        """Compute all gradients of a microbatch, and return the gradient of the input."""

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        """Compute only the gradient of the input, and return it with the deferred weight gradients."""

    def weight_gradient(self, deferred: list[DeferredGradient]) -> None:
        """Compute the deferred weight gradients of a microbatch."""

    def unshard_function(self, row: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to gather the weights that other processes own, for the UNSHARD at ``row``."""

    def reshard(self) -> None:
        """Free the weights that other processes own."""

    def drop_cast_weights(self) -> None:
        """Drop the copies of the weights in the compute dtype, because the weights have changed."""


class Messenger(Protocol):
    """Interface for messages, of a :class:`~meshwave.engine.runtime.communication.communicator.Communicator` for example."""

    def send_function(self, producer: Action, rank: int) -> Callable[[Tensor], None]:
        """Return a function that starts to send a tensor to a rank."""

    def receive_function(self, producer: Action, rank: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to receive a tensor from a rank."""

    def flush(self) -> None:
        """Wait until all messages of this step are sent."""


class WeightUpdate(Protocol):
    """Interface for updates, of an :class:`~meshwave.engine.runtime.execution.update.OptimizerUpdate` for example."""

    def start_reduction(self, stage: int, bucket: int = -1) -> None:
        """Start to reduce the gradients of a stage, or of one of its buckets."""

    def collect_gradients(self) -> dict[tuple[int, int], PendingTensor]:
        """Wait for all reductions, and return the last one of each stage and bucket; a whole stage has bucket -1."""

    def apply(self) -> None:
        """Update the weights."""
