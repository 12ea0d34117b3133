"""Addends that come one by one, added up once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from meshwave.engine.runtime.device.accelerator import is_accelerator
from meshwave.engine.runtime.resharding.process_part import Sum


class Addition:
    """The sum of a slice's addends, made by whoever needs it first; to be called once all of them are there.

    On a GPU whoever asks later lets its stream wait for the one that adds.
    """

    def __init__(self, made: Sum, data: Sequence[Tensor], dtype: torch.dtype) -> None:
        """``data``: the bytes of each slice."""
        self._total = data[made.total].view(dtype)
        self._addends = [data[place].view(dtype) for place in made.addends]
        self._lock = threading.Lock()
        self._event: torch.Event | None = None
        self._is_made = False

    def __call__(self) -> None:
        with self._lock, torch.no_grad():  # a thread that sends has a mode of its own
            if self._is_made:
                if self._event is not None:
                    self._event.wait()
                return
            first, *others = self._addends
            self._total.copy_(first)
            for each in others:
                self._total.add_(each)
            if is_accelerator(self._total.device):
                self._event = torch.Event(enable_timing=False)
                self._event.record()
            self._is_made = True
