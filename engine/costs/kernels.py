"""Durations of the kernels of an operator on a device, given the constants of the kind of device."""

from __future__ import annotations

from meshwave.engine.costs.operators import PLAIN_KERNELS, Kernel, Kernels, Operator, Work
from meshwave.engine.document import Device
from meshwave.engine.document.devices import FORMAT_RATES, DeviceKind, GraphPart, find_device_kind
from meshwave.engine.document.pipeline import RecomputedPart

BACKWARD_SHARE = 0.88
"""FLOP/s of the attention backward relative to the forward.

It is the ratio of FlashAttention-2 and 3 and of cuDNN for sequences of 4k to 16k tokens and heads of 128
(arXiv:2307.08691, arXiv:2407.08608).
"""

END_OPERATORS = {
    *("embedding", "embedding norm", "prediction embedding", "last norm", "logits", "logit cap", "loss"),
    *("input convolution", "noise step in", "noise step out", "output convolution"),
}
"""Names of the operators outside layers."""
LAST_OPERATORS = {"feed-forward out", "feed-forward residual", "shared experts out"}
"""Names of the operators of a layer whose output its backward does not need."""


def work_seconds(work: Work, device: Device, kernels: Kernels = PLAIN_KERNELS, part: GraphPart | None = None) -> float:
    """Return the longer of compute and memory time in seconds (Williams, Waterman and Patterson, "Roofline", 2009).

    A device without constants reaches the fraction ``efficiency`` of its peak in all matrix products, whatever its
    ``kernels`` and the ``part`` of a layer that the work belongs to.
    """
    kind = find_device_kind(device.name)
    if kind is not None:
        return _kernel_seconds(work, device, kind, kernels, part)
    peak = device.peak_flops * FORMAT_RATES.get(work.kernel, 1.0)
    return max(work.flops / (peak * device.efficiency), work.bytes / device.memory_bandwidth)


def recomputed_share(operator: Operator, part: RecomputedPart | None) -> float:
    """Return the fraction of an operator's forward that is recomputed in the backward."""
    is_attention = operator.name == "attention"
    match part:
        case "attention":
            return float(is_attention)
        case "operators":
            is_kept = is_attention or operator.name in END_OPERATORS
            return 0.0 if is_kept else 0.5 if operator.forward.flops else 1.0
        case "layers":
            return float(operator.name not in END_OPERATORS)
        case "layers-early-stop":
            return float(operator.name not in END_OPERATORS | LAST_OPERATORS)
    return 0.0


def recomputes_experts(part: RecomputedPart | None) -> bool:
    """Return True if the backward of a layer runs its experts again, including their exchanges."""
    return part in ("operators", "layers", "layers-early-stop")


def _kernel_seconds(work: Work, device: Device, kind: DeviceKind, kernels: Kernels, part: GraphPart | None) -> float:
    """Return the seconds of work on a device with the constants of its kind.

    A matrix product takes a fixed time, plus the time of its FLOPs at the sustained rate. This describes measured
    products better than whole waves of tiles do.
    """
    constants = kind.constants
    launched_s = constants.launched_kernel_s(kernels.graphs, part)
    fixed_s = launched_s + kind.blocking_launch_s * kernels.blocks_launches
    if work.kernel == "memory":
        share = constants.memory_efficiency if kernels.fuses_elementwise else constants.eager_memory_efficiency
        return fixed_s + work.bytes / (device.memory_bandwidth * share) if work.bytes else 0.0
    moved = work.bytes / (device.memory_bandwidth * constants.memory_efficiency)
    peak = device.peak_flops * FORMAT_RATES.get(work.kernel, 1.0)
    seconds = work.flops * work.slowdown / (peak * _kernel_efficiency(work.kernel, kind, kernels))
    if work.kernel == "unfused-attention":
        return fixed_s + seconds + moved
    return fixed_s + max(seconds, moved) + work.cast_bytes / (device.memory_bandwidth * constants.memory_efficiency)


def _kernel_efficiency(kernel: Kernel, kind: DeviceKind, kernels: Kernels) -> float:
    """Return the fraction of peak FLOP/s that a kernel sustains."""
    match kernel:
        case "attention":
            return _attention_efficiency(kind, kernels)
        case "attention-backward":
            return _attention_efficiency(kind, kernels) * BACKWARD_SHARE
        case "fp8" | "fp4":
            return kind.constants.product_8bit_efficiency
    return kind.constants.product_efficiency


def _attention_efficiency(kind: DeviceKind, kernels: Kernels) -> float:
    """Return the fraction of peak FLOP/s in the forward of fused attention: of its kernel, or of the usual one."""
    constants = kind.constants
    if kernels.attention == "default":
        return constants.attention_efficiency if kernels.fuses_elementwise else constants.eager_attention_efficiency
    return kind.attention_kernels.get(kernels.attention, constants.attention_efficiency)
