"""Pre-norm transformer in parts, so that a process builds only its own stages."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from meshwave.engine.document.model import IGNORED, LanguageModel
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.stages import FIRST_LAYER, StageBuilder
from meshwave.engine.runtime.modules.deferred_gradients import EmbeddingTable, Norm
from meshwave.engine.runtime.modules.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    VocabularyTable,
    parallel_cross_entropy,
)


class Embedding(nn.Module):
    """Embedding of tokens plus that of learned positions."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.token = VocabularyTable(shape.vocab, shape.hidden, group)
        self.position = EmbeddingTable(shape.sequence, shape.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``[batch, sequence, hidden]`` of ``tokens [batch, sequence]``."""
        embedded: Tensor = self.token(tokens) + self.position.first_rows(tokens.shape[1])
        return embedded


class Attention(nn.Module):
    """Self-attention; each process of the group has its own heads."""

    def __init__(self, shape: LanguageModel, *, causal: bool, group: Group = ALONE) -> None:
        super().__init__()
        self.heads, self.causal = shape.heads // group.size, causal
        self.qkv = ColumnLinear(shape.hidden, 3 * shape.hidden, group, pieces=3)
        self.out = RowLinear(shape.hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, sequence, hidden]`` of ``x``, which has the same shape."""
        batch, sequence, _ = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        values = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(values.transpose(1, 2).reshape(batch, sequence, -1))
        return out


class Layer(nn.Module):
    """Attention, then a feed-forward block or experts, each with a norm before it and a residual connection."""

    def __init__(
        self, shape: LanguageModel, *, causal: bool, group: Group = ALONE, experts: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.is_local = experts is None and group.size == 1  # does not communicate
        self.attention_norm = Norm(shape.hidden)
        self.attention = Attention(shape, causal=causal, group=group)
        self.ffn_norm = Norm(shape.hidden)
        self.experts = experts
        if experts is None:
            self.ffn_in = ColumnLinear(shape.hidden, shape.ffn_hidden, group)
            self.ffn_out = RowLinear(shape.ffn_hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[batch, sequence, hidden]`` of ``x``, which has the same shape."""
        x = x + self.attention(self.attention_norm(x))
        normed = self.ffn_norm(x)
        update: Tensor = self.ffn_out(F.gelu(self.ffn_in(normed))) if self.experts is None else self.experts(normed)
        return x + update


class Head(nn.Module):
    """Final norm, projection to the vocabulary, and mean loss of a microbatch."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden)
        self.project = ColumnLinear(shape.hidden, shape.vocab, group, bias=False)
        self.group, self.own = group, group.part(shape.vocab)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of ``x [batch, sequence, hidden]`` for ``targets [batch, sequence]``."""
        return self.loss(self.logits(x), targets)

    def logits(self, x: Tensor) -> Tensor:
        """Return ``[batch, sequence, vocabulary / group size]``, this process's columns of the vocabulary."""
        logits: Tensor = self.project(self.norm(x))
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of this process's logits."""
        return parallel_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.own, self.group, IGNORED)


class Transformer(StageBuilder):
    """Builds language models of equal layers."""

    shape: LanguageModel

    def make_embedding(self) -> nn.Module:
        """Make the embedding."""
        return Embedding(self.shape, self.group)

    def make_layer(self, number: int) -> nn.Module:
        """Make layer ``number``, with experts if the model has them there."""
        moe = self.shape.moe
        has_experts = moe is not None and number in moe.blocks(self.shape.layers)
        assert not has_experts or self.experts is not None, "a model with experts needs a factory of them"
        experts = self.experts(FIRST_LAYER + number) if has_experts and self.experts else None
        return Layer(self.shape, causal=self.shape.causal, group=self.group, experts=experts)

    def make_head(self) -> nn.Module:
        """Make the head."""
        return Head(self.shape, self.group)

    def weight_std(self, name: str, weight: Tensor) -> float:
        """Return 0.02 as in GPT-2, less for what is added to the residual stream."""
        return 0.02 / (2 * self.shape.layers) ** 0.5 if name.endswith("out.weight") else 0.02
