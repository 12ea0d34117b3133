"""Seconds of a message between two ranks: ``alpha + bytes * beta`` inside a host or between hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Link(NamedTuple):
    latency_s: float = 0.0
    bandwidth: float | None = None  # bytes/s; none: free

    def seconds(self, size: float) -> float:
        return self.latency_s + (size / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True)
class Links:
    """The two classes of link, and on which host each rank is."""

    intra_node: Link
    inter_node: Link
    host: Mapping[int, int]  # of each rank
    nics: int = 1  # of a host: so many tasks send from it, or receive there, at once

    def between(self, one: int, other: int) -> Link:
        return self.intra_node if self.host[one] == self.host[other] else self.inter_node

    def by_host(self, ranks: tuple[int, ...]) -> dict[int, list[int]]:
        """Ranks by host; hosts and ranks ascending."""
        found: dict[int, list[int]] = {}
        for rank in sorted(ranks, key=lambda rank: (self.host[rank], rank)):
            found.setdefault(self.host[rank], []).append(rank)
        return found
