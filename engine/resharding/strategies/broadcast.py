"""Broadcast: a chain through all receivers, in chunks that follow one another (arXiv:2211.05322, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, chunk_counts, flowing, strategies
from meshwave.engine.resharding.tasks import UnitTask


@strategies.register("broadcast")
class Broadcast(Strategy):
    """Chunks flow along a chain: the sender's own host, then host by host, so that each host's NIC is
    crossed once: with many chunks hardly longer than one crossing, the least there can be."""

    title: ClassVar = "Broadcast"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        chain = chain_of(task, sender, links)
        hops = [links.between(*edge) for edge in zip(chain[:-1], chain[1:], strict=True)]
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
        chain = chain_of(task, sender, links)
        return flowing(list(zip(chain[:-1], chain[1:], strict=True)), task.elements, chunks)


def chain_of(task: UnitTask, sender: int, links: Links) -> list[int]:
    """The sender, the receivers on its host, then the other hosts ascending; ranks ascending in each."""
    by_host = links.by_host(task.receivers)
    own = by_host.pop(links.host[sender], [])
    return [sender, *own, *(rank for held in by_host.values() for rank in held)]
