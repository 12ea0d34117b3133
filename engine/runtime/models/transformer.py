"""A pre-norm transformer in parts, so that a process builds and holds only its own stages."""

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
    """Tokens ``[batch, sequence]`` to ``[batch, sequence, hidden]``: token plus learned position."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.token = VocabularyTable(shape.vocab, shape.hidden, group)
        self.position = EmbeddingTable(shape.sequence, shape.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.token(tokens) + self.position.first_rows(tokens.shape[1])
        return embedded


class Attention(nn.Module):
    """Self-attention with the own heads of the group's."""

    def __init__(self, shape: LanguageModel, *, causal: bool, group: Group = ALONE) -> None:
        super().__init__()
        self.heads, self.causal = shape.heads // group.size, causal
        self.qkv = ColumnLinear(shape.hidden, 3 * shape.hidden, group, pieces=3)
        self.out = RowLinear(shape.hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return out


class Layer(nn.Module):
    """Attention, then a feed-forward block or experts, each normed before and added to what came in."""

    def __init__(
        self, shape: LanguageModel, *, causal: bool, group: Group = ALONE, experts: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.is_plain = experts is None and group.size == 1  # nothing is exchanged inside
        self.attention_norm = Norm(shape.hidden)
        self.attention = Attention(shape, causal=causal, group=group)
        self.ffn_norm = Norm(shape.hidden)
        self.experts = experts
        if experts is None:
            self.ffn_in = ColumnLinear(shape.hidden, shape.ffn_hidden, group)
            self.ffn_out = RowLinear(shape.ffn_hidden, shape.hidden, group)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        normed = self.ffn_norm(x)
        more: Tensor = self.ffn_out(F.gelu(self.ffn_in(normed))) if self.experts is None else self.experts(normed)
        return x + more


class Head(nn.Module):
    """The last norm, the projection to the vocabulary, and the mean loss of a microbatch."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden)
        self.project = ColumnLinear(shape.hidden, shape.vocab, group, bias=False)
        self.group, self.own = group, group.part(shape.vocab)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.logits(x), targets)

    def logits(self, x: Tensor) -> Tensor:
        """``[batch, sequence, vocab]``, the own columns of the vocabulary"""
        logits: Tensor = self.project(self.norm(x))
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return parallel_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.own, self.group, IGNORED)


class Transformer(StageBuilder):
    """A language model of equal layers."""

    shape: LanguageModel

    def embedding(self) -> nn.Module:
        return Embedding(self.shape, self.group)

    def layer(self, number: int) -> nn.Module:
        moe = self.shape.moe
        has_experts = moe is not None and number in moe.blocks(self.shape.layers)
        assert not has_experts or self.experts is not None, "a model with experts is told how to make them"
        experts = self.experts(FIRST_LAYER + number) if has_experts and self.experts else None
        return Layer(self.shape, causal=self.shape.causal, group=self.group, experts=experts)

    def head(self) -> nn.Module:
        return Head(self.shape, self.group)

    def deviation(self, name: str, weight: Tensor) -> float:
        """GPT-2's initialisation: normal of 0.02, what is added to the residual stream scaled down."""
        return 0.02 / (2 * self.shape.layers) ** 0.5 if name.endswith("out.weight") else 0.02
