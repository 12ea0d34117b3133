"""Operators of a transformer: FLOPs, bytes, parameters and kept activations of each part of a layer.

The architecture of the model determines the parts of a layer (:mod:`meshwave.engine.document.architecture`). The
formulas in the docstrings are those of GPT and BERT: a pre-norm transformer with biases, learned positions, an untied
head and no dropout. GPT and BERT differ only in mask and targets, so they cost the same.

Symbols, as in the papers: ``b`` sequences, ``s`` tokens per sequence, ``h`` hidden size, ``f`` feed-forward hidden
size, ``a`` heads, ``v`` vocabulary size, ``t`` tensor-parallel devices.

The operators of expert layers are defined in :mod:`meshwave.engine.costs.expert_blocks`. A stage receives expert
layers, and layers in which a skip connection ends (:func:`joining_layer_operators`), as :class:`Sparse`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from meshwave.engine.costs.operators import (
    Operator,
    Work,
    Workload,
    accumulation_bytes,
    attention_product,
    elementwise_operator,
    norm_operator,
    product_operator,
    residual_operator,
)
from meshwave.engine.document.architecture import Latent
from meshwave.engine.document.model import MoE


class Sparse(NamedTuple):
    """Equal layers of a stage that are not dense layers: layers with experts, or with incoming skip connections."""

    layers: int
    operators: tuple[Operator, ...]  # operators of one such layer, including attention


@lru_cache(maxsize=256)
def layer_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of a transformer layer: attention, then the feed-forward block.

    Parameters: ``4h^2 + 6h`` and ``2hf + f + 3h``, together ``12h^2 + 13h`` for ``f = 4h`` (arXiv:2104.04473, section
    2.4). Forward FLOPs: ``24bsh^2 + 4bs^2h`` (arXiv:2104.04473, appendix).

    The kept activations are the published ``sbh(34 + 5as/h)`` bytes at 16 bits (Korthikanti et al., arXiv:2205.05198,
    eq. 1) less two parts: the ``5abs^2`` of the attention matrix, which scaled_dot_product_attention recomputes from
    its row sums (Dao et al., arXiv:2205.14135), and the two dropout masks of ``sbh`` bytes, since there is no dropout.
    This leaves 16 elements per token and hidden unit for ``f = 4h``: the inputs of the two norms (2) and of the
    products after them (2), queries, keys and values (3), the attention output (1), and both sides of the GELU
    (``2f/h``). With ``t`` devices the first four remain whole and the others are sharded, as in eq. 2 there: ``sbh(8 +
    24/t)`` bytes at 16 bits. With sequence parallelism all are sharded, as in eq. 4: ``32sbh/t``. (Autocast on a GPU
    computes norms in 32 bits and keeps their inputs in that precision, ``4sbh`` bytes more; on a CPU it does not.)
    """
    return attention_operators(load) + mlp_operators(load)


@lru_cache(maxsize=256)
def attention_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of attention: norm, projections, the ``s^2`` part and the residual sum.

    Tensor-parallel devices hold ``a/t`` heads each. The first projection is sharded by columns and all-reduces in the
    backward, the second by rows and all-reduces in the forward (Shoeybi et al., arXiv:1909.08053, section 3).
    """
    part, outputs = load.architecture.attention, load.head_widths.outputs
    projections = _projection_operators(load) if part.latent is None else _latent_projections(load, part.latent)
    found = (
        *_norm_operators("attention", load, "before"),
        *projections,
        attention_product(load),
        product_operator("attention output", load, outputs, load.hidden, bias=part.out_bias, cut="rows"),
        *_norm_operators("attention", load, "after"),
        residual_operator("attention residual", load.residual_stream),
    )
    return tuple(operator._replace(part="attention") for operator in found)


def _norm_operators(name: str, load: Workload, place: str) -> tuple[Operator, ...]:
    """Return the norm ``before`` or ``after`` a part of a layer; empty if the architecture has none there."""
    places = load.architecture.norm.places
    if place not in places:
        return ()
    return (norm_operator(f"{name} norm {place}" if len(places) > 1 else f"{name} norm", load.residual_stream),)


def _projection_operators(load: Workload) -> Iterator[Operator]:
    """Yield the projection to queries, keys and values, their norms and their rotation."""
    part, widths = load.architecture.attention, load.head_widths
    cut = widths.queries + widths.keys + widths.values
    yield product_operator("query, key, value", load, load.hidden, cut, bias=part.qkv_bias, cut="columns")
    both = widths.queries + widths.keys
    if part.qk_norm == "head":
        head_dim = part.head_dim or load.hidden / load.heads
        norm = norm_operator("query and key norm", load, both, weights=2 * head_dim, rows=both / head_dim)
        yield norm._replace(backward_reduced=(head_dim * load.precision.weights,) * 2)  # all devices share the weights
    elif part.qk_norm == "full":
        squares = (load.tokens * load.precision.statistics,) * 2  # elements of a row over all devices
        yield norm_operator("query and key norm", load, both, rows=2)._replace(
            forward_reduced=squares, backward_reduced=squares
        )
    yield from _rotation_operators(load, both)


def _rotation_operators(load: Workload, width: float) -> Iterator[Operator]:
    """Yield the rotation of queries and keys, which reads and writes them once."""
    positions = load.architecture.positions
    if positions.kind == "rope":
        moved = (
            positions.fraction * width + load.head_widths.values
        )  # a view of the values would keep the whole product in memory
        yield elementwise_operator("rotation", load, moved, kept=0, read_and_written=(2, 2))


def _latent_projections(load: Workload, latent: Latent) -> Iterator[Operator]:
    """Yield the projections of multi-head latent attention (arXiv:2405.04434, section 2.1).

    The projections to the narrow vectors are replicated over tensor-parallel devices; those to the heads are sharded by
    columns. The rotary part of the keys, which all heads share, is exchanged by a collective of its own.
    """
    heads, widths, bias = load.heads / load.tp, load.head_widths, load.architecture.attention.qkv_bias
    if latent.q_rank is None:
        yield product_operator("query", load, load.hidden, widths.queries, bias=False, cut="columns")
    else:
        yield product_operator("query down", load.residual_stream, load.hidden, latent.q_rank, bias=bias)
        yield norm_operator("query norm", load.residual_stream, latent.q_rank)
        yield product_operator("query up", load, latent.q_rank, widths.queries, bias=False, cut="columns")
    narrow = latent.kv_rank + latent.rope_dim
    yield product_operator("key-value down", load.residual_stream, load.hidden, narrow, bias=bias)
    yield norm_operator("key-value norm", load.residual_stream, latent.kv_rank)
    made = heads * latent.nope_dim + widths.values
    yield product_operator("key-value up", load, latent.kv_rank, made, bias=False, cut="columns")
    rotation = elementwise_operator("rotation", load, (heads + 1) * latent.rope_dim, kept=0, read_and_written=(2, 2))
    size = (load.tokens * latent.rope_dim * load.precision.item,)
    yield rotation._replace(
        forward_gathered=size * load.sequence_parallel,
        backward_gathered=size * load.sequence_parallel,
        backward_reduced=size * (not load.sequence_parallel),
    )
    yield elementwise_operator(
        "query and key assembly", load, widths.queries + widths.keys, kept=0, read_and_written=(2, 2)
    )


@lru_cache(maxsize=256)
def mlp_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of the MLP: norm, ``h`` to ``f``, GELU, ``f`` to ``h`` and residual sum.

    They are sharded like those of :func:`attention_operators`.
    """
    before, after = operators_around_mlp(load)
    return (*before, *feed_forward("feed-forward", load, load.ffn_hidden), *after)


def operators_around_mlp(load: Workload) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """Return the operators of a layer before and after its feed-forward block, or the experts in its place."""
    shares_norm = load.architecture.residual == "parallel-one-norm"
    before = () if shares_norm else _norm_operators("feed-forward", load, "before")
    return before, (
        *_norm_operators("feed-forward", load, "after"),
        residual_operator("feed-forward residual", load.residual_stream),
    )


def feed_forward(name: str, load: Workload, width: int) -> tuple[Operator, ...]:
    """Return the matrix products of a feed-forward block, and the activation function between them."""
    part, cut = load.architecture.mlp, width / load.tp
    shares_norm = load.architecture.residual == "parallel-one-norm"
    return (
        product_operator(
            f"{name} in",
            load,
            load.hidden,
            2 * cut if part.gated else cut,
            bias=part.bias,
            keeps_input=not shares_norm,
            cut="columns",
        ),
        _activation_operator(load, cut),
        product_operator(f"{name} out", load, cut, load.hidden, bias=part.bias, cut="rows"),
    )


def shared_expert_operators(load: Workload, moe: MoE) -> tuple[Operator, ...]:
    """Return the operators of the experts that process every token, and of the gate that weights their output."""
    if not moe.shared_width:
        return ()
    gate = (
        product_operator("shared experts' gate", load.residual_stream, load.hidden, 1, bias=False, kernel="product"),
        elementwise_operator(
            "shared experts' weight", load.residual_stream, load.hidden, kept=1, read_and_written=(2, 3)
        ),
    )
    return feed_forward("shared experts", load, moe.shared_width) + (gate if moe.has_shared_gate else ())


def _activation_operator(load: Workload, width: float) -> Operator:
    """Return the activation function of a feed-forward block; a gated one keeps both halves and the activated half."""
    part = load.architecture.mlp
    kept, forward, backward = ACTIVATIONS[part.activation]
    if part.activation == "relu" and load.kernels.linear == "fp8":
        kept += 1  # its output, of which the product keeps a copy in fp8
    if part.gated:
        kept, forward, backward = 3, forward + 3, backward + 6
    name = "GELU" if part.activation == "gelu" else part.activation
    return elementwise_operator(
        f"gated {name}" if part.gated else name, load, width, kept=kept, read_and_written=(forward, backward)
    )


ACTIVATIONS = {
    "gelu": (1, 2, 3),
    "gelu_tanh": (1, 2, 3),
    "silu": (1, 2, 3),
    "relu": (0, 2, 3),
    "relu2": (1, 4, 6),
    "clamped_swish": (1, 2, 3),
}
"""Number of tensors that an activation function keeps besides its output, and that its forward and backward move."""


@lru_cache(maxsize=256)
def joining_layer_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of a U-ViT layer in which a skip connection ends."""
    return join_operators(load) + layer_operators(load)


@lru_cache(maxsize=256)
def join_operators(load: Workload) -> tuple[Operator, ...]:
    """Return a concatenation of two tensors, and a product of ``2h`` to ``h``.

    ``2h^2 + h`` parameters, ``4bsh^2`` forward FLOPs (U-ViT: Bao et al., arXiv:2209.12152, section 3.2). Tensor
    parallelism replicates both.
    """
    outside = load.residual_stream
    return (
        elementwise_operator("skip concatenation", outside, 2 * load.hidden, kept=0, read_and_written=(2, 2)),
        product_operator("skip projection", outside, 2 * load.hidden, load.hidden),
    )


@lru_cache(maxsize=256)
def embedding_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the token and position embedding: ``vh + sh`` parameters, negligible FLOPs.

    The forward gathers rows. The backward writes a gradient of the whole table, which autograd then adds to the
    accumulated gradient. The table is sharded over ``t`` by tokens, so the forward ends in an all-reduce
    (arXiv:1909.08053, section 3) of rows in the precision of the table; one byte per token marks tokens of other
    shards.
    """
    architecture, item = load.architecture, load.precision.item
    positions = architecture.positions.table_rows(load.sequence)
    table = (load.vocab / load.tp + positions + architecture.token_types) * load.hidden
    used = min(positions, load.sequence)
    rows = load.tokens + used  # tables of tokens and positions, whose gradients have the precision of the table
    exchanged = (load.tokens * load.hidden * load.precision.weights,)
    return (
        Operator(
            "embedding",
            forward=Work(bytes=(2 + bool(positions) + bool(architecture.token_types)) * load.hidden_bytes),
            weight_gradient=Work(bytes=load.hidden_bytes + accumulation_bytes(table, load)),
            parameters=table,
            kept_bytes=8 * load.tokens + _flag_bytes(1, load),  # the token ids
            deferred_bytes=8 * load.tokens + rows * load.hidden * load.precision.weights,
            transient_bytes=table * item,
            forward_reduced=() if load.sequence_parallel else exchanged,
            forward_gathered=exchanged if load.sequence_parallel else (),
            backward_gathered=exchanged if load.sequence_parallel else (),
        ),
        *([norm_operator("embedding norm", load.residual_stream)] if architecture.embedding_norm else []),
    )


@lru_cache(maxsize=256)
def head_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the last norm and the logits: ``2h + vh`` parameters, ``2bshv`` forward FLOPs.

    A transform before the logits adds ``h^2 + 3h`` parameters and ``2bsh^2`` forward FLOPs (Devlin et al.,
    arXiv:1810.04805); tensor-parallel devices replicate it.
    """
    part, cut = load.architecture, load.vocab / load.tp
    capped = (
        [elementwise_operator("logit cap", load, cut, kept=1, read_and_written=(4, 4))] if part.logit_soft_cap else []
    )
    return (
        *([norm_operator("last norm", load.residual_stream)] if part.norm.is_final else []),
        *(_head_transform(load.residual_stream) if part.head_transform else ()),
        product_operator("logits", load, load.hidden, cut, bias=part.head_bias, cut="columns", kernel="product"),
        *capped,
    )


def _head_transform(load: Workload) -> tuple[Operator, ...]:
    """Return the operators between the last layer and the logits."""
    _, *moved = ACTIVATIONS[load.architecture.mlp.activation]
    return (
        product_operator("head transform", load, load.hidden, load.hidden, kernel="product"),
        elementwise_operator("head activation", load, load.hidden, kept=1, read_and_written=(moved[0], moved[1])),
        norm_operator("head norm", load),
    )


@lru_cache(maxsize=256)
def loss_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the cross-entropy over ``[bs, v/t]`` logits, in at least 32 bits.

    The forward reads the logits and writes their log-probabilities, which are kept (the ``4sbv`` bytes of
    arXiv:2205.05198, section 4.3); the backward reads them and writes the gradient of the logits. Tensor-parallel
    devices exchange the maximum, the sum and the target's logit of each row instead of the logits (arXiv:1909.08053,
    section 3), and keep two bytes per token: one if the token counts, one if its target is in this shard.
    """
    logits = load.tokens * load.vocab / load.tp
    item, wide = load.precision.item, load.precision.statistics
    a_row = load.tokens * wide
    return (
        Operator(
            "loss",
            forward=Work(bytes=logits * (item + wide)),
            input_gradient=Work(bytes=logits * (wide + item)),
            kept_bytes=logits * wide + 8 * load.tokens + _flag_bytes(2, load),  # and the targets
            transient_bytes=logits * (wide + item),
            forward_reduced=(a_row, a_row, a_row),
        ),
    )


def end_operators(load: Workload, *, first: bool, last: bool) -> tuple[Operator, ...]:
    """Return the operators of a stage besides its layers: embedding of the first, head and loss of the last stage.

    A head that is tied to an embedding on the same stage adds no table; on another stage, or sharded, it is a copy.
    """
    before, after = (
        embedding_operators(load) if first else (),
        head_operators(load) + loss_operators(load) if last else (),
    )
    table, architecture = load.table_parameters, load.architecture
    has_table = first and not load.separates_table
    if has_table and last and architecture.tied_embeddings:
        after = (
            *(each._replace(parameters=each.parameters - table) if each.name == "logits" else each for each in after),
        )
    if last and architecture.mtp_layers:
        has_copy = not has_table and not architecture.tied_embeddings
        after += multi_token_operators(load, table if has_copy else 0.0) + multi_token_operators(load, 0.0) * (
            architecture.mtp_layers - 1
        )
    return before + after


@lru_cache(maxsize=256)
def multi_token_operators(load: Workload, table: float) -> tuple[Operator, ...]:
    """Return the operators of a layer of multi-token prediction besides the layer itself (arXiv:2412.19437, section 2.2).

    The embeddings of the next tokens are joined with the input of the layer; the output has a norm of its own and
    shares the head. ``table`` is the number of parameters of a copy of the embedding table.
    """
    embedded, *_ = embedding_operators(load)
    shared = (
        each._replace(parameters=0.0, copied=0.0) if each.name == "logits" else each for each in head_operators(load)
    )
    return (
        embedded._replace(name="prediction embedding", parameters=table),
        *multi_token_input_operators(load),
        *shared,
        *loss_operators(load),
    )


def multi_token_input_operators(load: Workload) -> tuple[Operator, ...]:
    """Return the operators at the beginning of a layer of multi-token prediction: two norms, and a projection.

    Its input and the embeddings of the next tokens are normed, concatenated, and projected from ``2h`` to ``h``. Another
    norm keeps the input too. Tensor-parallel devices replicate the projection.
    """
    outside = load.residual_stream
    norms = norm_operator("prediction norms", outside, 2 * load.hidden, rows=2)
    return (
        norms._replace(kept_bytes=norms.kept_bytes - outside.hidden_bytes),
        elementwise_operator("prediction join", outside, 2 * load.hidden, kept=0, read_and_written=(2, 2)),
        product_operator("prediction projection", outside, 2 * load.hidden, load.hidden, bias=False),
    )


def _flag_bytes(count: int, load: Workload) -> float:
    """Return the bytes of ``count`` Booleans per token, which only a sharded vocabulary needs."""
    return count * load.tokens if load.tp > 1 else 0.0
