"""Operators: FLOPs, bytes, parameters and kept activations of products, attention, norms and elementwise operations.

A matrix product of ``[m, k]`` by ``[k, n]`` takes ``2 m k n`` FLOPs. Other operations are memory-bound and counted by
the bytes they move, which is the convention of papers that report FLOPs (Narayanan et al., arXiv:2104.04473, appendix).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.document.architecture import PLAIN, Architecture
from meshwave.engine.document.devices import CAST_BYTES, AttentionKernel, GraphPart, Graphs
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.pipeline import RecomputedPart
from meshwave.engine.document.training import ContextExchange, Training

Number = TypeVar("Number", float, NDArray[np.float64])


class Precision(NamedTuple):
    """Bytes per element of each kind of tensor."""

    item: int  # activations, and messages between stages
    weights: int
    copy: int  # copy of a weight in the precision of matrix products
    gradients: int
    moment: int  # one of the two moments of AdamW
    statistics: int  # tensors kept by norms, softmax and loss

    def computed_bytes(self, parameters: Number, copied: Number) -> Number:
        """Return the bytes of ``parameters`` in computations; ``copied`` of them have a copy in compute precision."""
        return (parameters - copied) * self.weights + copied * (self.copy or self.weights)


PRECISIONS = {
    "fp32": Precision(item=4, weights=4, copy=0, gradients=4, moment=4, statistics=4),
    # mixed precision: fp32 master weights, fp32 gradients and one bf16 copy for computation
    # (Micikevicius et al., arXiv:1710.03740; Rajbhandari et al., arXiv:1910.02054, section 3.1).
    "bf16": Precision(item=2, weights=4, copy=2, gradients=4, moment=4, statistics=4),
    "pure_bf16": Precision(item=2, weights=2, copy=0, gradients=2, moment=2, statistics=4),
    "fp64": Precision(item=8, weights=8, copy=0, gradients=8, moment=8, statistics=8),
}


def element_sizes(training: Training) -> Precision:
    """Return the bytes per element of each kind of tensor in a training run."""
    sizes = PRECISIONS[training.precision]
    has_short_gradients = training.precision == "bf16" and training.bf16_gradients
    return sizes._replace(gradients=sizes.item) if has_short_gradients else sizes


Kernel = Literal["memory", "product", "fp8", "fp4", "attention", "attention-backward", "unfused-attention"]
"""Kind of kernel, which determines its rate: memory traffic, matrix products of a number format, or attention."""


class Work(NamedTuple):
    """FLOPs executed, and bytes moved to or from the memory of a device."""

    flops: float = 0.0
    bytes: float = 0.0
    kernel: Kernel = "memory"
    slowdown: float = 1.0  # of the FLOPs: below 1 if masked pairs are skipped, above 1 without tensor cores
    cast_bytes: float = 0.0  # bytes that a cast to the number format of the product moves before it


class Operator(NamedTuple):
    """Operation of a part of the model, on one device, for one microbatch."""

    name: str
    forward: Work
    input_gradient: Work = Work()
    weight_gradient: Work = Work()
    parameters: float = 0.0
    copied: float = 0.0  # parameters that have a copy in the precision of matrix products
    kept_bytes: float = 0.0  # bytes that autograd keeps from the forward to the backward
    deferred_bytes: float = 0.0  # bytes that a split backward keeps from its first half to the weight gradients
    transient_bytes: float = 0.0  # bytes allocated and freed within the backward
    output_bytes: float = 0.0  # bytes of the output of a matrix product or of attention
    forward_reduced: tuple[float, ...] = ()  # bytes of each tensor-parallel all-reduce
    backward_reduced: tuple[float, ...] = ()
    forward_gathered: tuple[float, ...] = ()  # bytes of each tensor-parallel all-gather or reduce-scatter
    backward_gathered: tuple[float, ...] = ()
    context_bytes: float = 0.0  # bytes of keys and values that a device sends to its context-parallel group
    part: GraphPart | None = None  # part of a layer that a CUDA graph of its own can launch


class HeadWidths(NamedTuple):
    """Elements per token of the queries, keys, values and outputs of attention on one device, summed over its heads."""

    queries: float
    keys: float
    values: float
    outputs: float


class Kernels(NamedTuple):
    """Settings of a design for matrix products, attention, elementwise kernels and recomputation."""

    attention: AttentionKernel = "default"
    """Kernel of attention; an unfused one writes the scores to memory."""
    linear: Literal["product", "fp8", "fp4"] = "product"
    """Number format of the matrix products of linear layers."""
    fuses_elementwise: bool = False
    """True if norms, activation functions and sums are compiled or hand-fused into few kernels."""
    recomputes: RecomputedPart | None = None
    """Part of a layer that its backward recomputes; recomputation of whole stages is independent of it."""
    overlaps_tensor_parallel: bool = False
    """True if gathers and scatters overlap with adjacent matrix products."""
    blocks_launches: bool = False
    """True if the host waits for each kernel before it launches the next one."""
    graphs: Graphs = "none"
    """Kernels that CUDA graphs launch."""


PLAIN_KERNELS = Kernels()


@dataclass(frozen=True)
class Workload:
    """Work of one device for one microbatch: ``batch`` sequences on a ``1/tp`` shard of the model."""

    sequence: int
    hidden: int
    batch: float
    precision: Precision
    tp: int = 1
    ffn_hidden: int = 0
    heads: int = 1
    vocab: int = 0
    architecture: Architecture = PLAIN
    attended_share: float = 1.0
    """Fraction of the sequence that a token attends to, averaged over the layers."""
    sequence_parallel: bool = False
    """True if tensor-parallel devices divide the tokens outside attention and MLP."""
    separates_table: bool = False
    """True if the head has a copy of the embedding table of its own stage, because each of them is sharded."""
    causal: bool = False
    """True if a token attends only to earlier tokens."""
    kernels: Kernels = PLAIN_KERNELS
    cp: int = 1
    """Number of devices that divide the tokens of each sequence; ``batch`` counts their share."""
    context_exchange: ContextExchange = "ring"
    """Exchange of keys and values between these devices."""

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
            architecture=model.architecture,
            attended_share=float(model.attended_share(model.sequence)),
            causal=model.causal,
        )

    @property
    def table_parameters(self) -> float:
        """Parameters of the part of the token table, or of an output layer without bias, on the device."""
        return self.vocab / self.tp * self.hidden

    @property
    def tokens(self) -> float:
        """Number of tokens of one microbatch on the device."""
        return self.batch * self.sequence

    @property
    def hidden_bytes(self) -> float:
        """Bytes of ``[b, s, h]``: the residual stream, and the message between two stages."""
        return self.tokens * self.hidden * self.precision.item

    @property
    def residual_stream(self) -> Workload:
        """Workload of norms, residual sums and messages; with sequence parallelism, it has ``1/tp`` of the tokens."""
        if not self.sequence_parallel:
            return self
        return replace(self, batch=self.batch / self.tp, sequence_parallel=False)

    @property
    def head_widths(self) -> HeadWidths:
        """Head widths of the device; a key-value head counts once, regardless of the query heads that share it."""
        attention, heads = self.architecture.attention, self.heads / self.tp
        if (latent := attention.latent) is not None:
            query, value = heads * (latent.nope_dim + latent.rope_dim), heads * latent.value_dim
            return HeadWidths(query, query, value, value)
        head_dim = attention.head_dim or self.hidden / self.heads
        shared = (attention.kv_heads or self.heads) / self.tp * head_dim
        return HeadWidths(heads * head_dim, shared, shared, heads * head_dim)


def accumulation_bytes(numbers: float, load: Workload) -> float:
    """Return the bytes to write a new weight gradient of ``numbers`` elements, and to add it to the accumulated one."""
    return numbers * (2 * load.precision.item + 2 * load.precision.gradients)


FLOAT8_BYTES, SCALE_BYTES = 1, 4
"""Bytes of a number in fp8, and of the scale of a tensor."""


def product_operator(
    name: str,
    load: Workload,
    k: float,
    n: float,
    *,
    bias: bool = True,
    keeps_input: bool = True,
    cut: Literal["columns", "rows"] | None = None,
    kernel: Kernel | None = None,
) -> Operator:
    """Return the operator of a linear layer: three matrix products of the same size, one forward and two backward.

    It keeps its input, unless another operator keeps the same tensor. Each product reads two of the three matrices and
    writes the third. A product in fp8 keeps a copy of its input in that format, except where sequence parallelism
    gathers the input again.

    Tensor-parallel devices shard its columns or its rows: they all-reduce the gradient of the input, or the output
    (Shoeybi et al., arXiv:1909.08053, section 3). With sequence parallelism, they gather the input and reduce-scatter
    its gradient, or the reverse, and keep a share of an input that the backward gathers again (Korthikanti et al.,
    arXiv:2205.05198, section 4.2.2).

    Args:
        name: name of the operator.
        load: workload of the device.
        k: elements per token of the input on this device.
        n: elements per token of the output on this device.
        bias: True to add a learned vector.
        keeps_input: False if another operator keeps, and gathers, the same input.
        cut: dimension of the matrix that tensor parallelism shards; None if each device has the whole matrix.
        kernel: kind of kernel of the matrix products; by default that of linear layers.
    """
    m, item = load.tokens, load.precision.item
    parameters = k * n + (n if bias else 0)
    kernel = kernel or load.kernels.linear
    once = Work(2 * m * k * n, item * (m * k + k * n + m * n), kernel)
    cast = CAST_BYTES.get(kernel, 0.0)
    gathers_again = cut == "columns" and load.sequence_parallel and load.tp > 1
    kept = (load.residual_stream.tokens if cut == "columns" else m) * k * item * keeps_input
    if kernel == "fp8" and not gathers_again:
        kept = m * k * FLOAT8_BYTES + SCALE_BYTES
    operator = Operator(
        name,
        forward=once._replace(cast_bytes=m * k * cast * keeps_input),
        input_gradient=once._replace(cast_bytes=m * n * cast),
        weight_gradient=Work(once.flops, item * (m * k + m * n) + accumulation_bytes(k * n, load), kernel),
        parameters=parameters,
        copied=parameters,
        kept_bytes=kept,
        deferred_bytes=m * (k + n) * item if kernel != "fp8" else m * (k * FLOAT8_BYTES + n * item) + SCALE_BYTES,
        transient_bytes=k * n * item + m * (k + n) * item,
        output_bytes=m * n * item,
    )
    size = (m * (k if cut == "columns" else n) * item,)  # the tensor that is not sharded
    if cut is None:
        return operator
    if not load.sequence_parallel:
        return operator._replace(backward_reduced=size) if cut == "columns" else operator._replace(forward_reduced=size)
    if cut == "rows":
        return operator._replace(forward_gathered=size, backward_gathered=size)
    return operator._replace(forward_gathered=size * keeps_input, backward_gathered=size * (1 + keeps_input))


SCORE_PASSES = (6, 10)
"""Number of times that unfused attention reads or writes the score matrix, in the forward and in the backward.

These are the matrix products, the fused masked softmax, and dropout as a separate operator (Korthikanti et al.,
arXiv:2205.05198, section 4.1).
"""


TENSOR_CORE_ALIGNMENT = 8
"""Tensor cores need heads of a multiple of this number of 16-bit elements."""
WITHOUT_TENSOR_CORES = 16.0
"""Peak FLOP/s of tensor cores relative to that of 32-bit numbers without them, 312 to 19.5 TFLOP/s on A100."""


def attention_product(load: Workload) -> Operator:
    """Return the operator ``softmax(q k^T) v``, fused so that the ``s^2`` matrix is not stored (arXiv:2205.14135).

    It has two matrix products in the forward and five in the backward, which recomputes the scores: ``2bs^2h`` FLOPs
    each if all heads have their own keys and values. It keeps queries, keys, values and one log-sum per row; the
    projection that reads its output keeps the output, unless it is in fp8: it then keeps a copy in fp8, and attention the
    output. A window limits the tokens that each token attends to. The bias of ALiBi is read for each score. Unfused
    attention writes the scores and keeps them; its products do not use tensor cores if the size of a head is not
    aligned. Recomputed attention keeps queries, keys and values only.

    Context-parallel devices exchange keys and values. After an all-gather, they keep those of all devices, and the
    backward holds their gradients twice: computed, and in the order of the devices. A ring holds a received and a sent
    part of keys and values, and of their gradients.
    """
    widths, item = load.head_widths, load.precision.item
    pairs = load.tokens * load.sequence * load.attended_share
    scores, values = 2 * pairs * widths.queries, 2 * pairs * widths.outputs
    taken = load.tokens * (widths.queries + widths.keys + widths.values) * item
    given = load.tokens * widths.outputs * item
    log_sums = load.tokens * load.heads / load.tp * load.precision.statistics
    sinks = load.heads / load.tp if load.architecture.attention.sinks else 0.0
    passed = load.tokens * (widths.keys + widths.values) * item if load.cp > 1 else 0.0
    gathers = load.context_exchange == "all_gather"
    kept = taken + (load.cp - 1) * passed * gathers
    transient = taken + given + passed * (2 * load.cp if gathers else 4)
    matrix = pairs * load.heads / load.tp * item
    if load.kernels.attention == "unfused":
        is_aligned = widths.outputs * load.tp / load.heads % TENSOR_CORE_ALIGNMENT == 0
        forward = Work(
            scores + values,
            taken + given + SCORE_PASSES[0] * matrix,
            "unfused-attention",
            1.0 if is_aligned else WITHOUT_TENSOR_CORES,
        )
        return Operator(
            "attention",
            forward=forward,
            input_gradient=forward._replace(
                flops=2 * forward.flops, bytes=2 * (taken + given) + SCORE_PASSES[1] * matrix
            ),
            parameters=sinks,
            kept_bytes=taken if load.kernels.recomputes == "attention" else kept + matrix,
            transient_bytes=transient + 2 * matrix,
            output_bytes=given,
            context_bytes=passed,
        )
    share = 0.5 if load.causal else 1.0
    bias = matrix if load.architecture.positions.kind == "alibi" else 0.0
    copies_output = load.kernels.linear == "fp8"
    return Operator(
        "attention",
        forward=Work(scores + values, taken + given + log_sums + bias, "attention", share),
        input_gradient=Work(
            3 * scores + 2 * values, 2 * (taken + given) + log_sums + bias, "attention-backward", share
        ),
        parameters=sinks,
        kept_bytes=taken if load.kernels.recomputes == "attention" else kept + log_sums + given * copies_output,
        transient_bytes=transient,
        output_bytes=given + log_sums,
        context_bytes=passed,
    )


def norm_operator(
    name: str, load: Workload, width: float | None = None, *, weights: float | None = None, rows: float = 1
) -> Operator:
    """Return the operator of a norm, which keeps its input and the statistics of each row.

    Args:
        name: name of the operator.
        load: workload of the device.
        width: elements per token; None for the hidden size.
        weights: elements of the learned vector; None for the width.
        rows: number of separately normalized rows per token.
    """
    kind = load.architecture.norm
    width = load.hidden if width is None else width
    size = load.tokens * width * load.precision.item
    statistics = kind.statistics * rows * load.tokens * load.precision.statistics
    return Operator(
        name,
        forward=Work(bytes=2 * size),
        input_gradient=Work(bytes=3 * size),
        parameters=kind.vectors * (width if weights is None else weights),
        kept_bytes=size + statistics,
        deferred_bytes=2 * size + statistics if kind.vectors else 0.0,
        transient_bytes=size,
    )


def residual_operator(name: str, load: Workload) -> Operator:
    """Return the operator ``x + y``: two reads and one write in the forward, and the same in the backward."""
    return elementwise_operator(name, load, load.hidden, kept=0, read_and_written=(3, 3))


def elementwise_operator(
    name: str, load: Workload, width: float, *, kept: int, read_and_written: tuple[float, float]
) -> Operator:
    """Return an elementwise operator over ``[tokens, width]``.

    Args:
        name: name of the operator.
        load: workload of the device.
        width: elements per token.
        kept: number of tensors of that shape kept for the backward.
        read_and_written: number of tensors of that shape moved by the forward, and by the backward.
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
