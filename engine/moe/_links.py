"""Seconds of the messages of an expert layer: ``alpha + beta * bytes`` on two classes of link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """A message of ``n`` bytes takes ``alpha + n * beta`` seconds."""

    alpha: float = 0.0
    beta: float = 0.0

    def seconds(self, size: float) -> float:
        return self.alpha + size * self.beta


Fit = Mapping[str, Line]
"""Measured lines of whole collectives: ``all_gather``, ``reduce_scatter``, ``all_reduce`` and
``all_to_all``, each for all groups or, as ``all_to_all@ep``, for one kind of group; and ``overlap``, an
all-to-all with the all-gather that hides under it, by the buffer of the all-to-all. Bytes are
buffers, of an all-gather all that was gathered (Parm's performance model)."""


@dataclass(frozen=True)
class Links:
    """What one device gets of the links: where several share a NIC, its part of it."""

    intra: Line
    inter: Line
    fit: Fit | None = None

    def fitted(self, collective: str, group: str) -> Line | None:
        """The measured line of a collective, where there is one."""
        fit = self.fit or {}
        return fit.get(f"{collective}@{group}", fit.get(collective))
