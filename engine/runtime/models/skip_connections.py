"""Stages and a transformer with skip connections (U-ViT: Bao et al., arXiv:2209.12152, CVPR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshwave.engine.lowering.transfers import Skip, skips_by_stages
from meshwave.engine.runtime.models.stages import Stage
from meshwave.engine.runtime.models.transformer import Layer, Transformer
from meshwave.engine.runtime.modules.deferred_gradients import Linear
from meshwave.engine.runtime.modules.tensor_parallel import mark_partial

Blocks = list[int]


class JoiningLayer(Layer):
    """Layer that first concatenates its input with a skip tensor and projects the result to the hidden size.

    The projection is replicated on all tensor-parallel processes.
    """

    def __init__(self, shape: Any, **options: Any) -> None:
        super().__init__(shape, **options)
        self.join = Linear(2 * shape.hidden, shape.hidden)
        mark_partial(self.join, self.group)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """Return ``[batch, sequence, hidden]`` computed from ``x`` and ``skip``, which have the same shape."""
        assert skip is not None, "a layer that a skip connection ends in"
        return super().forward(self.join(torch.cat([x, skip], -1)))


class SkippingStage(Stage):
    """Stage of a model with skip connections.

    The message to the next stage, ``[batch, sequence, (1 + n) hidden]``, contains the output and the ``n`` tensors that
    skip to that stage. Tensors that skip further are sent in separate messages, ``[batch, sequence, n hidden]`` to each
    stage that receives ``n`` of them.
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
        """Create a stage from its parts.

        Args:
            embedding: embedding of the first stage; None for other stages.
            layers: layers by number.
            head: head of the last stage; None for other stages.
            stage: number of this stage.
            skips: skip connections of the model, as pairs of blocks.
            between: skip connections between each two stages.
        """
        super().__init__(embedding, layers, head)
        self._source = {target: source for source, target in skips if target in layers}
        received = {source: [block for block, _ in between[source, to]] for source, to in between if to == stage}
        sent = {to: [block for block, _ in between[source, to]] for source, to in between if source == stage}
        self._received_with_x, self._sent_with_y = received.pop(stage - 1, []), sent.pop(stage + 1, [])
        self._received, self._sent = received, sent
        self.skip_sources, self.skip_targets = tuple(received), tuple(sent)

    def forward(  # type: ignore[override]
        self, x: Tensor, targets: Tensor | None = None, skips: Sequence[Tensor] = ()
    ) -> Tensor | tuple[Tensor, ...]:
        """Compute the stage.

        Args:
            x: message from the previous stage, or the model's input.
            targets: targets of the loss; only for the last stage.
            skips: messages from ``skip_sources``.

        Returns:
            The loss, or the message to the next stage and the messages to ``skip_targets``.
        """
        x, by_block = _split_message(x, self._received_with_x)
        for blocks, message in zip(self._received.values(), skips, strict=True):
            by_block |= _split_skips(message, blocks)
        x = self.embed(x)
        for name, layer in self.layers.items():
            source = self._source.get(int(name))
            x = layer(x) if source is None else layer(x, by_block[source])
            by_block[int(name)] = x
        if self.head is not None:
            loss: Tensor = self.head(x, targets)
            return loss
        y = _concatenate([x, *(by_block[block] for block in self._sent_with_y)])
        return y, *(_concatenate([by_block[block] for block in blocks]) for blocks in self._sent.values())


def _split_message(x: Tensor, blocks: Blocks) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the output of the previous stage, and the tensors of earlier blocks in the same message, by block."""
    if not blocks:
        return x, {}
    width = x.shape[-1] // (1 + len(blocks))
    return x[..., :width], _split_skips(x[..., width:], blocks)


def _split_skips(message: Tensor, blocks: Blocks) -> dict[int, Tensor]:
    return dict(zip(blocks, message.chunk(len(blocks), -1), strict=True))


def _concatenate(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors, -1) if len(tensors) > 1 else tensors[0]


class SkippingTransformer(Transformer):
    """Builder of language models whose layers are equal, except that each skip connection ends in a joining layer."""

    def make_layer(self, number: int) -> nn.Module:
        """Build layer ``number``, a joining layer if a skip connection ends there."""
        if all(number != target for _, target in self.shape.skips):
            return super().make_layer(number)
        return JoiningLayer(self.shape, causal=self.shape.causal, group=self.group, share=self.share)

    def build(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage; see :func:`meshwave.engine.runtime.models.build_stage`."""
        parts = self.make_parts(layers_per_stage, stage, seed, dtype, device)
        skips = self.shape.skips
        return SkippingStage(*parts, stage, skips, skips_by_stages(skips, layers_per_stage))
