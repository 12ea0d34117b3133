"""Transformer language model in separate parts, so that a process builds only its own stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwave.engine.document.model import IGNORED, LanguageModel
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.stages import EMBEDDING, FIRST_LAYER, Stage, StageBuilder, initialise_weights
from meshwave.engine.runtime.modules.deferred_gradients import EmbeddingTable, Norm
from meshwave.engine.runtime.modules.rms_norm import RmsNorm
from meshwave.engine.runtime.modules.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    VocabularyTable,
    mark_partial,
    parallel_cross_entropy,
)


class Embedding(nn.Module):
    """Embedding of tokens, plus learned position embeddings if the architecture has them."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.token = VocabularyTable(shape.vocab, shape.hidden, group)
        positions = shape.architecture.positions
        is_learned = positions.kind == "learned"
        self.position = EmbeddingTable(positions.table or shape.sequence, shape.hidden) if is_learned else None
        self.group = group
        if self.position is not None:
            mark_partial(self.position, group)
        self.scale = shape.architecture.embedding_scale

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings ``[batch, sequence, hidden]`` of ``tokens [batch, sequence]``.

        With sequence parallelism, only the tokens of this process are returned.
        """
        embedded: Tensor = self.token(tokens)
        if self.scale != 1:
            embedded = embedded * self.scale
        if self.position is None:
            return embedded
        rows = self.position.first_rows(tokens.shape[1])
        if self.group.divides_tokens:
            own = self.group.own_range(tokens.shape[1])
            rows = rows[own.start : own.stop]
        return embedded + rows


def make_norm(shape: LanguageModel, group: Group = ALONE) -> nn.Module:
    """Build a norm layer of the residual stream."""
    kind = shape.architecture.norm
    norm = RmsNorm(shape.hidden, kind.eps) if kind.kind == "rmsnorm" else Norm(shape.hidden, eps=kind.eps)
    mark_partial(norm, group)
    return norm


@lru_cache(maxsize=16)
def rotary_cosines_and_sines(
    length: int, dims: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines ``[length, dims]`` of rotary position embeddings (Su et al., arXiv:2104.09864).

    Dimension ``i`` is rotated with dimension ``i + dims / 2``, as in GPT-NeoX and Llama.
    """
    frequencies = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def apply_rotary_embedding(x: Tensor, dims: int, theta: float) -> Tensor:
    """Rotate the first ``dims`` dimensions of ``x [batch, heads, sequence, head_dim]`` by position."""
    cosines, sines = rotary_cosines_and_sines(x.shape[2], dims, theta, x.dtype, x.device)
    turned, rest = x[..., :dims], x[..., dims:]
    first, second = turned.chunk(2, -1)
    turned = turned * cosines + torch.cat((-second, first), -1) * sines
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


class Attention(nn.Module):
    """Self-attention; each process of the tensor-parallel group computes its own heads, with their keys and values."""

    def __init__(self, shape: LanguageModel, *, causal: bool, group: Group = ALONE, number: int = 0) -> None:
        super().__init__()
        self.part, self.positions, self.causal = shape.architecture.attention, shape.architecture.positions, causal
        self.head_dim = self.part.head_dim or shape.hidden // shape.heads
        queries, keys = shape.heads * self.head_dim, (self.part.kv_heads or shape.heads) * self.head_dim
        self.rotated = int(self.positions.fraction * self.head_dim) // 2 * 2 if self.positions.kind == "rope" else 0
        ignores_window = self.part.full_every and (number + 1) % self.part.full_every == 0
        self.window = None if ignores_window else self.part.window
        window_theta = self.positions.window_theta if self.window else None
        self.theta = window_theta or self.positions.theta
        self.qkv = ColumnLinear(shape.hidden, queries, keys, keys, group=group, bias=self.part.qkv_bias)
        eps = shape.architecture.norm.eps
        has_norms = self.part.qk_norm == "head"
        self.query_norm = RmsNorm(self.head_dim, eps, group) if has_norms else None
        self.key_norm = RmsNorm(self.head_dim, eps, group) if has_norms else None
        self.out = RowLinear(queries, shape.hidden, group, bias=self.part.out_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention to ``x [batch, sequence, hidden]``; the output has the same shape."""
        projected = self.qkv(x)
        batch, sequence, _ = projected.shape
        parts = projected.split(self.qkv.widths, -1)
        q, k, v = (part.view(batch, sequence, -1, self.head_dim).transpose(1, 2) for part in parts)
        q, k = _apply_norm(self.query_norm, q), _apply_norm(self.key_norm, k)
        if self.rotated:
            q, k = (
                apply_rotary_embedding(q, self.rotated, self.theta),
                apply_rotary_embedding(k, self.rotated, self.theta),
            )
            v = v.clone()  # a view would keep the projection of all three
        values = self._attend(q, k, v)
        out: Tensor = self.out(values.transpose(1, 2).reshape(batch, sequence, -1))
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, shares = q.shape[2], q.shape[1] != k.shape[1]
        scale = self.part.scale
        if self.window is None or self.window >= length:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=scale, enable_gqa=shares)
        place = torch.arange(length, device=q.device)
        distance = place[:, None] - place
        seen = (distance < self.window) & (distance >= 0 if self.causal else distance > -self.window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=shares)


class Layer(nn.Module):
    """Transformer layer: attention, then a feed-forward block or experts, each with norms and a residual connection."""

    def __init__(
        self,
        shape: LanguageModel,
        *,
        causal: bool,
        group: Group = ALONE,
        experts: nn.Module | None = None,
        number: int = 0,
    ) -> None:
        super().__init__()
        self.is_local = experts is None and group.size == 1  # True if the layer does not communicate
        architecture = shape.architecture
        self.is_parallel = architecture.residual != "sequential"
        before, after = (architecture.norm.placement in (place, "both") for place in ("before", "after"))
        has_own_norm = architecture.residual != "parallel-one-norm"
        self.attention_norm = make_norm(shape, group) if before else None
        self.attention = Attention(shape, causal=causal, group=group, number=number)
        self.attention_out_norm = make_norm(shape, group) if after else None
        self.ffn_norm = make_norm(shape, group) if before and has_own_norm else None
        self.ffn_out_norm = make_norm(shape, group) if after else None
        self.experts, self.mlp = experts, architecture.mlp
        if experts is None:
            blocks = [shape.ffn_hidden] * (2 if self.mlp.gated else 1)
            self.ffn_in = ColumnLinear(shape.hidden, *blocks, group=group, bias=self.mlp.bias)
            self.ffn_out = RowLinear(shape.ffn_hidden, shape.hidden, group, bias=self.mlp.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to ``x [batch, sequence, hidden]``; the output has the same shape."""
        normed = _apply_norm(self.attention_norm, x)
        update = _apply_norm(self.attention_out_norm, self.attention(normed))
        if self.is_parallel:
            taken = normed if self.ffn_norm is None else self.ffn_norm(x)
            return x + update + _apply_norm(self.ffn_out_norm, self._feed_forward(taken))
        x = x + update
        return x + _apply_norm(self.ffn_out_norm, self._feed_forward(_apply_norm(self.ffn_norm, x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.experts is not None:
            return self.experts(x)  # type: ignore[no-any-return]
        inner, activation = self.ffn_in(x), ACTIVATIONS[self.mlp.activation]
        if self.mlp.gated:
            gate, linear = inner.split(self.ffn_in.widths, -1)
            inner = activation(gate) * linear
        else:
            inner = activation(inner)
        out: Tensor = self.ffn_out(inner)
        return out


def _apply_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
"""Activation functions by their names in the document."""


class Head(nn.Module):
    """Head of a language model: final norm, projection to the vocabulary, and mean loss of a microbatch."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE) -> None:
        super().__init__()
        self.norm = make_norm(shape, group)
        architecture = shape.architecture
        self.project = ColumnLinear(shape.hidden, shape.vocab, group=group, bias=architecture.head_bias)
        self.cap = architecture.logit_soft_cap
        self.group, self.own = group, group.own_range(shape.vocab)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of ``x [batch, sequence, hidden]`` for ``targets [batch, sequence]``."""
        return self.loss(self.logits(x), targets)

    def logits(self, x: Tensor) -> Tensor:
        """Return this process's columns of the logits, ``[batch, sequence, vocabulary / group size]``."""
        logits: Tensor = self.project(self.norm(x))
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over all columns, computed from this process's logits."""
        return parallel_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.own, self.group, IGNORED)


class Transformer(StageBuilder):
    """Builder of language models with equal layers."""

    shape: LanguageModel

    def build(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage. A head that is tied to the embedding starts with the weights of the embedding table."""
        made = super().build(layers_per_stage, stage, seed, dtype, device)
        if self.shape.architecture.tied_embeddings and isinstance(made.head, Head):
            embedding = made.embedding or initialise_weights(
                self.make_embedding().to(device, dtype), (seed, EMBEDDING), self
            )
            assert isinstance(embedding, Embedding), "the embedding of this family"
            made.head.project.weight = embedding.token.weight
        return made

    def make_embedding(self) -> nn.Module:
        """Build the embedding."""
        return Embedding(self.shape, self.group)

    def make_layer(self, number: int) -> nn.Module:
        """Build layer ``number``, with experts if it has them in the model."""
        moe = self.shape.moe
        has_experts = moe is not None and number in moe.blocks(self.shape.layers)
        assert not has_experts or self.experts is not None, "a model with experts needs a factory of them"
        experts = self.experts(FIRST_LAYER + number) if has_experts and self.experts else None
        return Layer(self.shape, causal=self.shape.causal, group=self.group, experts=experts, number=number)

    def make_head(self) -> nn.Module:
        """Build the head."""
        return Head(self.shape, self.group)

    def weight_std(self, name: str, weight: Tensor) -> float:
        """Return 0.02 as in GPT-2, and less for layers whose output is added to the residual stream."""
        return 0.02 / (2 * self.shape.layers) ** 0.5 if name.endswith("out.weight") else 0.02
