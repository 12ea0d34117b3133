"""Seconds of the kernels of an operator on a device, by the constants of its kind."""

from __future__ import annotations

from meshwave.engine.costs.operators import Kernel, Work
from meshwave.engine.document import Device
from meshwave.engine.document.devices import Constants

FORMAT_RATES: dict[Kernel, float] = {"fp8": 2.0, "fp4": 4.0}
"""Peak FLOP/s in a number format, relative to 16 bits."""


def work_seconds(work: Work, device: Device) -> float:
    """Return the longer of compute and memory time (Williams, Waterman and Patterson, "Roofline", 2009).

    A device without constants reaches the share ``efficiency`` of its peak in all products.
    """
    if device.constants is not None:
        return _kernel_seconds(work, device, device.constants)
    peak = device.peak_flops * FORMAT_RATES.get(work.kernel, 1.0)
    return max(work.flops / (peak * device.efficiency), work.bytes / device.memory_bandwidth)


def _kernel_seconds(work: Work, device: Device, constants: Constants) -> float:
    """Return the seconds of work by constants.

    A matrix product takes a fixed time and the time of its FLOPs at the sustained rate, which describes measured
    products better than whole waves of tiles do.
    """
    moved = work.bytes / (device.memory_bandwidth * constants.memory_efficiency)
    if work.kernel == "memory":
        return moved + constants.kernel_s if work.bytes else 0.0
    peak = device.peak_flops * FORMAT_RATES.get(work.kernel, 1.0)
    seconds = work.flops * work.unmasked / (peak * _efficiency(work.kernel, constants))
    if work.kernel == "unfused-attention":
        return constants.product_s + seconds + moved
    return constants.product_s + max(seconds, moved)


def _efficiency(kernel: Kernel, constants: Constants) -> float:
    """Return the share of the peak that a kernel sustains."""
    match kernel:
        case "attention":
            return constants.attention_efficiency
        case "attention-backward":
            return constants.attention_backward_efficiency
        case "fp8" | "fp4":
            return constants.product_8bit_efficiency
    return constants.product_efficiency
