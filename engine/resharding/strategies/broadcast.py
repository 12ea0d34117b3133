"""Broadcast: a pipelined chain of chunks through all receivers (arXiv:2211.05322, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, chunk_counts, strategies, tree_legs
from meshwave.engine.resharding.tasks import UnitTask


@strategies.register("broadcast")
class Broadcast(Strategy):
    """Chunks flow along a chain through all receivers, host by host, and cross the NIC of each host once.

    The chain starts on the sender's own host. With many chunks its duration approaches that of one crossing, the
    minimum.
    """

    title: ClassVar = "Broadcast"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        chain = broadcast_chain(task, sender, links)
        hops = [links.link_between(*edge) for edge in zip(chain[:-1], chain[1:], strict=True)]
        if not hops:
            return Latency(0.0)
        alpha = np.array([hop.latency_s for hop in hops])
        beta = np.array([1 / hop.bandwidth if hop.bandwidth else 0.0 for hop in hops])
        tried = chunk_counts(task, chunks)
        hop_s = alpha[:, None] + beta[:, None] * (task.bytes / tried)
        seconds = hop_s.sum(axis=0) + (tried - 1) * hop_s.max(axis=0)
        best = int(np.argmin(seconds))
        return Latency(float(seconds[best]), int(tried[best]))

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        chain = broadcast_chain(task, sender, links)
        return tree_legs(list(zip(chain[:-1], chain[1:], strict=True)), task.elements, chunks)


def broadcast_chain(task: UnitTask, sender: int, links: Links) -> list[int]:
    """Return the sender, the receivers on its host, then the receivers of other hosts in ascending order."""
    by_host = links.ranks_by_host(task.receivers)
    own = by_host.pop(links.host[sender], [])
    return [sender, *own, *(rank for held in by_host.values() for rank in held)]
