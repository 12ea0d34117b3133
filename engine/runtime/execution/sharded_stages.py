"""Stages with sharded state: they reduce-scatter gradients, and gather weights, block by block or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.device.clock import Stamp
from meshwave.engine.runtime.execution.flat_weights import FlatWeights
from meshwave.engine.runtime.models import Stage


class ShardedBlock:
    """Sharded weights of a block: the embedding, a layer, or the head."""

    def __init__(self, weights: list[FlatWeights]) -> None:
        self.weights = weights

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients that have not been reduce-scattered; None for a weight without one."""
        return [gradient for each in self.weights for gradient in each.gradients()]

    def finish_gather(self) -> None:
        """Wait until the weights owned by other processes are gathered."""
        self.start_gather()
        for each in self.weights:
            each.finish_gather()

    def start_gather(self) -> None:
        """Start to gather the weights owned by other processes."""
        for each in self.weights:
            each.start_gather()

    def free(self) -> None:
        """Free the weights owned by other processes."""
        for each in self.weights:
            each.free()

    def accumulate_gradients(self) -> None:
        """Add the gradients of a microbatch to the accumulated gradients of the step."""
        for each in self.weights:
            each.accumulate_gradients()

    def start_reduce_scatter(self) -> None:
        """Start to reduce-scatter the gradients."""
        for each in self.weights:
            each.start_reduce_scatter()


class _Unsharding(PendingTensor):
    """Weights of a stage that are being gathered."""

    def __init__(self, weights: list[FlatWeights]) -> None:
        self._weights, self._last = weights, weights[-1].gathering

    def wait(self) -> Tensor:
        """Wait until all weights are gathered, and return those of the last gather."""
        return [each.finish_gather() for each in self._weights][-1]

    @property
    def arrival(self) -> Stamp | None:
        return None if self._last is None else self._last.arrival


class ShardedStage:
    """Stage whose state is sharded block by block."""

    def __init__(
        self,
        module: Stage,
        weights_of: Callable[[nn.Module], list[FlatWeights]],
        *,
        scatters: bool,
        gathers_blocks: bool,
        accumulates: bool,
    ) -> None:
        """Shard the state of a stage.

        Args:
            module: the stage.
            weights_of: returns the flat weights of a block.
            scatters: True to reduce-scatter the gradients of a block in the backward of each microbatch.
            gathers_blocks: True to gather the weights of a block before its computations and to free them after these.
            accumulates: True if the weights have another dtype than the sum of their gradients.
        """
        parts = module.blocks
        self.blocks = [ShardedBlock(weights_of(part)) for part in parts]
        self._scatters, self._frees = scatters, gathers_blocks
        self._finishes_blocks = scatters or accumulates or gathers_blocks
        for number, part in enumerate(parts):
            if self._finishes_blocks:
                self._register_hooks(number, part)

    @property
    def weights(self) -> list[FlatWeights]:
        """Flat weights of all blocks."""
        return [each for block in self.blocks for each in block.weights]

    def weights_of_blocks(self, numbers: Iterable[int]) -> list[FlatWeights]:
        """Return the flat weights of some blocks."""
        return [each for number in numbers for each in self.blocks[number].weights]

    def start_unshard(self) -> PendingTensor:
        """Start to gather the weights of all blocks in the order of the forward; the result waits for all of them."""
        for block in self.blocks:
            block.start_gather()
        return _Unsharding(self.weights)

    def reshard(self) -> None:
        """Free the weights owned by other processes."""
        for block in self.blocks:
            block.free()

    def gather_for_deferred(self) -> None:
        """Gather all weights before deferred gradients are computed, because some of their kernels read the weights."""
        if self._frees:
            for block in reversed(self.blocks):
                block.finish_gather()

    def finish_backward(self) -> None:
        """Finish the blocks whose gradients were deferred or missing during the backward."""
        if self._finishes_blocks:
            for block in reversed(self.blocks):
                if any(gradient is not None for gradient in block.gradients()):
                    self._finish_block(block)
                elif self._frees:
                    block.free()

    def _register_hooks(self, number: int, part: nn.Module) -> None:
        """Gather and free the weights of a block around its computations, and reduce-scatter its gradients after them."""
        block = self.blocks[number]
        for parameter in part.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self._finish_block_if_done(block))  # type: ignore[no-untyped-call]
        part.register_forward_pre_hook(partial(self._before_forward, number))
        part.register_forward_hook(partial(self._after_forward, number))

    def _before_forward(self, number: int, *_: Any) -> None:
        if self._frees:
            self.blocks[number].finish_gather()
            if number + 1 < len(self.blocks):
                self.blocks[number + 1].start_gather()

    def _after_forward(
        self, number: int, _module: nn.Module, _inputs: Any, output: Tensor | tuple[Tensor, ...]
    ) -> None:
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._before_backward, number))  # type: ignore[no-untyped-call]
        if self._frees:
            self.blocks[number].free()

    def _before_backward(self, number: int, _gradient: Tensor) -> None:
        if self._frees:
            self.blocks[number].finish_gather()
            if number:
                self.blocks[number - 1].start_gather()

    def _finish_block_if_done(self, block: ShardedBlock) -> None:
        """Finish a block when all its weights have gradients, since none of its operations is then left to run."""
        if all(gradient is not None for gradient in block.gradients()):
            self._finish_block(block)

    def _finish_block(self, block: ShardedBlock) -> None:
        if self._scatters:
            block.start_reduce_scatter()
        else:
            block.accumulate_gradients()
        if self._frees:
            block.free()
