"""What a model costs in FLOPs, bytes, parameters and kept activations, operator by operator.

Every formula counts what :mod:`meshwave.engine.runtime.models` builds: a pre-norm transformer with
biases in its layers, learned positions, a head of its own (not tied to the embedding, since the
two lie on different stages) and no dropout. GPT and BERT differ in their mask and their
targets, so they cost the same.

Symbols, as in the papers: ``b`` sequences, ``s`` tokens of a sequence, ``h`` hidden, ``f``
feed-forward hidden, ``a`` heads, ``v`` vocabulary, ``t`` tensor-parallel devices. A matrix
product of ``[m, k]`` by ``[k, n]`` is ``2 m k n`` FLOPs. Arithmetic that is not a matrix product
is counted by the bytes it moves, for it is bound by them; this is also the convention in which
papers report FLOPs (Narayanan et al., arXiv:2104.04473, appendix).

A layer with experts has them instead of the products of its feed-forward block; what they are is
told by :mod:`meshwave.engine.costs.expert_blocks`, and a stage is given them as :class:`Sparse`. So it is given
the layers of a U-ViT that a skip connection ends in (:func:`joining_layer`).
"""

from __future__ import annotations

from collections.abc import Iterable

from meshwave.engine.costs.operators import (
    DENSE,
    PRECISIONS,
    Model,
    MoE,
    Operator,
    Sparse,
    Workload,
    _of_stage,
    attention,
    head,
    join,
    joining_layer,
    mlp,
)


def stage_parameters(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sparse = DENSE) -> float:
    """Parameters of a stage that one device holds."""
    return _of_stage(lambda operator: operator.parameters, load, layers, first, last, sparse)


def copied_parameters(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sparse = DENSE) -> float:
    """Those of them that mixed precision holds a second time: what products take, not norms and tables."""
    return _of_stage(lambda operator: operator.copied, load, layers, first, last, sparse)


def model_parameters(model: Model) -> float:
    """Parameters of the whole model: ``12lh^2 (1 + 13/12h + (2v+s)/12lh) + 2h`` for ``f = 4h``.

    arXiv:2104.04473, eq. 2, with a second ``vh``, as embedding and head are not tied, and with
    the last norm; where a layer has ``E`` experts, ``E`` such blocks and a gate of ``hE`` for one; and
    ``2h^2 + h`` where a skip connection ends.
    """
    load = Workload.of(model, batch=1)
    joins = Sparse(len(skips_of(model)), joining_layer(load))
    dense = stage_parameters(load, model.layers, first=True, last=True, sparse=joins)
    moe: MoE | None = getattr(model, "moe", None)
    if moe is None:
        return dense
    h, f = model.hidden, model.ffn_hidden
    one = (2 * h + 1) * f + h  # a feed-forward block, or an expert
    return dense + len(moe.blocks(model.layers)) * (moe.experts * (one + h) - one)


def model_flops(model: Model, sequences: float) -> float:
    """FLOPs of ``sequences`` through the whole model, forward and backward.

    ``72 b s l h^2 (1 + s/6h + v/12lh)`` for ``f = 4h``: three times the forward, for a backward
    costs two forwards (arXiv:2104.04473, appendix, without recomputation). This is the
    numerator of the model FLOPs utilisation (Chowdhery et al., arXiv:2204.02311, appendix B):
    what an attention kernel computes twice counts once, and a causal mask saves nothing. Of a
    layer with experts it counts what a token asks for: its ``top_k`` experts and the gate's
    ``2bshE``, whatever capacity is padded or dropped. A skip connection adds the ``4bsh^2`` of its end.
    """
    load = Workload.of(model, batch=sequences)
    attended, dense = (_forward_flops(part(load)) for part in (attention, mlp))
    once = model.layers * (attended + dense) + len(skips_of(model)) * _forward_flops(join(load))
    moe: MoE | None = getattr(model, "moe", None)
    if moe is not None:  # a token's experts and its gate, instead of the dense block
        gate = 2.0 * load.tokens * load.hidden * moe.experts
        once += len(moe.blocks(model.layers)) * (moe.top_k * dense + gate - dense)
    return 3.0 * (once + _forward_flops(head(load)))


def skips_of(model: Model) -> tuple[tuple[int, int], ...]:
    """Layers (from, to) of the skip connections of a model; none where it knows of none."""
    return tuple(getattr(model, "skips", ()))


def _forward_flops(operators: Iterable[Operator]) -> float:
    return sum(operator.forward.flops for operator in operators)


def activation_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sparse = DENSE) -> float:
    """Bytes a device keeps of a stage and a microbatch between its forward and its backward.

    What autograd keeps (see :func:`layer`), and the stage's output, which the executor holds to
    start the backward from; the last stage's output is one number.
    """
    kept = _of_stage(lambda operator: operator.kept_bytes, load, layers, first, last, sparse)
    return kept if last else kept + load.hidden_bytes


def input_bytes(load: Workload, *, first: bool, last: bool) -> float:
    """Bytes a device keeps of a stage that is recomputed: its input alone, and the targets if it has the loss.

    Chen et al., arXiv:1604.06174, with a whole stage as the segment.
    """
    ids = 8 * load.tokens
    return (ids if first else load.hidden_bytes) + (ids if last else 0)


def optimizer_state_bytes(optimizer: str, precision: str) -> int:
    """Bytes of optimizer state a parameter: two moments of AdamW (Loshchilov and Hutter,
    arXiv:1711.05101), nothing for SGD without momentum."""
    return 2 * PRECISIONS[precision].moment if optimizer == "adamw" else 0


def optimizer_traffic_bytes(optimizer: str, precision: str, *, clipped: bool) -> int:
    """Bytes a parameter that a step moves, each number touched once, as a fused kernel does.

    AdamW reads weight, gradient and two moments and writes all but the gradient; SGD reads
    weight and gradient and writes the weight. Mixed precision also writes the 16-bit copy.
    Clipping reads the gradients for their norm, then reads and writes them to scale them.
    """
    size = PRECISIONS[precision]
    master = size.gradients
    moments = 4 * size.moment if optimizer == "adamw" else 0
    return 3 * master + moments + size.copy + (3 * size.gradients if clipped else 0)
