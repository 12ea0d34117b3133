"""What a rank computes: forward and backward of a stage, on one microbatch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Variable

from meshwave.engine.runtime.models import Stage
from meshwave.engine.runtime.modules.deferred_gradients import (
    DeferrableModule,
    DeferredGradient,
    GradientQueue,
    compute_deferred,
)

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}  # of the weights
MESSAGE_DTYPES = {**DTYPES, "bf16": torch.bfloat16}  # of what passes between stages


Tensors = tuple[Tensor, ...]


class Saved(NamedTuple):
    """What a forward leaves for its backward: what went in, and what came out with its graph.

    A stage that is recomputed keeps no graph: ``y`` is then no part of what is saved, and ``given`` without one.
    """

    x: Tensor
    targets: Tensor | None
    y: Tensor | None
    skips: Tensors = ()  # what came in from stages before the one before
    given: Tensors = ()  # what came out for stages after the next


class LocalStage:
    """A stage with the arithmetic of its precision.

    ``bf16`` computes under autocast from float32 weights, which the optimizer updates. All
    microbatches of a step share one copy of the weights in bf16, made when the first needs it;
    each adds its gradient in float32 (Micikevicius et al., arXiv:1710.03740).
    """

    def __init__(
        self,
        module: Stage,
        precision: str,
        device: torch.device,
        loss_scale: float,
        *,
        split: bool = False,
        recomputed: bool = False,
        compiled: bool = False,
    ) -> None:
        """``loss_scale`` is 1 over the microbatches of the global batch: losses are averaged.

        A ``split`` stage can run its backward in two halves; see :mod:`meshwave.engine.runtime.modules.deferred_gradients`.
        A ``recomputed`` one keeps its input alone and runs its forward again before its backward
        (Chen et al., arXiv:1604.06174). The blocks of a ``compiled`` one are compiled, unless it is split:
        torch.compile knows no gradient that is put off.
        """
        self.recomputed = recomputed
        self._module = module
        self._loss_scale = loss_scale
        self._mixed = precision == "bf16"
        self._autocast = torch.autocast(device.type, torch.bfloat16) if self._mixed else None
        self._weighted = [part for part in module.modules() if isinstance(part, DeferrableModule)]
        self._is_cast = not self._mixed
        self._later = GradientQueue() if split else None
        for part in module.modules():
            if isinstance(part, DeferrableModule):
                part.gradient_queue = self._later
            elif split and next(part.parameters(recurse=False), None) is not None:
                raise TypeError(f"a {type(part).__name__} cannot put off the gradients of its weights")
        self.compiled = module.compile_blocks() if compiled and not split else 0  # of its blocks
        self.skip_sources, self.skip_targets = (
            module.skip_sources,
            module.skip_targets,
        )  # of what skips stages, from and to which
        self._is_first = module.is_first  # whose input is data, whose gradient nobody wants

    def forward(self, x: Tensor, targets: Tensor | None, skips: Tensors = ()) -> tuple[Tensor, Saved]:
        """The output without its graph, or the loss of the last stage; and what the backward needs.

        ``x`` is the stage's to keep, and so are ``skips``, of its ``skip_sources``. What it sends to its
        ``skip_targets`` is found in what is saved.
        """
        if self.recomputed:
            with torch.no_grad():
                y, *given = self._run(x, targets, skips)
                return y, Saved(x, targets, None, skips, tuple(given))
        y, *given = self._traced(x, targets, skips)
        return y.detach(), Saved(x, None, y, skips, tuple(given))

    def backward(self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()) -> Tensor | None:
        """Add to the weights' gradients; return that of the input (none of tokens).

        ``gradient`` is that of the output, none where the output is the loss; ``of_given`` are those of what it
        sends to its ``skip_targets``. The gradients of its skips are then those of ``saved.skips``.
        """
        self._pull(saved, gradient, of_given)
        if self._later is not None:
            compute_deferred(self._later.take())
        return saved.x.grad

    def input_gradient(
        self, saved: Saved, gradient: Tensor | None, of_given: Tensors = ()
    ) -> tuple[Tensor | None, list[DeferredGradient]]:
        """The gradient of the input, and what :func:`compute_deferred` computes the weights' from."""
        assert self._later is not None, "a stage whose backward is split"
        self._pull(saved, gradient, of_given)
        return saved.x.grad, self._later.take()

    def forget(self) -> None:
        """The weights have changed: let go of their copies."""
        if self._mixed:
            self._is_cast = False
            for part in self._weighted:
                part.drop_cast_weights()

    def _traced(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensors:
        if not self._is_first:
            for given in (x, *skips):
                given.requires_grad = True
        return self._run(x, targets, skips)

    def _run(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensors:
        """The output, or the loss; and what the stage gives to others than the next."""
        if self._autocast is None:
            found = self._forward(x, targets, skips)
        else:
            if not self._is_cast:
                for part in self._weighted:
                    part.cast_weights(torch.bfloat16)
                self._is_cast = True
            with self._autocast:
                found = self._forward(x, targets, skips)
        return found if isinstance(found, tuple) else (found,)

    def _forward(self, x: Tensor, targets: Tensor | None, skips: Tensors) -> Tensor | Tensors:
        return self._module(x, targets, skips) if skips else self._module(x, targets)  # type: ignore[no-any-return]

    def _pull(self, saved: Saved, gradient: Tensor | None, of_given: Tensors) -> None:
        """Run autograd from the output; the loss is where gradients start.

        ``torch.autograd.backward`` does the same after it has compared the shapes, for which it
        imports sympy: 0.8 s in every process, and more at every call than all of ours.
        """
        made = (saved.y, *saved.given) if saved.y is not None else self._traced(saved.x, saved.targets, saved.skips)
        if gradient is None:
            gradient = torch.full_like(made[0], self._loss_scale)
        # keep no graph, make none of the gradients, for all leaves, which may be unreachable, adding to them
        Variable._execution_engine.run_backward(made, (gradient, *of_given), False, False, (), True, True)
