"""Forward and backward of a stage on one microbatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from meshwave.engine.runtime.communication.communicator import PendingTensor
from meshwave.engine.runtime.execution.sharded_stages import ShardedStage
from meshwave.engine.runtime.models import Stage
from meshwave.engine.runtime.modules.activation_offload import ActivationOffload
from meshwave.engine.runtime.modules.deferred_gradients import (
    DeferrableModule,
    DeferredGradient,
    GradientQueue,
    compute_deferred_gradients,
)

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32, "pure_bf16": torch.bfloat16}
"""Dtype of the weights by precision."""
MESSAGE_DTYPES = {**DTYPES, "bf16": torch.bfloat16}
"""Dtype of messages between stages by precision."""
Tensors = tuple[Tensor, ...]


class Saved(NamedTuple):
    """Tensors that a forward saves for its backward: its inputs, and its outputs with their autograd graph.

    A stage that is recomputed saves no graph: ``y`` is None, and ``skip_outputs`` have no graph.
    """

    x: Tensor
    targets: Tensor | None
    y: Tensor | None
    skips: Tensors = ()  # inputs from skip connections
    skip_outputs: Tensors = ()


def as_tuple(outputs: Tensor | Tensors) -> Tensors:
    """Return one or several outputs as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


class LocalStage:
    """Stage on this process, computed in its precision.

    ``bf16`` computes under autocast from float32 weights, which the optimizer updates. All microbatches of a step share
    one bf16 copy of the weights, which the first microbatch creates; each microbatch adds its gradient in float32
    (Micikevicius et al., arXiv:1710.03740).
    """

    def __init__(
        self,
        module: Stage,
        precision: str,
        device: torch.device,
        loss_scale: float,
        *,
        splits_backward: bool = False,
        recomputes: bool = False,
        compiles: bool = False,
        offload: float = 0.0,
        sharded: ShardedStage | None = None,
        buckets: Sequence[range] = (),
    ) -> None:
        """Prepare a stage.

        Args:
            module: layers of the stage.
            precision: ``fp64``, ``fp32``, ``bf16`` or ``pure_bf16``.
            device: device on which the stage computes.
            loss_scale: 1 / (microbatches of the global batch), so that losses are averaged.
            splits_backward: True to compute input and weight gradients separately; see
                :mod:`meshwave.engine.runtime.modules.deferred_gradients`.
            recomputes: True to save only the input and to run the forward again before the backward (Chen et al.,
                arXiv:1604.06174).
            compiles: True to compile the blocks with torch.compile; ignored if the backward is split, which it does not
                support.
            offload: share of the activations that are moved to host memory between forward and backward.
            sharded: shards the state of the blocks among processes; None if the state is not sharded.
            buckets: blocks of each bucket of gradients, in the order of the backward.
        """
        self._sharded = sharded
        self.recomputes = recomputes
        self._module = module
        self._loss_scale = loss_scale
        self._is_mixed = precision == "bf16"
        self._autocast = torch.autocast(device.type, torch.bfloat16) if self._is_mixed else None
        self._weighted = [part for part in module.modules() if isinstance(part, DeferrableModule)]
        self._has_cast_weights = not self._is_mixed
        self._queue = GradientQueue() if splits_backward else None
        for part in module.modules():
            if isinstance(part, DeferrableModule):
                part.gradient_queue = self._queue
            elif splits_backward and next(part.parameters(recurse=False), None) is not None:
                raise TypeError(f"{type(part).__name__} cannot defer the gradients of its weights")
        self.compiled_blocks = module.compile_blocks() if compiles and not splits_backward else 0
        self._offload, self._device = 0.0 if recomputes else offload, device
        self.skip_sources, self.skip_targets = module.skip_sources, module.skip_targets
        self.on_final_gradients: Callable[[int], None] | None = None
        for number, blocks in enumerate(buckets[:-1]):
            self._watch_gradients(module.blocks[blocks.start - 1], number)
        self._is_first = module.is_first  # the input of the first stage is data, which needs no gradient

    @property
    def evaluates(self) -> bool:
        """True if the stage is evaluated instead of trained."""
        return not self._module.training

    @evaluates.setter
    def evaluates(self, evaluates: bool) -> None:
        self._module.training = not evaluates  # that of the blocks remains, so that compiled blocks remain valid

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        """Return the output without its graph (for the last stage the loss), and the tensors for the backward.

        The stage keeps ``x`` and ``skips``, the tensors from its ``skip_sources``. The tensors for its ``skip_targets``
        are part of the saved tensors. While ``evaluates`` is True, no other tensors are saved.
        """
        if self.evaluates or self.recomputes:
            with torch.no_grad():
                y, *skip_outputs = self._run(x, targets, skips)
            if self.evaluates:
                return y, Saved(x.new_empty(0), None, None, (), tuple(skip_outputs))
            return y, Saved(x, targets, None, skips, tuple(skip_outputs))
        y, *skip_outputs = self._run_with_graph(x, targets, skips)
        return y.detach(), Saved(x, None, y, skips, tuple(skip_outputs))

    def backward(self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()) -> Tensor | None:
        """Accumulate the weight gradients, and return the gradient of the input, or None if the input is data.

        The gradients of skip inputs are then in ``saved.skips``.

        Args:
            saved: tensors that the forward saved.
            gradient: gradient of the output; None if the output is the loss.
            skip_gradients: gradients of the tensors for ``skip_targets``.
        """
        self._run_backward(saved, gradient, skip_gradients)
        self.weight_gradient(self._queue.take() if self._queue is not None else [])
        return saved.x.grad

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        """Return the gradient of the input, and the deferred gradients of the weights."""
        assert self._queue is not None, "the backward of the stage is split"
        self._run_backward(saved, gradient, skip_gradients)
        return saved.x.grad, self._queue.take()

    def weight_gradient(self, deferred: list[DeferredGradient]) -> None:
        """Compute the deferred weight gradients of a microbatch and add them to the gradients of the weights."""
        if self._sharded is None:
            compute_deferred_gradients(deferred)
            return
        if deferred:
            self._sharded.gather_for_deferred()
        compute_deferred_gradients(deferred)
        self._sharded.finish_backward()

    def unshard_function(self, row: int) -> Callable[[], PendingTensor]:
        """Return a function that starts to gather the weights that other processes own."""
        assert self._sharded is not None, "only sharded stages are unsharded"
        return self._sharded.start_unshard

    def reshard(self) -> None:
        """Free the weights that other processes own."""
        assert self._sharded is not None, "only sharded stages are resharded"
        self._sharded.reshard()

    def _watch_gradients(self, below: nn.Module, bucket: int) -> None:
        """Report when the gradients of a bucket are final, which is when the backward of the block ``below`` it begins.

        Autograd runs the latest operation that is ready, so that it has run those of all later blocks by then. Gradients
        that are deferred are final when those before them in the queue are computed.
        """

        def report() -> None:
            if self.on_final_gradients is not None:
                self.on_final_gradients(bucket)

        def before_backward(_: Tensor) -> None:
            report() if self._queue is None else self._queue.add(report)

        def after_forward(_module: nn.Module, _inputs: Any, output: Tensor | Tensors) -> None:
            first = next((each for each in as_tuple(output) if each.requires_grad), None)
            if first is not None:
                first.register_hook(before_backward)  # type: ignore[no-untyped-call]

        hook: Callable[..., None] = after_forward
        if self.compiled_blocks:
            hook = torch.compiler.disable(after_forward)  # type: ignore[no-untyped-call]
        below.register_forward_hook(hook)

    def drop_cast_weights(self) -> None:
        """Drop the bf16 copies of the weights, because the weights have changed."""
        if self._is_mixed:
            self._has_cast_weights = False
            for part in self._weighted:
                part.drop_cast_weights()

    def _offload_activations(self, *inputs: Tensor | None) -> AbstractContextManager[Any]:
        """Return the context of a forward that moves activations to host memory; weights and inputs stay on the device."""
        if not self._offload:
            return nullcontext()
        casts = (tensor for part in self._weighted for tensor in part.cast or ())
        resident = (*self._module.parameters(), *self._module.buffers(), *casts, *inputs)
        return ActivationOffload(self._offload, [each for each in resident if each is not None], self._device)

    def _run_with_graph(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensors:
        if not self._is_first:
            for tensor in (x, *skips):
                tensor.requires_grad = True
        return self._run(x, targets, skips)

    def _run(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensors:
        """Return the output, or for the last stage the loss, and the tensors for ``skip_targets``."""
        if not self._has_cast_weights:
            for part in self._weighted:
                part.cast_weights(torch.bfloat16)
            self._has_cast_weights = True
        with self._autocast or nullcontext(), self._offload_activations(x, targets, *skips):
            outputs = self._call_module(x, targets, skips)
        return as_tuple(outputs)

    def _call_module(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensor | Tensors:
        return self._module(x, targets, skips) if skips else self._module(x, targets)  # type: ignore[no-any-return]

    def _run_backward(self, saved: Saved, gradient: Tensor | None, skip_gradients: Tensors) -> None:
        """Run autograd from the outputs; the gradient of a loss is the loss scale.

        It calls the engine directly, because ``torch.autograd.backward`` imports sympy to compare shapes, which takes
        0.8 s in every process and more time per call than all of Meshwave's own code.
        """
        if saved.y is not None:
            outputs = (saved.y, *saved.skip_outputs)
        else:
            outputs = self._run_with_graph(saved.x, saved.targets, saved.skips)
        if gradient is None:
            gradient = torch.full_like(outputs[0], self._loss_scale)
        keep_graph = create_graph = False
        allow_unreachable = accumulate = True
        Variable._execution_engine.run_backward(
            outputs, (gradient, *skip_gradients), keep_graph, create_graph, (), allow_unreachable, accumulate
        )
