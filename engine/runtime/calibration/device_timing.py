"""How long stages take, and what they keep: the runtime's own, one process, all sizes in turns.

Each stage consists of blocks of one kind alone. Its microbatches go forward one after the other and then back,
as in a schedule, so that what is kept of one has left the caches when its backward comes. Every round plays
all stages in all ways, so that whatever else the machine does meets all of them alike; medians count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.device.clock import Clock, make_clock
from meshwave.engine.runtime.execution.optimizers import OPTIMIZERS
from meshwave.engine.runtime.execution.stages import DTYPES, MESSAGE_DTYPES

# ---- the optimizer, the device's rates ----

PARAMETERS = (2**16, 2**19, 2**21, 2**22)
CPU_MATRIX, ACCELERATOR_MATRIX = 1536, 8192
CPU_COPIES = (2**18, 2**21, 2**23, 2**25)
ACCELERATOR_COPIES = (2**20, 2**24, 2**27, 2**30)
REPEATS = 9


def optimizer_samples(precision: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """Seconds of the end of a step: the norm of the gradients, clipping them, the update."""
    dtype, clock = DTYPES[precision], make_clock(device)
    for name, kind in OPTIMIZERS.items():
        for clipped in (False, True):
            samples = []
            for count in PARAMETERS:
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

                samples.append((4.0 * (width // 4) * width, _median_seconds(step, clock)))
            yield {"optimizer": name, "precision": precision, "clipped": clipped, "samples": samples}


def matrix_rate(precision: str, device: torch.device) -> float:
    """FLOP/s that a large product reaches."""
    size = ACCELERATOR_MATRIX if is_accelerator(device) else CPU_MATRIX
    dtype = MESSAGE_DTYPES[precision]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    into = torch.empty_like(left)
    return 2 * size**3 / min(_seconds(lambda: torch.matmul(left, right, out=into), make_clock(device)))


def copies(device: torch.device) -> Iterator[tuple[float, float]]:
    """Bytes, and the seconds in which the device copies them."""
    clock = make_clock(device)
    for size in ACCELERATOR_COPIES if is_accelerator(device) else CPU_COPIES:
        source, target = torch.zeros(2, size, device=device, dtype=torch.uint8)
        yield float(size), _median_seconds(lambda source=source, target=target: target.copy_(source), clock)  # type: ignore[misc]


def _median_seconds(work: Callable[[], object], clock: Clock) -> float:
    return median(_seconds(work, clock))


def _seconds(work: Callable[[], object], clock: Clock) -> list[float]:
    """Of several calls, after one that does not count."""
    work()
    clock.begin()
    stamps = [clock.stamp()]
    for _ in range(REPEATS):
        work()
        stamps.append(clock.stamp())
    times = clock.nanoseconds(stamps)
    return [max(1e-9, each / 1e9) for each in (times[1:] - times[:-1]).tolist()]
