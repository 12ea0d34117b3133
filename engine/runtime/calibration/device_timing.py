"""Rates of one device: matrix products, memory copies, and the optimizer step with gradient clipping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.device.clock import Clock, make_clock
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES

PARAMETER_COUNTS = (2**16, 2**19, 2**21, 2**22)
CPU_MATRIX_SIDE, ACCELERATOR_MATRIX_SIDE = 1536, 8192
CPU_COPY_BYTES = (2**18, 2**21, 2**23, 2**25)
ACCELERATOR_COPY_BYTES = (2**20, 2**24, 2**27, 2**30)
REPETITIONS = 9
LONGEST_S = 2.0
"""Seconds after which a matrix product is neither repeated nor enlarged: a CPU may be 25 times slower in bf16."""


def time_optimizers(precision: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the times of an optimizer step in seconds, by optimizer: gradient norm, clipping and update."""
    dtype, clock = DTYPES[precision], make_clock(device)
    for name, kind in OPTIMIZERS.items():
        for clipped in (False, True):
            samples = []
            for count in PARAMETER_COUNTS:
                width = int(count**0.5)
                weights = [torch.zeros(width // 4, width, device=device, dtype=dtype) for _ in range(4)]
                gradients = [torch.full_like(weight, 1e-3) for weight in weights]
                optimizer = kind(weights, 1e-6, 0.0)

                def step(
                    gradients: list[Tensor] = gradients, optimizer: Any = optimizer, clipped: bool = clipped
                ) -> None:
                    norm = torch.nn.utils.get_total_norm(gradients)
                    if clipped:
                        torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
                    optimizer.step(gradients)

                samples.append((4.0 * (width // 4) * width, median(_time_calls(step, clock))))
            yield {"optimizer": name, "precision": precision, "clipped": clipped, "samples": samples}


def matrix_flops_per_s(precision: str, device: torch.device) -> float:
    """Return the rate of a large matrix product in FLOP/s, or of the largest one that does not take seconds."""
    largest = ACCELERATOR_MATRIX_SIDE if is_accelerator(device) else CPU_MATRIX_SIDE
    clock, rate = make_clock(device), 0.0
    for side in (largest // 8, largest // 4, largest // 2, largest):
        left, right = torch.randn(2, side, side, device=device, dtype=MESSAGE_DTYPES[precision])
        multiply = partial(torch.matmul, left, right, out=torch.empty_like(left))
        seconds = min(_time_calls(multiply, clock, LONGEST_S))
        rate = 2 * side**3 / seconds
        if 8 * seconds > LONGEST_S:  # the next one takes eight times as long
            break
    return rate


def time_copies(device: torch.device) -> Iterator[tuple[float, float]]:
    """Yield pairs of a size in bytes and the time in seconds in which the device copies it."""
    clock = make_clock(device)
    for size in ACCELERATOR_COPY_BYTES if is_accelerator(device) else CPU_COPY_BYTES:
        source, target = torch.zeros(2, size, device=device, dtype=torch.uint8)
        yield float(size), median(_time_calls(lambda source=source, target=target: target.copy_(source), clock))  # type: ignore[misc]


def _time_calls(work: Callable[[], object], clock: Clock, longest_s: float = math.inf) -> list[float]:
    """Return the times of several calls in seconds, without the first, which warms up.

    No call starts after ``longest_s`` seconds, except the first two.
    """
    work()
    clock.begin()
    stamps, start = [clock.stamp()], time.perf_counter()
    while len(stamps) == 1 or (len(stamps) <= REPETITIONS and time.perf_counter() - start < longest_s):
        work()
        stamps.append(clock.stamp())
    times = clock.nanoseconds(stamps)
    return [max(1e-9, each / 1e9) for each in (times[1:] - times[:-1]).tolist()]
