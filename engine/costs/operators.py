"""Operators of a transformer: FLOPs, bytes, parameters and kept activations of each part of a layer.

The formulas describe what :mod:`meshwave.engine.runtime.models` builds: a pre-norm transformer with biases in its layers,
learned positions, an untied head (embedding and head are on different stages) and no dropout. GPT and BERT differ in
mask and targets only, so they cost the same.

Symbols, as in the papers: ``b`` sequences, ``s`` tokens of a sequence, ``h`` hidden, ``f`` feed-forward hidden, ``a``
heads, ``v`` vocabulary, ``t`` tensor-parallel devices. A matrix product of ``[m, k]`` by ``[k, n]`` is ``2 m k n`` FLOPs.
Other arithmetic is memory-bound and counted by the bytes it moves, the convention of papers that report FLOPs
(Narayanan et al., arXiv:2104.04473, appendix).

The operators of expert layers are those of :mod:`meshwave.engine.costs.expert_blocks`; a stage receives them, and layers
in which a skip connection ends (:func:`joining_layer`), as :class:`Sparse`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshwave.engine.document.model import LanguageModel


class Precision(NamedTuple):
    """Bytes of one number, by its purpose."""

    item: int  # activations, and messages between stages
    weights: int
    copy: int  # copy of a weight in the precision of products
    gradients: int
    statistics: int  # kept by norms, softmax and loss

    @property
    def moment(self) -> int:
        """Bytes of one of AdamW's two moments, which has the precision of the gradients."""
        return self.gradients


PRECISIONS = {
    "fp32": Precision(item=4, weights=4, copy=0, gradients=4, statistics=4),
    # Mixed precision: fp32 master weights, fp32 gradients and one bf16 copy to compute with
    # (Micikevicius et al., arXiv:1710.03740; Rajbhandari et al., arXiv:1910.02054, section 3.1).
    "bf16": Precision(item=2, weights=4, copy=2, gradients=4, statistics=4),
    "fp64": Precision(item=8, weights=8, copy=0, gradients=8, statistics=8),
}


class Work(NamedTuple):
    """FLOPs executed and bytes moved to or from a device's memory."""

    flops: float = 0.0
    bytes: float = 0.0


class Operator(NamedTuple):
    """One operation of a part of the model, on one device, for one microbatch."""

    name: str
    forward: Work
    input_gradient: Work = Work()
    weight_gradient: Work = Work()
    parameters: float = 0.0
    copied: float = 0.0  # parameters with a copy in the precision of products
    kept_bytes: float = 0.0  # held by autograd from the forward to the backward
    deferred_bytes: float = 0.0  # held by a split backward from its first half to the weight gradients
    transient_bytes: float = 0.0  # allocated and freed within the backward
    forward_reduced: tuple[float, ...] = ()  # bytes of each tensor-parallel all-reduce
    backward_reduced: tuple[float, ...] = ()


class Sparse(NamedTuple):
    """Layers of a stage that differ from its dense layers: those with experts, or with incoming skip connections."""

    layers: int = 0
    operators: tuple[Operator, ...] = ()  # of one such layer, attention included


DENSE = Sparse()


@dataclass(frozen=True)
class Workload:
    """Work of one device for one microbatch: ``batch`` sequences, a ``1/tp`` shard of the model."""

    sequence: int
    hidden: int
    batch: float
    precision: Precision
    tp: int = 1
    ffn_hidden: int = 0
    heads: int = 1
    vocab: int = 0

    @classmethod
    def from_model(cls, model: LanguageModel, *, batch: float, tp: int = 1, precision: str = "fp32") -> Workload:
        """Return the workload of a language model."""
        return cls(
            sequence=model.sequence,
            hidden=model.hidden,
            batch=batch,
            precision=PRECISIONS[precision],
            tp=tp,
            ffn_hidden=model.ffn_hidden,
            heads=model.heads,
            vocab=model.vocab,
        )

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on the device."""
        return self.batch * self.sequence

    @property
    def hidden_bytes(self) -> float:
        """Bytes of ``[b, s, h]``: the residual stream, and the message between two stages."""
        return self.tokens * self.hidden * self.precision.item


@lru_cache(maxsize=256)
def layer(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of a transformer layer: attention, then the feed-forward block.

    ``4h^2 + 6h`` and ``2hf + f + 3h`` parameters, together ``12h^2 + 13h`` for ``f = 4h`` (arXiv:2104.04473, section
    2.4). Forward FLOPs ``24bsh^2 + 4bs^2h`` (the same, appendix).

    The kept activations are the published ``sbh(34 + 5as/h)`` bytes at 16 bits (Korthikanti et al., arXiv:2205.05198,
    eq. 1) less two parts: the ``5abs^2`` of the attention matrix, which scaled_dot_product_attention recomputes from
    its row sums (Dao et al., arXiv:2205.14135), and the two dropout masks of ``sbh`` bytes, since there is no dropout.
    That leaves 16 numbers per token and hidden unit for ``f = 4h``: the inputs of the two norms (2), of the products
    behind them (2), queries, keys and values (3), the attention output (1), and both sides of the GELU (``2f/h``). With
    ``t`` devices the first four stay whole and the others are sharded, as in eq. 2 there: ``sbh(8 + 24/t)`` bytes at 16
    bits. (Autocast on a GPU computes norms in 32 bits and keeps their inputs in that precision, ``4sbh`` bytes more; on
    a CPU it does not.)
    """
    return attention(load) + mlp(load)


def attention(load: Workload) -> tuple[Operator, ...]:
    """Return norm, projections, the ``s^2`` part and the residual sum.

    Tensor-parallel devices hold ``a/t`` heads each: the first projection is sharded by columns and all-reduces in the
    backward, the second by rows and all-reduces in the forward (Shoeybi et al., arXiv:1909.08053, section 3).
    """
    cut = load.hidden / load.tp
    return (
        _norm("attention norm", load),
        product("query, key, value", load, load.hidden, 3 * cut, backward_reduced=load.hidden_bytes),
        attention_product(load),
        product("attention output", load, cut, load.hidden, forward_reduced=load.hidden_bytes),
        _residual("attention residual", load),
    )


def mlp(load: Workload) -> tuple[Operator, ...]:
    """Return norm, ``h`` to ``f``, GELU, ``f`` to ``h`` and residual sum, sharded like :func:`attention`."""
    cut = load.ffn_hidden / load.tp
    return (
        _norm("feed-forward norm", load),
        product("feed-forward in", load, load.hidden, cut, backward_reduced=load.hidden_bytes),
        pointwise("GELU", load, cut, kept=1, read_and_written=(2, 3)),
        product("feed-forward out", load, cut, load.hidden, forward_reduced=load.hidden_bytes),
        _residual("feed-forward residual", load),
    )


@lru_cache(maxsize=256)
def joining_layer(load: Workload) -> tuple[Operator, ...]:
    """Return the operators of a U-ViT layer in which a skip connection ends."""
    return join(load) + layer(load)


def join(load: Workload) -> tuple[Operator, ...]:
    """Return a concatenation of two tensors, and a product of ``2h`` to ``h``.

    ``2h^2 + h`` parameters, ``4bsh^2`` forward FLOPs (U-ViT: Bao et al., arXiv:2209.12152, section 3.2). Tensor
    parallelism replicates it.
    """
    return (
        pointwise("skip concatenation", load, 2 * load.hidden, kept=0, read_and_written=(2, 2)),
        product("skip projection", load, 2 * load.hidden, load.hidden),
    )


@lru_cache(maxsize=256)
def embedding(load: Workload) -> tuple[Operator, ...]:
    """Return token plus position embedding: ``vh + sh`` parameters, negligible FLOPs.

    The forward gathers rows. The backward writes a gradient of the whole table, which autograd then adds to the
    accumulated one. The table is sharded over ``t`` by tokens, so that the forward ends in an all-reduce
    (arXiv:1909.08053, section 3) of rows in the precision of the table; one byte per token marks those in another
    shard.
    """
    item = load.precision.item
    table = (load.vocab / load.tp + load.sequence) * load.hidden
    rows = load.tokens + load.sequence  # of tokens and positions: their gradients have the precision of the table
    return (
        Operator(
            "embedding",
            forward=Work(bytes=3 * load.hidden_bytes),
            weight_gradient=Work(bytes=load.hidden_bytes + accumulation_bytes(table, load)),
            parameters=table,
            kept_bytes=8 * load.tokens + _flags(1, load),  # the token ids
            deferred_bytes=8 * load.tokens + rows * load.hidden * load.precision.weights,
            transient_bytes=table * item,
            forward_reduced=(load.tokens * load.hidden * load.precision.weights,),
        ),
    )


@lru_cache(maxsize=256)
def head(load: Workload) -> tuple[Operator, ...]:
    """Return the last norm and the logits: ``2h + vh`` parameters, ``2bshv`` forward FLOPs."""
    return (
        _norm("last norm", load),
        product("logits", load, load.hidden, load.vocab / load.tp, bias=False, backward_reduced=load.hidden_bytes),
    )


@lru_cache(maxsize=256)
def loss(load: Workload) -> tuple[Operator, ...]:
    """Return cross-entropy over ``[bs, v/t]`` logits, in at least 32 bits.

    The forward reads the logits and writes their log-probabilities, which are kept (the ``4sbv`` bytes of
    arXiv:2205.05198, section 4.3); the backward reads them and writes the logits' gradient. Tensor-parallel devices
    exchange a row's largest logit, its sum and the target's logit, not the logits (arXiv:1909.08053, section 3), and
    keep two bytes per token: whether it counts, and whether its target is in this shard.
    """
    logits = load.tokens * load.vocab / load.tp
    item, wide = load.precision.item, load.precision.statistics
    a_row = load.tokens * wide
    return (
        Operator(
            "loss",
            forward=Work(bytes=logits * (item + wide)),
            input_gradient=Work(bytes=logits * (wide + item)),
            kept_bytes=logits * wide + 8 * load.tokens + _flags(2, load),  # and the targets
            transient_bytes=logits * (wide + item),
            forward_reduced=(a_row, a_row, a_row),
        ),
    )


def end_operators(load: Workload, *, first: bool, last: bool) -> tuple[Operator, ...]:
    """Return the operators of a stage besides its layers: the embedding of the first, head and loss of the last."""
    return (embedding(load) if first else ()) + (head(load) + loss(load) if last else ())


def sum_over_stage(
    value: Callable[[Operator], float], load: Workload, layers: int, first: bool, last: bool, sparse: Sparse
) -> float:
    """Return the sum of ``value`` over the operators of a stage, ``sparse`` of whose layers differ from the others."""
    parts = (
        (layer(load), layers - sparse.layers),
        (sparse.operators, sparse.layers),
        (end_operators(load, first=first, last=last), 1),
    )
    return sum(count * sum(map(value, operators)) for operators, count in parts)


def deferred_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sparse = DENSE) -> float:
    """Return the bytes that a device keeps for a microbatch of a stage between the halves of a split backward.

    Every weight gradient is computed from the input of its operator and the gradient of its output: for ``f = 4h`` that
    is ``h(1 + 3)``, ``h(1 + 1)``, ``h(1 + 4)`` and ``h(4 + 1)`` numbers per token for the four products of a layer, the
    ``M_W`` of Qi et al. (arXiv:2401.10241, section 2) in its table 1: ``32sbh`` bytes at 16 bits; and ``2h`` for each
    of the two norms.
    """
    return sum_over_stage(lambda operator: operator.deferred_bytes, load, layers, first, last, sparse)


def transient_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sparse = DENSE) -> float:
    """Return the largest working set of an operator of a stage: bytes that its backward allocates and frees again.

    The embedding's backward comes last, when the kept activations of all other operators are freed, so they are
    subtracted from its working set.
    """
    operators = layer(load) + end_operators(load, first=False, last=last) + (sparse.operators if sparse.layers else ())
    largest = max(operator.transient_bytes for operator in operators)
    if not first:
        return largest
    gone = sum_over_stage(lambda operator: operator.kept_bytes, load, layers, False, last, sparse)
    return max(largest, sum(operator.transient_bytes for operator in embedding(load)) - gone)


def _flags(count: int, load: Workload) -> float:
    """Return the bytes of ``count`` Booleans per token, which only a sharded vocabulary has."""
    return count * load.tokens if load.tp > 1 else 0.0


def accumulation_bytes(numbers: float, load: Workload) -> float:
    """Return the bytes to write a new weight gradient and to add it to the accumulated one."""
    return numbers * (2 * load.precision.item + 2 * load.precision.gradients)


def product(
    name: str,
    load: Workload,
    k: float,
    n: float,
    *,
    bias: bool = True,
    forward_reduced: float | None = None,
    backward_reduced: float | None = None,
) -> Operator:
    """Return a linear map of all tokens: three products of the same size, one forward and two backward.

    It keeps its input. Each product reads two of the three matrices and writes the third.
    """
    m, item = load.tokens, load.precision.item
    parameters = k * n + (n if bias else 0)
    once = Work(2 * m * k * n, item * (m * k + k * n + m * n))
    return Operator(
        name,
        forward=once,
        input_gradient=once,
        weight_gradient=Work(once.flops, item * (m * k + m * n) + accumulation_bytes(k * n, load)),
        parameters=parameters,
        copied=parameters,
        kept_bytes=m * k * item,
        deferred_bytes=m * (k + n) * item,
        transient_bytes=k * n * item + m * (k + n) * item,
        forward_reduced=() if forward_reduced is None else (forward_reduced,),
        backward_reduced=() if backward_reduced is None else (backward_reduced,),
    )


def attention_product(load: Workload) -> Operator:
    """Return ``softmax(q k^T) v`` without materializing the ``s^2`` matrix (arXiv:2205.14135).

    Two products of ``2bs^2h`` FLOPs forward, five backward, since the scores are recomputed. It keeps queries, keys,
    values and one log-sum per row; its output is kept by the projection that reads it.
    """
    cut = load.hidden / load.tp
    product = 2 * load.batch * load.sequence**2 * cut
    one = load.tokens * cut * load.precision.item
    log_sums = load.tokens * load.heads / load.tp * load.precision.statistics
    return Operator(
        "attention",
        forward=Work(2 * product, 4 * one + log_sums),
        input_gradient=Work(5 * product, 8 * one + log_sums),
        kept_bytes=3 * one + log_sums,
        transient_bytes=4 * one,
    )


def _norm(name: str, load: Workload) -> Operator:
    """Return a layer norm: reads and writes ``[b, s, h]``; keeps its input, and a mean and a deviation per token."""
    statistics = 2 * load.tokens * load.precision.statistics
    return Operator(
        name,
        forward=Work(bytes=2 * load.hidden_bytes),
        input_gradient=Work(bytes=3 * load.hidden_bytes),
        parameters=2 * load.hidden,
        kept_bytes=load.hidden_bytes + statistics,
        deferred_bytes=2 * load.hidden_bytes + statistics,
        transient_bytes=load.hidden_bytes,
    )


def _residual(name: str, load: Workload) -> Operator:
    """Return ``x + y``: two reads and a write, forward and, to add the two gradients, backward."""
    return pointwise(name, load, load.hidden, kept=0, read_and_written=(3, 3))


def pointwise(name: str, load: Workload, width: float, *, kept: int, read_and_written: tuple[float, float]) -> Operator:
    """Return an elementwise operator over ``[tokens, width]``.

    Args:
        name: name of the operator.
        load: workload of the device.
        width: numbers per token.
        kept: tensors of that shape kept for the backward.
        read_and_written: tensors of that shape moved by the forward and by the backward.
    """
    size = load.tokens * width * load.precision.item
    forward, backward = read_and_written
    return Operator(
        name,
        forward=Work(bytes=forward * size),
        input_gradient=Work(bytes=backward * size),
        kept_bytes=kept * size,
        transient_bytes=size,
    )
