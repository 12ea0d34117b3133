"""Parameters, FLOPs, activations and optimizer bytes of stages and of the whole model.

The formulas sum the operators of :mod:`meshwave.engine.costs.operators`, which also lists the symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwave.engine.costs.operators import Operator, Workload, element_sizes
from meshwave.engine.costs.stage_memory import kept_bytes, sum_over_stage
from meshwave.engine.costs.transformer_layers import (
    Sparse,
    feed_forward,
    head_operators,
    join_operators,
    joining_layer_operators,
    layer_operators,
    multi_token_operators,
    shared_expert_operators,
)
from meshwave.engine.document.expert_layers import whole_expert_layer
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.training import Training


def stage_parameters(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the number of parameters of a stage on one device."""
    return sum_over_stage(lambda operator: operator.parameters, load, layers, first, last, sparse)


def copied_parameters(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the number of parameters that mixed precision copies: those of matrix products, not of norms or tables."""
    return sum_over_stage(lambda operator: operator.copied, load, layers, first, last, sparse)


def model_parameters(model: LanguageModel) -> float:
    """Return the number of parameters of the model: ``12lh^2 (1 + 13/12h + (2v+s)/12lh) + 2h`` for ``f = 4h``.

    arXiv:2104.04473, eq. 2, with an additional ``vh`` for the untied head, and with the last norm. A layer with ``E``
    experts has ``E`` feed-forward blocks and a gate of ``hE``; the end of a skip connection adds ``2h^2 + h``.
    """
    load = Workload.from_model(model, batch=1)
    joins = [Sparse(len(model.skips), joining_layer_operators(load))]
    dense = stage_parameters(load, model.layers, first=True, last=True, sparse=joins)
    moe = model.moe
    if moe is None:
        return dense
    experts = whole_expert_layer(model)
    beside = experts.gate_parameters + _sum_parameters(shared_expert_operators(load, moe))
    replaced = _sum_parameters(feed_forward("feed-forward", load, model.ffn_hidden))
    return dense + len(model.expert_blocks) * (moe.experts * experts.expert_parameters() + beside - replaced)


def expert_parameters(model: LanguageModel) -> float:
    """Return the number of parameters of all routed experts of the model, without gates and shared experts."""
    moe = model.moe
    return len(model.expert_blocks) * moe.experts * whole_expert_layer(model).expert_parameters() if moe else 0.0


def active_parameters(model: LanguageModel) -> float:
    """Return the number of parameters that a token uses: all except those of experts to which it is not routed."""
    moe = model.moe
    if moe is None:
        return model_parameters(model)
    idle = (moe.experts - moe.top_k) * whole_expert_layer(model).expert_parameters()
    return model_parameters(model) - len(model.expert_blocks) * idle


def model_flops(model: LanguageModel, sequences: float, attended_share: float | None = None) -> float:
    """Return the FLOPs of forward and backward of ``sequences`` sequences through the whole model.

    ``72 b s l h^2 (1 + s/6h + v/12lh)`` for ``f = 4h``: three times the forward, since a backward costs two forwards
    (arXiv:2104.04473, appendix, without recomputation). This is the numerator of the model FLOPs utilization (Chowdhery
    et al., arXiv:2204.02311, appendix B): recomputation inside an attention kernel is not counted, and a causal mask
    saves nothing. A layer with experts counts the ``top_k`` experts of each token and the gate's ``2bshE``, regardless
    of padding and dropped tokens. The end of a skip connection adds ``4bsh^2``, a layer of multi-token prediction
    ``4bsh^2 + 2bshv``. With ``attended_share``, a token attends to this fraction of the sequence.
    """
    load = Workload.from_model(model, batch=sequences)
    if attended_share is not None:
        load = replace(load, attended_share=attended_share)
    once = model.layers * _forward_flops(layer_operators(load)) + len(model.skips) * _forward_flops(
        join_operators(load)
    )
    moe = model.moe
    if moe is not None:  # a token's experts and the gate, instead of the dense block
        visited, replaced = (
            _forward_flops(feed_forward("feed-forward", load, width))
            for width in (moe.expert_width(model.ffn_hidden), model.ffn_hidden)
        )
        beside = 2.0 * load.tokens * load.hidden * moe.experts + _forward_flops(shared_expert_operators(load, moe))
        once += len(model.expert_blocks) * (moe.top_k * visited + beside - replaced)
    further = load.architecture.mtp_layers * _forward_flops(multi_token_operators(load, 0.0))
    return 3.0 * (once + _forward_flops(head_operators(load)) + further)


def _sum_parameters(operators: Iterable[Operator]) -> float:
    return sum(operator.parameters for operator in operators)


def _forward_flops(operators: Iterable[Operator]) -> float:
    return sum(operator.forward.flops for operator in operators)


def activation_bytes(load: Workload, layers: int, *, first: bool, last: bool, sparse: Sequence[Sparse] = ()) -> float:
    """Return the bytes that a device keeps for a microbatch of a stage between its forward and its backward.

    These are the tensors that autograd keeps, and the output of the stage, from which the executor starts the backward.
    A layer that is recomputed in part keeps fewer of them. The output of the last stage is one number.
    """
    kept = kept_bytes(load, layers, first=first, last=last, sparse=sparse)
    return kept if last else kept + load.residual_stream.hidden_bytes


def input_bytes(load: Workload, *, first: bool, last: bool) -> float:
    """Return the bytes that a device keeps for a recomputed stage: its input, and the targets if it has the loss.

    This is Chen et al., arXiv:1604.06174, with a whole stage as the segment.
    """
    ids = 8 * load.tokens
    return (ids if first else load.residual_stream.hidden_bytes) + (ids if last else 0)


def optimizer_state_bytes(training: Training) -> int:
    """Return the bytes of optimizer state per parameter.

    AdamW has two moments (Loshchilov and Hutter, arXiv:1711.05101), SGD without momentum none.
    """
    return 2 * element_sizes(training).moment if training.optimizer == "adamw" else 0


def optimizer_traffic_bytes(training: Training) -> int:
    """Return the bytes per parameter that a step of a fused optimizer kernel reads and writes.

    AdamW reads the weight, gradient and two moments, and writes all but the gradient; SGD reads the weight and
    gradient, and writes the weight. Mixed precision also writes the 16-bit copy. Clipping reads the gradients for their
    norm, then reads and writes them to scale them.
    """
    size = element_sizes(training)
    moments = 4 * size.moment if training.optimizer == "adamw" else 0
    clipping = 0 if training.clip_norm is None else 3 * size.gradients
    return 2 * size.weights + size.gradients + moments + size.copy + clipping
