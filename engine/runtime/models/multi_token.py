"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): the last layers predict further tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshwave.engine.document.model import IGNORED, LanguageModel
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.stages import Parts, Stage, to_message_dtype
from meshwave.engine.runtime.models.transformer import Head, Layer, Transformer, make_norm
from meshwave.engine.runtime.modules.context_share import ContextShare
from meshwave.engine.runtime.modules.deferred_gradients import Linear
from meshwave.engine.runtime.modules.tensor_parallel import VocabularyTable, mark_partial


class PredictionLayer(Layer):
    """Layer whose input is joined with the embeddings of the next tokens, to predict the tokens after those.

    The projection of both is replicated on all tensor-parallel processes.
    """

    def __init__(self, shape: LanguageModel, *, group: Group = ALONE, **options: Any) -> None:
        super().__init__(shape, group=group, **options)
        self.hidden_norm, self.embedding_norm, self.last_norm = (make_norm(shape, group) for _ in range(3))
        self.join = Linear(2 * shape.hidden, shape.hidden, bias=False)
        mark_partial(self.join, group)

    def forward(self, x: Tensor, embedded: Tensor | None = None) -> Tensor:
        """Return ``[batch, sequence, hidden]`` computed from ``x`` and ``embedded``, which have the same shape."""
        assert embedded is not None, "a layer of multi-token prediction"
        x = super().forward(self.join(torch.cat([self.hidden_norm(x), self.embedding_norm(embedded)], -1)))
        out: Tensor = self.last_norm(x)
        return out


class PredictionHead(Head):
    """Head that shares its projection, and a copy of the embedding table, with the layers of multi-token prediction."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE, share: ContextShare | None = None) -> None:
        super().__init__(shape, group, share)
        self.table = VocabularyTable(shape.vocab, shape.hidden, group)
        self.scale = shape.architecture.embedding_scale

    def tie_weights(self, table: Tensor) -> None:
        """Share the weights of the embedding table."""
        super().tie_weights(table)
        assert isinstance(table, nn.Parameter), "a weight"
        self.table.weight = table

    def forward(self, x: Tensor, targets: Tensor, layers: Sequence[nn.Module] = (), weight: float = 0.0) -> Tensor:
        """Return the mean loss of the microbatch, plus ``weight`` times that of each of ``layers``."""
        assert self.norm is not None, "designs with a post-norm are refused"
        x = self.norm(x)
        loss = self.loss(self.normalized_logits(x), targets)
        for shift, layer in enumerate(layers, 1):
            x = layer(x, self.embed(targets.clamp(min=0)))
            targets = torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], IGNORED)], 1)
            loss = loss + weight * self.loss(self.normalized_logits(x), targets, shift)
        return loss

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings ``[batch, sequence, hidden]`` of ``tokens [batch, sequence]``.

        With context parallelism, only the tokens of this process are returned.
        """
        if self.share is not None:
            tokens = self.share.select_own(tokens, 1)
        return to_message_dtype(self.table(tokens) * self.scale)


class PredictingStage(Stage):
    """Last stage of a model with multi-token prediction.

    In training, its loss is that of the next token plus the weighted mean of the losses of further tokens; otherwise it
    is that of the next token. As in Megatron-LM, a layer of multi-token prediction takes the normalized output of the
    layer before it.
    """

    def __init__(self, parts: Parts, predictions: int, weight: float) -> None:
        """Create a stage from its parts, of which the last ``predictions`` layers predict further tokens."""
        super().__init__(*parts)
        self.weight = weight / predictions
        layers = [*self.layers.values()]
        self.main_layers, self.later_layers = layers[:-predictions], layers[-predictions:]

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss of the microbatch."""
        assert self.head is not None, "the last stage"
        loss: Tensor = self.head(self.forward_body(x), targets, self.later_layers if self.training else (), self.weight)
        return loss


class PredictingTransformer(Transformer):
    """Builder of language models, with or without multi-token prediction."""

    def make_layer(self, number: int) -> nn.Module:
        """Build layer ``number``; the last ones may be layers of multi-token prediction."""
        is_prediction = number >= self.shape.layers - self.shape.architecture.mtp_layers
        return self.make_plain_layer(number, PredictionLayer if is_prediction else Layer)

    def make_head(self) -> nn.Module:
        """Build the head."""
        kind = PredictionHead if self.shape.architecture.mtp_layers else Head
        return kind(self.shape, self.group, self.share)

    def make_stage(self, parts: Parts) -> Stage:
        """Build a stage from its parts."""
        architecture, (_, _, head) = self.shape.architecture, parts
        if head is None or not architecture.mtp_layers:
            return super().make_stage(parts)
        return PredictingStage(parts, architecture.mtp_layers, architecture.mtp_loss_weight)
