"""Meshwave's weights of a model, and the tensors of a Hugging Face checkpoint that contain them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document.architecture import Latent
from meshwave.engine.document.model import LanguageModel, MoE
from meshwave.engine.hugging_face.names import LAYER_PARTS, TENSOR_NAMES, TensorNames

JOIN = "join"
"""Projection of a hidden state and of an embedding at the beginning of a layer of multi-token prediction."""
Shape = tuple[int, ...]
Order = NDArray[np.int64]


class Source(NamedTuple):
    """Tensor of a checkpoint, or one expert's part of it, and its conversion to a part of one of Meshwave's weights."""

    name: str
    shape: Shape  # of the tensor in the checkpoint
    expert: int | None = None  # the first index, if the tensor has the weights of all experts
    is_transposed: bool = False
    order: Order | None = None  # of the elements along the dim in which sources are joined, after a transposition
    offset: float = 0.0  # added to the tensor

    @property
    def own_shape(self) -> Shape:
        """Shape of the part after the conversion."""
        shape = self.shape if self.expert is None else self.shape[1:]
        return shape[::-1] if self.is_transposed else shape


class Weight(NamedTuple):
    """One of Meshwave's weights, with the sources that are concatenated along a dim."""

    name: str
    sources: tuple[Source, ...]
    dim: int = 0

    @property
    def shape(self) -> Shape:
        """Shape of the weight."""
        first = self.sources[0].own_shape
        joined = sum(source.own_shape[self.dim] for source in self.sources)
        return tuple(joined if dim == self.dim else size for dim, size in enumerate(first))

    @property
    def spans(self) -> list[range]:
        """Index range of each source along the dim."""
        ends = list(accumulate((source.own_shape[self.dim] for source in self.sources), initial=0))
        return [range(first, last) for first, last in zip(ends, ends[1:], strict=False)]


def own_weights(model: LanguageModel) -> dict[str, Shape]:
    """Return the names and shapes of all Meshwave weights of a model; a tied head is not included."""
    return dict(_own_weights(model))


def map_weights(model: LanguageModel, model_type: str) -> list[Weight]:
    """Return the weights of a model with their sources in checkpoints of a model type that represents it."""
    names = TENSOR_NAMES.get(model_type, TensorNames())
    mapper = _Mapper(model, names)
    return [mapper.map(name, shape) for name, shape in own_weights(model).items()]


def copied_weights(model: LanguageModel, model_type: str) -> list[Weight]:
    """Return the weights that checkpoints also contain as copies, in their layers of multi-token prediction."""
    names, architecture = TENSOR_NAMES.get(model_type, TensorNames()), model.architecture
    table = "embedding.token.weight"
    copies = {
        names.embedding_copy: table,
        names.head_copy: table if architecture.tied_embeddings else "head.project.weight",
    }
    return [
        Weight(weight, (Source(f"{names.layers}.{number}.{copy}", (model.vocab, model.hidden)),))
        for number in range(model.layers - architecture.mtp_layers, model.layers)
        for copy, weight in copies.items()
    ]


def identical_weights(model: LanguageModel) -> list[Weight]:
    """Return the weights of a model as a run writes them: the source of each is the tensor of the same name."""
    return [Weight(name, (Source(name, shape),)) for name, shape in own_weights(model).items()]


# ---- the weights here ----

Named = Iterator[tuple[str, Shape]]


def _own_weights(model: LanguageModel) -> Named:
    architecture = model.architecture
    yield "embedding.token.weight", (model.vocab, model.hidden)
    if architecture.positions.kind == "learned":
        yield "embedding.position.weight", (architecture.positions.table_rows(model.sequence), model.hidden)
    if architecture.token_types:
        yield "embedding.token_type.weight", (architecture.token_types, model.hidden)
    if architecture.embedding_norm:
        yield from _norm_weights("embedding.norm", model)
    joining = {target for _, target in model.skips}
    for number in range(model.layers):
        if number in joining:
            yield from _linear_weights(f"layers.{number}.join", model.hidden, 2 * model.hidden, bias=True)
        yield from (
            (f"layers.{number}.{name}", shape) for name, shape in _layer_weights(model, number in model.expert_blocks)
        )
        if number >= model.layers - architecture.mtp_layers:
            for name in ("hidden_norm", "embedding_norm", "last_norm"):
                yield from _norm_weights(f"layers.{number}.{name}", model)
            yield from _linear_weights(f"layers.{number}.join", model.hidden, 2 * model.hidden, bias=False)
    if architecture.norm.is_final:
        yield from _norm_weights("head.norm", model)
    if architecture.head_transform:
        yield from _linear_weights("head.transform", model.hidden, model.hidden, bias=True)
        yield from _norm_weights("head.transform_norm", model)
    head = _linear_weights("head.project", model.vocab, model.hidden, bias=architecture.head_bias)
    yield from ((name, shape) for name, shape in head if not architecture.tied_embeddings or name.endswith("bias"))


def _layer_weights(model: LanguageModel, has_experts: bool) -> Named:
    architecture = model.architecture
    places, residual = architecture.norm.places, architecture.residual
    if "before" in places:
        yield from _norm_weights("attention_norm", model)
    latent = architecture.attention.latent
    yield from _attention_weights(model) if latent is None else _latent_attention_weights(model, latent)
    if "after" in places:
        yield from _norm_weights("attention_out_norm", model)
    if "before" in places and residual != "parallel-one-norm":
        yield from _norm_weights("ffn_norm", model)
    if "after" in places:
        yield from _norm_weights("ffn_out_norm", model)
    if has_experts and model.moe is not None:
        yield from _expert_weights(model, model.moe)
    else:
        yield from _mlp_weights("ffn", model, model.ffn_hidden)


def _attention_weights(model: LanguageModel) -> Named:
    part, (queries, keys) = model.architecture.attention, attention_widths(model)
    yield from _linear_weights("attention.qkv", queries + 2 * keys, model.hidden, bias=part.qkv_bias)
    if part.qk_norm != "none":
        is_full, dims = part.qk_norm == "full", part.head_dim or model.hidden // model.heads
        yield "attention.query_norm.weight", (queries if is_full else dims,)
        yield "attention.key_norm.weight", (keys if is_full else dims,)
    if part.sinks:
        yield "attention.sinks.weight", (model.heads,)
    yield from _linear_weights("attention.out", model.hidden, queries, bias=part.out_bias)


def attention_widths(model: LanguageModel) -> tuple[int, int]:
    """Return the width of all queries, and the width of all keys."""
    part = model.architecture.attention
    dims = part.head_dim or model.hidden // model.heads
    return model.heads * dims, (part.kv_heads or model.heads) * dims


def _latent_attention_weights(model: LanguageModel, latent: Latent) -> Named:
    part, heads = model.architecture.attention, model.heads
    queries = heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank is not None:
        yield from _linear_weights("attention.query_down", latent.q_rank, model.hidden, bias=part.qkv_bias)
        yield "attention.query_norm.weight", (latent.q_rank,)
    yield from _linear_weights("attention.query", queries, latent.q_rank or model.hidden, bias=False)
    narrow = latent.kv_rank + latent.rope_dim
    yield from _linear_weights("attention.key_value_down", narrow, model.hidden, bias=part.qkv_bias)
    yield "attention.key_value_norm.weight", (latent.kv_rank,)
    made = heads * (latent.nope_dim + latent.value_dim)
    yield from _linear_weights("attention.key_value", made, latent.kv_rank, bias=False)
    yield from _linear_weights("attention.out", model.hidden, heads * latent.value_dim, bias=part.out_bias)


def _expert_weights(model: LanguageModel, moe: MoE) -> Named:
    mlp, width = model.architecture.mlp, moe.expert_width(model.ffn_hidden)
    yield "experts.gate.weight", (moe.experts, model.hidden)
    if moe.router.has_bias:
        yield "experts.gate.bias", (moe.experts,)
    if moe.router.has_balance:
        yield "experts.gate.balance", (moe.experts,)
    inner = 2 * width if mlp.gated else width
    for expert in range(moe.experts):
        yield f"experts.{expert}.w_in", (model.hidden, inner)
        yield f"experts.{expert}.w_out", (width, model.hidden)
        if mlp.bias:
            yield f"experts.{expert}.b_in", (inner,)
            yield f"experts.{expert}.b_out", (model.hidden,)
    if moe.shared_width:
        yield from _mlp_weights("shared", model, moe.shared_width)
        if moe.has_shared_gate:
            yield "shared_gate.weight", (1, model.hidden)


def _mlp_weights(name: str, model: LanguageModel, width: int) -> Named:
    mlp = model.architecture.mlp
    yield from _linear_weights(f"{name}_in", 2 * width if mlp.gated else width, model.hidden, bias=mlp.bias)
    yield from _linear_weights(f"{name}_out", model.hidden, width, bias=mlp.bias)


def _linear_weights(name: str, outputs: int, inputs: int, *, bias: bool) -> Named:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm_weights(name: str, model: LanguageModel) -> Named:
    norm = model.architecture.norm
    if norm.weight:
        yield f"{name}.weight", (model.hidden,)
    if norm.bias and norm.kind == "layernorm":
        yield f"{name}.bias", (model.hidden,)


# ---- the tensors of a checkpoint ----


class _Mapper:
    """Mapping from weights to their sources in checkpoints of one model type."""

    def __init__(self, model: LanguageModel, names: TensorNames) -> None:
        self._model, self._names = model, names
        self._parts = {**LAYER_PARTS, **names.parts}
        if model.architecture.residual == "parallel":
            self._parts |= names.parallel_parts
        latent = model.architecture.attention.latent
        if latent is not None and latent.q_rank is None:
            self._parts["attention.query"] = ("self_attn.q_proj",)

    def map(self, name: str, shape: Shape) -> Weight:
        """Return a weight with its sources."""
        if not name.startswith("layers."):
            part, _, kind = name.rpartition(".")
            theirs = getattr(self._names, part.replace(".", "_"))
            return Weight(name, (self._source(f"{theirs}.{kind}", shape, part),))
        _, number, part = name.split(".", 2)
        prefix = f"{self._names.layers}.{number}"
        if part.startswith("experts."):
            return self._map_expert(name, prefix, part.removeprefix("experts."), shape)
        part, _, kind = part.rpartition(".")
        theirs = self._parts[part]
        rows = self._rows(part, shape[0], len(theirs))
        sources = (
            self._source(_full_name(f"{prefix}.{each}", kind), (count, *shape[1:]), part)
            for each, count in zip(theirs, rows, strict=True)
        )
        return Weight(name, tuple(sources), dim=1 if part == JOIN else 0)

    def _rows(self, part: str, rows: int, sources: int) -> Sequence[int]:
        """Return the number of rows of each source."""
        if part == "attention.qkv" and sources == 3:
            queries, keys = attention_widths(self._model)
            return queries, keys, keys
        return (rows // sources,) * sources

    def _source(self, name: str, shape: Shape, part: str) -> Source:
        is_transposed = self._names.transposes and part.startswith(("attention.", "ffn_")) and len(shape) == 2
        return Source(
            name,
            shape[::-1] if is_transposed else shape,
            is_transposed=is_transposed,
            order=self._order(part),
            offset=self._names.norm_offset if "norm" in part else 0.0,
        )

    def _order(self, part: str) -> Order | None:
        """Return the order of the rows of a weight, as indices into the checkpoint's tensor; None if both are equal."""
        latent, hidden = self._model.architecture.attention.latent, self._model.hidden
        if part == JOIN:  # theirs maps the embedding, then the hidden state
            return np.roll(np.arange(2 * hidden), hidden)
        if part == "attention.qkv" and self._names.groups_heads:
            attention = self._model.architecture.attention
            dims = attention.head_dim or self._model.hidden // self._model.heads
            return order_of_grouped_heads(self._model.heads, attention.kv_heads or self._model.heads, dims)
        if latent is None:
            return None
        if part == "attention.query":
            return order_with_rope_first(self._model.heads, latent.nope_dim, latent.rope_dim)
        if part == "attention.key_value_down":
            rope = latent.kv_rank + order_by_halves(latent.rope_dim)
            return np.concatenate([np.arange(latent.kv_rank), rope])
        return None

    def _map_expert(self, name: str, prefix: str, part: str, shape: Shape) -> Weight:
        experts = self._names.experts
        if part.startswith("gate."):
            router = experts.balance if part == "gate.balance" else f"{experts.router}.{part.removeprefix('gate.')}"
            return Weight(name, (Source(f"{prefix}.{router}", shape),))
        number, kind = part.split(".")
        if experts.stacked:
            count = self._model.moe.experts if self._model.moe is not None else 0
            source = Source(f"{prefix}.{experts.stacked[kind]}", (count, *shape), int(number))
            inner = order_by_halves(shape[-1]) if kind in ("w_in", "b_in") else None
            return Weight(name, (source._replace(order=inner),), len(shape) - 1)
        theirs = experts.first if kind == "w_in" else experts.second
        width = shape[1] // len(theirs)
        sources = (
            Source(f"{prefix}.{experts.each.format(number)}.{each}.weight", (width, shape[0]), is_transposed=True)
            for each in theirs
        )
        return Weight(name, tuple(sources), 1)


def _full_name(name: str, kind: str) -> str:
    return name.removesuffix("!") if name.endswith("!") else f"{name}.{kind}"


def order_by_halves(count: int) -> Order:
    """Return the order of elements that are stored in pairs: first elements of all pairs, then second elements."""
    order: Order = np.arange(count).reshape(-1, 2).T.ravel()
    return order


def order_with_rope_first(heads: int, nope: int, rope: int) -> Order:
    """Return the order of query rows in which each head starts with its rotated rows, their pairs as two halves."""
    head = np.concatenate([nope + order_by_halves(rope), np.arange(nope)])
    order: Order = (np.arange(heads)[:, None] * (nope + rope) + head).ravel()
    return order


def order_of_grouped_heads(heads: int, kv_heads: int, dims: int) -> Order:
    """Return the order of rows that are stored by group: query heads, their key head, their value head."""
    rows = np.arange((heads + 2 * kv_heads) * dims).reshape(kv_heads, heads // kv_heads + 2, dims)
    return np.concatenate([rows[:, :-2].ravel(), rows[:, -2].ravel(), rows[:, -1].ravel()])
