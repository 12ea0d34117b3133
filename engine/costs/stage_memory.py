"""Memory of a transformer stage, from its operators: kept activations, deferred gradients, and the largest working set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from meshwave.engine.costs.operators import (
    Operator,
    Workload,
)
from meshwave.engine.costs.transformer_layers import (
    Sparse,
    embedding_operators,
    end_operators,
    head_operators,
    layer_operators,
    multi_token_input_operators,
)


def sum_over_stage(
    value: Callable[[Operator], float], load: Workload, layers: int, first: bool, last: bool, sparse: Sequence[Sparse]
) -> float:
    """Return the sum of ``value`` over the operators of a stage; its layers in ``sparse`` differ from the others."""
    parts = (
        (layer_operators(load), layers - sum(each.layers for each in sparse)),
        *((each.operators, each.layers) for each in sparse),
        (end_operators(load, first=first, last=last), 1),
    )
    return sum(count * sum(map(value, operators)) for operators, count in parts)


BlockSize = tuple[float, float]
"""Numbers of parameters and of copied parameters of a block."""


def largest_neighbours(
    load: Workload, kinds: Sequence[int], *, first: bool, last: bool, sparse: Sequence[Sparse] = ()
) -> BlockSize:
    """Return the size of the two largest adjacent blocks of a stage. A block is the embedding, a layer, or the head.

    Args:
        load: work of the device.
        kinds: [layers] kind of each layer: 0, or 1 + its place in ``sparse``.
        first: True for the first stage.
        last: True for the last stage.
        sparse: layers that differ from the others.
    """
    of_kinds = [block_size(layer_operators(load)), *(block_size(each.operators) for each in sparse)]
    return largest_pair(
        [
            *([block_size(embedding_operators(load))] if first else []),
            *(of_kinds[kind] for kind in kinds),
            *([block_size(head_operators(load))] if last else []),
        ]
    )


def block_size(operators: Sequence[Operator]) -> BlockSize:
    """Return the size of a block of these operators."""
    return sum(each.parameters for each in operators), sum(each.copied for each in operators)


def largest_pair(sizes: Sequence[BlockSize]) -> BlockSize:
    """Return the size of the two largest adjacent blocks together."""
    return max((a + c, b + d) for (a, b), (c, d) in pairwise([(0.0, 0.0), *sizes]))


def kept_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the bytes that autograd keeps for a microbatch of a stage from its forward to its backward."""
    uncommon = sum(each.layers * _kept_layer_bytes(load, each.operators) for each in sparse)
    dense = layers - sum(each.layers for each in sparse)
    ends = sum(operator.kept_bytes for operator in end_operators(load, first=first, last=last))
    if last and _recomputes_layers(load):
        joined = sum(operator.kept_bytes for operator in multi_token_input_operators(load))
        ends -= load.architecture.mtp_layers * joined  # the layer keeps its two inputs, of which a norm keeps one
    return dense * _kept_layer_bytes(load, layer_operators(load)) + uncommon + ends


def _recomputes_layers(load: Workload) -> bool:
    """Return True if the backward runs layers again, as a whole or most of their operators."""
    return load.kernels.recomputes not in (None, "attention")


def _kept_layer_bytes(load: Workload, operators: Sequence[Operator]) -> float:
    """Return the bytes that autograd keeps for a layer; those of its input if it is recomputed from that.

    With the recomputation of operators, these are its input and the outputs of attention and of every second product.
    """
    match load.kernels.recomputes:
        case "layers" | "layers-early-stop":
            return load.residual_stream.hidden_bytes
        case "operators":
            products = [each.output_bytes for each in operators if each.output_bytes and each.name != "attention"]
            attention = sum(each.output_bytes for each in operators if each.name == "attention")
            return load.residual_stream.hidden_bytes + attention + sum(products[::2])
    return sum(operator.kept_bytes for operator in operators)


def deferred_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the bytes that a device keeps for a microbatch of a stage between the halves of a split backward.

    Each weight gradient is computed from the input of its operator and the gradient of the operator's output. For ``f =
    4h`` these are ``h(1 + 3)``, ``h(1 + 1)``, ``h(1 + 4)`` and ``h(4 + 1)`` elements per token for the four products of
    a layer: ``32sbh`` bytes at 16 bits, which is ``M_W`` in table 1 of Qi et al. (arXiv:2401.10241, section 2). Each of
    the two norms adds ``2h``.
    """
    return sum_over_stage(lambda operator: operator.deferred_bytes, load, layers, first, last, sparse)


def transient_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the bytes that the backward of the operator with the largest working set allocates and frees again.

    A layer that is recomputed allocates its activations again. The embedding's backward runs last, when the kept
    activations of all other operators are free, so they are subtracted from its working set.
    """
    kinds = [layer_operators(load), *(each.operators for each in sparse)]
    operators = [*sum(kinds, ()), *end_operators(load, first=False, last=last)]
    largest = max(operator.transient_bytes for operator in operators)
    if _recomputes_layers(load):
        largest += max(sum(operator.kept_bytes for operator in each) for each in kinds)
    if not first:
        return largest
    gone = kept_bytes(load, layers, first=False, last=last, sparse=sparse)
    return max(largest, sum(operator.transient_bytes for operator in embedding_operators(load)) - gone)
