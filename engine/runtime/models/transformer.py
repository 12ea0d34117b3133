"""Transformer language model in separate parts, so that a process builds only its own stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from meshwave.engine.document.model import IGNORED, LanguageModel
from meshwave.engine.runtime.communication.groups import ALONE, Group
from meshwave.engine.runtime.models.latent_attention import LatentAttention
from meshwave.engine.runtime.models.stages import (
    EMBEDDING,
    FIRST_LAYER,
    Parts,
    Stage,
    StageBuilder,
    initialize_weights,
    to_message_dtype,
)
from meshwave.engine.runtime.modules.activations import ACTIVATIONS, make_activation
from meshwave.engine.runtime.modules.attention_product import AttentionRule
from meshwave.engine.runtime.modules.context_attention import attend_in_context
from meshwave.engine.runtime.modules.context_share import ContextShare
from meshwave.engine.runtime.modules.deferred_gradients import EmbeddingTable, Linear, Norm
from meshwave.engine.runtime.modules.documents import document_positions, packed_documents, target_counts
from meshwave.engine.runtime.modules.positions import alibi_bias, apply_rotary_embedding
from meshwave.engine.runtime.modules.rms_norm import RmsNorm, ShardedRmsNorm
from meshwave.engine.runtime.modules.sharded_vector import ShardedVector
from meshwave.engine.runtime.modules.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    VocabularyTable,
    apply_to_all_tokens,
    mark_partial,
    parallel_cross_entropy,
)


class Embedding(nn.Module):
    """Embedding of tokens, plus learned positions and the first token type if the architecture has them."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE, share: ContextShare | None = None) -> None:
        super().__init__()
        self.share = share
        self.token = VocabularyTable(shape.vocab, shape.hidden, group)
        positions = shape.architecture.positions
        is_learned = positions.kind == "learned"
        self.position = EmbeddingTable(positions.table_rows(shape.sequence), shape.hidden) if is_learned else None
        self.offset = positions.offset
        self.group = group
        if self.position is not None:
            mark_partial(self.position, group)
        types = shape.architecture.token_types
        self.token_type = EmbeddingTable(types, shape.hidden) if types else None
        if self.token_type is not None:
            mark_partial(self.token_type, group)
        self.scale = shape.architecture.embedding_scale
        self.norm = make_norm(shape, group) if shape.architecture.embedding_norm else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings ``[batch, sequence, hidden]`` of ``tokens [batch, sequence]``.

        With context or sequence parallelism, only the tokens of this process are returned.
        """
        if self.share is not None:
            tokens = self.share.select_own(tokens, 1)
        embedded: Tensor = self.token(tokens)
        if self.scale != 1:
            embedded = embedded * self.scale
        if self.position is not None:
            embedded = embedded + self._own_positions(tokens)
        if self.token_type is not None:
            embedded = embedded + self.token_type.first_rows(1)
        return _apply_norm(self.norm, embedded)

    def _own_positions(self, tokens: Tensor) -> Tensor:
        assert self.position is not None, "learned positions"
        documents = packed_documents()
        if documents is not None:
            places = document_positions(documents, tokens.device) + self.offset
            rows: Tensor = self.position(places if self.share is None else self.share.select_own(places, 1))
        elif self.share is None:
            rows = self._first_positions(tokens.shape[1])
        else:
            rows = self.share.select_own(self._first_positions(self.share.resize(tokens.shape[1]).sequence), 0)
        if self.group.divides_tokens:
            own = self.group.own_range(tokens.shape[1])
            rows = rows[..., own.start : own.stop, :]
        return rows

    def _first_positions(self, count: int) -> Tensor:
        assert self.position is not None, "learned positions"
        return self.position.first_rows(self.offset + count)[self.offset :]


def make_norm(shape: LanguageModel, group: Group = ALONE) -> nn.Module:
    """Build a norm layer of the residual stream."""
    kind = shape.architecture.norm
    if kind.kind == "rmsnorm":
        norm: nn.Module = RmsNorm(shape.hidden, kind.eps)
    elif kind.weight:
        norm = Norm(shape.hidden, eps=kind.eps, bias=kind.bias)
    else:
        norm = nn.LayerNorm(shape.hidden, kind.eps, elementwise_affine=False)
    mark_partial(norm, group)
    return norm


class Attention(nn.Module):
    """Self-attention; each process of the tensor-parallel group computes its own heads, with their keys and values."""

    attend = staticmethod(attend_in_context)

    def __init__(
        self,
        shape: LanguageModel,
        *,
        causal: bool,
        group: Group = ALONE,
        number: int = 0,
        share: ContextShare | None = None,
    ) -> None:
        super().__init__()
        self.share = share
        self.part, self.positions = shape.architecture.attention, shape.architecture.positions
        self.head_dim = self.part.head_dim or shape.hidden // shape.heads
        queries, keys = shape.heads * self.head_dim, (self.part.kv_heads or shape.heads) * self.head_dim
        self.rotated = shape.rotated_dims
        ignores_window = self.part.full_every and (number + 1) % self.part.full_every == 0
        window = None if ignores_window else self.part.window
        self.rule = AttentionRule(causal, window, self.part.scale, self.part.soft_cap)
        window_theta = self.positions.window_theta if window else None
        self.theta = window_theta or self.positions.theta
        self.scaling = None if window_theta else self.positions.scaling
        self.qkv = ColumnLinear(shape.hidden, queries, keys, keys, group=group, bias=self.part.qkv_bias)
        eps = shape.architecture.norm.eps
        self.query_norm = self.key_norm = None
        if self.part.qk_norm == "head":
            self.query_norm, self.key_norm = (RmsNorm(self.head_dim, eps, group) for _ in range(2))
        elif self.part.qk_norm == "full":
            self.query_norm, self.key_norm = (ShardedRmsNorm(width, eps, group) for width in (queries, keys))
        self.sinks = ShardedVector(shape.heads, group) if self.part.sinks else None
        self.heads, self.own_heads = shape.heads, group.own_range(shape.heads)
        self.out = RowLinear(queries, shape.hidden, group, bias=self.part.out_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention to ``x [batch, sequence, hidden]``; the output has the same shape."""
        projected = self.qkv(x)
        batch, sequence, _ = projected.shape
        q, k, v = projected.split(self.qkv.widths, -1)
        if self.part.qk_norm == "full":
            q, k = _apply_norm(self.query_norm, q), _apply_norm(self.key_norm, k)
        q, k, v = (part.view(batch, sequence, -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
        if self.part.qk_norm == "head":
            q, k = _apply_norm(self.query_norm, q), _apply_norm(self.key_norm, k)
        if self.rotated:
            q, k = (apply_rotary_embedding(x, self.rotated, self.theta, self.scaling, self.share) for x in (q, k))
            v = v.clone()  # a view would keep the projection of all three
        sinks = None if self.sinks is None else self.sinks()
        bias = self._bias if self.positions.kind == "alibi" else None
        values = self.attend(q, k, v, self.rule, self.share, sinks, bias)
        out: Tensor = self.out(values.transpose(1, 2).reshape(batch, sequence, -1))
        return out

    def _bias(self, queries: range, keys: range, like: Tensor) -> Tensor:
        """Return the ALiBi of this process's heads for tokens at these positions, with dtype and device of ``like``."""
        heads = self.heads, self.own_heads, self.positions.alibi_scale
        return alibi_bias(queries, keys, *heads, like.dtype, like.device)


def make_attention(
    shape: LanguageModel, *, causal: bool, group: Group, number: int, share: ContextShare | None
) -> nn.Module:
    """Make the attention of layer ``number``."""
    latent = shape.architecture.attention.latent
    if latent is not None:
        return LatentAttention(shape, latent, causal=causal, group=group, share=share)
    return Attention(shape, causal=causal, group=group, number=number, share=share)


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
        share: ContextShare | None = None,
    ) -> None:
        super().__init__()
        self.is_local = experts is None and group.size == 1 and share is None  # True if the layer does not communicate
        architecture = shape.architecture
        self.is_parallel = architecture.residual != "sequential"
        self.is_post_norm = architecture.norm.placement == "post"
        before, after = (place in architecture.norm.places for place in ("before", "after"))
        has_own_norm = architecture.residual != "parallel-one-norm"
        self.attention_norm = make_norm(shape, group) if before else None
        self.attention = make_attention(shape, causal=causal, group=group, number=number, share=share)
        self.attention_out_norm = make_norm(shape, group) if after else None
        self.ffn_norm = make_norm(shape, group) if before and has_own_norm else None
        self.ffn_out_norm = make_norm(shape, group) if after else None
        self.group = group
        self.experts, self.activation = experts, make_activation(architecture.mlp)
        self.shared_in = self.shared_out = self.shared_gate = None
        if experts is None:
            self.ffn_in, self.ffn_out = _make_mlp(shape, shape.ffn_hidden, group)
        elif shape.moe is not None and shape.moe.shared_width:
            self.shared_in, self.shared_out = _make_mlp(shape, shape.moe.shared_width, group)
            self.shared_gate = Linear(shape.hidden, 1, bias=False) if shape.moe.has_shared_gate else None
            if self.shared_gate is not None:
                mark_partial(self.shared_gate, group)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to ``x [batch, sequence, hidden]``; the output has the same shape."""
        if self.is_post_norm:
            x = _apply_norm(self.attention_out_norm, x + self.attention(x))
            return _apply_norm(self.ffn_out_norm, x + self._feed_forward(x))
        normed = _apply_norm(self.attention_norm, x)
        update = _apply_norm(self.attention_out_norm, self.attention(normed))
        if self.is_parallel:
            taken = normed if self.ffn_norm is None else self.ffn_norm(x)
            return x + update + _apply_norm(self.ffn_out_norm, self._feed_forward(taken))
        x = x + update
        return x + _apply_norm(self.ffn_out_norm, self._feed_forward(_apply_norm(self.ffn_norm, x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.experts is None:
            return self._mlp(x, self.ffn_in, self.ffn_out)
        routed = apply_to_all_tokens(self.experts, to_message_dtype(x), self.group)
        if self.shared_in is None or self.shared_out is None:
            return routed
        shared = self._mlp(x, self.shared_in, self.shared_out)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return routed + shared

    def _mlp(self, x: Tensor, first: ColumnLinear, second: RowLinear) -> Tensor:
        out: Tensor = second(self.activation.apply(first(x)))
        return out


def _make_mlp(shape: LanguageModel, width: int, group: Group) -> tuple[ColumnLinear, RowLinear]:
    """Make the matrices of a feed-forward block; the first one has two blocks of columns if it is gated."""
    mlp = shape.architecture.mlp
    first = ColumnLinear(shape.hidden, *[width] * (2 if mlp.gated else 1), group=group, bias=mlp.bias)
    return first, RowLinear(width, shape.hidden, group, bias=mlp.bias)


def _apply_norm(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Head(nn.Module):
    """Head of a language model: final norm or transform, projection to the vocabulary, and mean loss of a microbatch."""

    def __init__(self, shape: LanguageModel, group: Group = ALONE, share: ContextShare | None = None) -> None:
        super().__init__()
        self.share = share
        architecture = shape.architecture
        self.norm = make_norm(shape, group) if architecture.norm.is_final else None
        self.transform = self.transform_norm = None
        if architecture.head_transform:
            self.transform, self.transform_norm = Linear(shape.hidden, shape.hidden), make_norm(shape, group)
            mark_partial(self.transform, group)
            self.activation = ACTIVATIONS[architecture.mlp.activation]
        self.project = ColumnLinear(shape.hidden, shape.vocab, group=group, bias=architecture.head_bias)
        self.cap, self.is_tied = architecture.logit_soft_cap, architecture.tied_embeddings
        self.group, self.own = group, group.own_range(shape.vocab)

    def tie_weights(self, table: Tensor) -> None:
        """Share the weights of the embedding table if the architecture ties them."""
        assert isinstance(table, nn.Parameter), "a weight"
        if self.is_tied:
            self.project.weight = table

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of ``x [batch, sequence, hidden]`` for ``targets [batch, sequence]``."""
        return self.loss(self.logits(x), targets)

    def logits(self, x: Tensor) -> Tensor:
        """Return this process's columns of the logits, ``[batch, sequence, vocabulary / group size]``."""
        return self.normalized_logits(_apply_norm(self.norm, x))

    def normalized_logits(self, x: Tensor) -> Tensor:
        """Return the logits of ``x``, which is normalized already."""
        if self.transform is not None:
            x = _apply_norm(self.transform_norm, self.activation.apply(self.transform(x)))
        logits: Tensor = self.project(x)
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def loss(self, logits: Tensor, targets: Tensor, shift: int = 0) -> Tensor:
        """Return the mean cross-entropy over all columns, computed from this process's logits.

        With context parallelism, ``targets`` are those of whole sequences, and the mean of the results of all members is
        the mean over all tokens. If ``targets`` are shifted, some sequences have fewer of them, or none.
        """
        count, members = None, 1 if self.share is None else self.share.group.size
        if (known := target_counts()) is not None:
            groups = (known - shift).clamp(min=0).sum(1).clamp(min=1) * len(known) / known.shape[1]
            count = (groups / members).repeat_interleave(targets.shape[1] // members)
        elif self.share is not None or shift:
            count = (targets != IGNORED).sum().clamp(min=1) / members
        if self.share is not None:
            targets = self.share.select_own(targets, 1)
        return parallel_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.own, self.group, IGNORED, count)


class Transformer(StageBuilder):
    """Builder of language models with equal layers."""

    shape: LanguageModel

    def build(self, layers_per_stage: Sequence[int], stage: int, seed: int, dtype: torch.dtype, device: Any) -> Stage:
        """Build one stage. A head that uses the embedding table starts with the weights of the embedding."""
        made = self.make_stage(self.make_parts(layers_per_stage, stage, seed, dtype, device))
        if self.shape.architecture.copies_embedding and isinstance(made.head, Head):
            embedding = made.embedding or initialize_weights(
                self.make_embedding().to(device, dtype), (seed, EMBEDDING), self
            )
            assert isinstance(embedding, Embedding), "the embedding of this family"
            made.head.tie_weights(embedding.token.weight)
        return made

    def make_stage(self, parts: Parts) -> Stage:
        """Build a stage from its parts."""
        return Stage(*parts)

    def make_embedding(self) -> nn.Module:
        """Build the embedding."""
        return Embedding(self.shape, self.group, self.share)

    def make_layer(self, number: int) -> nn.Module:
        """Build layer ``number``."""
        return self.make_plain_layer(number, Layer)

    def make_plain_layer(self, number: int, kind: type[Layer]) -> Layer:
        """Build layer ``number`` as an instance of ``kind``, with experts if it has them in the model."""
        moe = self.shape.moe
        has_experts = moe is not None and number in moe.blocks(self.shape.layers)
        assert not has_experts or self.experts is not None, "a model with experts needs a factory of them"
        experts = self.experts(FIRST_LAYER + number, number) if has_experts and self.experts else None
        options: dict[str, Any] = {"causal": self.shape.causal, "group": self.group, "share": self.share}
        return kind(self.shape, **options, experts=experts, number=number)

    def make_head(self) -> nn.Module:
        """Build the head."""
        return Head(self.shape, self.group, self.share)

    def weight_std(self, name: str, weight: Tensor) -> float:
        """Return 0.02 as in GPT-2, and less for layers whose output is added to the residual stream."""
        return 0.02 / (2 * self.shape.layers) ** 0.5 if name.endswith("out.weight") else 0.02
