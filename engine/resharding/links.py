"""Links between ranks: ``alpha + bytes * beta`` seconds within a host or between hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Link(NamedTuple):
    """Latency and bandwidth of a kind of link."""

    latency_s: float = 0.0
    bandwidth: float | None = None  # bytes/s; None if infinite

    def seconds(self, size: float) -> float:
        """Return the duration of a message of ``size`` bytes in seconds."""
        return self.latency_s + (size / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True)
class Links:
    """Links within and between hosts, and the host of each rank."""

    intra_node: Link
    inter_node: Link
    host: Mapping[int, int]  # host of each rank
    nics: int = 1  # number of NICs per host, each for one sending and one receiving task at a time

    def link_between(self, one: int, other: int) -> Link:
        """Return the link between two ranks."""
        return self.intra_node if self.host[one] == self.host[other] else self.inter_node

    def ranks_by_host(self, ranks: tuple[int, ...]) -> dict[int, list[int]]:
        """Return the ranks by host; hosts and ranks are in ascending order."""
        found: dict[int, list[int]] = {}
        for rank in sorted(ranks, key=lambda rank: (self.host[rank], rank)):
            found.setdefault(self.host[rank], []).append(rank)
        return found
