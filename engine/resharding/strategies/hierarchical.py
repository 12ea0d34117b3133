"""Hierarchical: a chain over one receiver per host, each of which forwards the chunks within its host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, chunk_counts, strategies, tree_legs
from meshwave.engine.resharding.tasks import UnitTask


@strategies.register("hierarchical")
class Hierarchical(Strategy):
    """Chunks flow along a chain of one receiver per host, and at the same time along a chain within each host.

    The last host does not wait for the chains of the preceding hosts. This strategy is not in the paper; it is faster
    than broadcast if latency dominates and hosts have many receivers.
    """

    title: ClassVar = "Hierarchical"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        by_host = links.ranks_by_host(task.receivers)
        if not by_host:
            return Latency(0.0)
        own = by_host.pop(links.host[sender], [])
        tried = chunk_counts(task, chunks)
        near, far = (
            link.latency_s + task.bytes / tried / (link.bandwidth or np.inf)
            for link in (links.intra_node, links.inter_node)
        )
        inside = [len(own), *(len(ranks) - 1 for ranks in by_host.values())]
        behind = [0, *range(1, len(by_host) + 1)]  # hops between hosts before the first chunk reaches each host
        slowest = np.maximum(far if by_host else 0.0, near if max(inside) else 0.0)
        first = [hops * far + spread * near for hops, spread in zip(behind, inside, strict=True)]
        seconds = np.max(first, axis=0) + (tried - 1) * slowest
        best = int(np.argmin(seconds))
        return Latency(float(seconds[best]), int(tried[best]))

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        by_host = links.ranks_by_host(task.receivers)
        own = by_host.pop(links.host[sender], [])
        heads = [sender, *(ranks[0] for ranks in by_host.values())]
        edges = list(zip(heads[:-1], heads[1:], strict=True))
        for chain in ([sender, *own], *by_host.values()):
            edges += zip(chain[:-1], chain[1:], strict=True)
        return tree_legs(edges, task.elements, chunks)
