"""Sums of slices of partial tensors, whose partial sums arrive one by one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.resharding.process_part import Sum


class SliceSum:
    """Sum of the partial sums of a slice, computed once by the first caller, after all of them have arrived.

    On an accelerator the streams of later callers wait for the stream that computes the sum.
    """

    def __init__(self, places: Sum, data: Sequence[Tensor], dtype: torch.dtype) -> None:
        """Prepare the sum. ``data`` contains the bytes of each slice of this process's part."""
        self._total = data[places.total].view(dtype)
        self._partial_sums = [data[place].view(dtype) for place in places.partial_sums]
        self._lock = threading.Lock()
        self._event: torch.Event | None = None
        self._is_computed = False

    def __call__(self) -> None:
        """Compute the sum, or wait for it if another thread computes it."""
        with self._lock, torch.no_grad():  # no_grad applies per thread, and sender threads start without it
            if self._is_computed:
                if self._event is not None:
                    self._event.wait()
                return
            first, *others = self._partial_sums
            self._total.copy_(first)
            for each in others:
                self._total.add_(each)
            if is_accelerator(self._total.device):
                self._event = torch.Event(enable_timing=False)
                self._event.record()
            self._is_computed = True
