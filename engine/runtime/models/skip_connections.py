"""A transformer with long skip connections between its blocks (U-ViT: Bao et al., arXiv:2209.12152, CVPR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshwave.engine.lowering.transfers import Skip, between_stages
from meshwave.engine.runtime.models.stages import Stage
from meshwave.engine.runtime.models.transformer import Layer, Transformer
from meshwave.engine.runtime.modules.deferred_gradients import Linear

Blocks = list[int]


class JoiningLayer(Layer):
    """A layer that first joins what comes in with what a skip connection brings: side by side, then projected to
    one width. All tensor-parallel processes do that alike."""

    def __init__(self, shape: Any, **how: Any) -> None:
        super().__init__(shape, **how)
        self.join = Linear(2 * shape.hidden, shape.hidden)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        assert skip is not None, "a layer that a skip connection ends in"
        return super().forward(self.join(torch.cat([x, skip], -1)))


class SkippingStage(Stage):
    """A stage of a model with skip connections.

    What it hands to the next stage, ``[batch, sequence, (1 + n) hidden]``, has the ``n`` tensors that skip to that
    one beside its output. What skips further is handed on apart, ``[batch, sequence, n hidden]`` for each stage
    that takes some.
    """

    def __init__(
        self,
        embedding: nn.Module | None,
        layers: dict[int, nn.Module],
        head: nn.Module | None,
        stage: int,
        skips: Sequence[Skip],
        between: Mapping[tuple[int, int], Sequence[Skip]],
    ) -> None:
        """``skips`` are those of blocks, ``between`` the same by the stages that they lead from and to."""
        super().__init__(embedding, layers, head)
        self._source = {target: source for source, target in skips if target in layers}
        came = {source: [block for block, _ in between[source, to]] for source, to in between if to == stage}
        goes = {to: [block for block, _ in between[source, to]] for source, to in between if source == stage}
        self._came_along, self._goes_along = came.pop(stage - 1, []), goes.pop(stage + 1, [])
        self._came, self._goes = came, goes
        self.takes, self.gives = tuple(came), tuple(goes)

    def forward(  # type: ignore[override]
        self, x: Tensor, targets: Tensor | None = None, skips: Sequence[Tensor] = ()
    ) -> Tensor | tuple[Tensor, ...]:
        x, held = _taken_apart(x, self._came_along)
        for blocks, message in zip(self._came.values(), skips, strict=True):
            held |= _named(message, blocks)
        x = self.embedded(x)
        for name, layer in self.layers.items():
            source = self._source.get(int(name))
            x = layer(x) if source is None else layer(x, held[source])
            held[int(name)] = x
        if self.head is not None:
            loss: Tensor = self.head(x, targets)
            return loss
        onward = _side_by_side([x, *(held[block] for block in self._goes_along)])
        return onward, *(_side_by_side([held[block] for block in blocks]) for blocks in self._goes.values())


def _taken_apart(x: Tensor, blocks: Blocks) -> tuple[Tensor, dict[int, Tensor]]:
    """What the stage before made, and what came with it of earlier blocks."""
    if not blocks:
        return x, {}
    width = x.shape[-1] // (1 + len(blocks))
    return x[..., :width], _named(x[..., width:], blocks)


def _named(message: Tensor, blocks: Blocks) -> dict[int, Tensor]:
    return dict(zip(blocks, message.chunk(len(blocks), -1), strict=True))


def _side_by_side(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors, -1) if len(tensors) > 1 else tensors[0]


class SkippingTransformer(Transformer):
    """Equal layers with skip connections, each of which ends in a layer that joins."""

    def layer(self, number: int) -> nn.Module:
        if all(number != target for _, target in self.shape.skips):
            return super().layer(number)
        return JoiningLayer(self.shape, causal=self.shape.causal, group=self.group)

    def stage(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        parts = self.parts(layers_per_stage, stage, seed, dtype, device)
        skips = self.shape.skips
        return SkippingStage(*parts, stage, skips, between_stages(skips, layers_per_stage))
