"""Send/recv and a local all-gather: each host receives the slice once, in pieces (Alpa; Megatron's scatter/gather)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.strategies._base import (
    Latency,
    Leg,
    Strategy,
    piece_bytes,
    ring_legs,
    scatter_legs,
    strategies,
)
from meshwave.engine.resharding.tasks import UnitTask


@strategies.register("local-allgather")
class LocalAllGather(Strategy):
    """Send a piece to every receiver of a host, then gather the pieces within the host.

    The sender sends the slice once per host; it continues with the next host while receivers gather.
    """

    title: ClassVar = "Local all-gather"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        sent = done = 0.0
        for ranks in links.ranks_by_host(task.receivers).values():
            parts = piece_bytes(task, len(ranks))
            for rank, size in zip(ranks, parts, strict=True):
                if size:
                    sent += links.link_between(sender, rank).seconds(size)
            done = max(done, sent + (len(ranks) - 1) * links.intra_node.seconds(parts[0]))
        return Latency(done)

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        for ranks in links.ranks_by_host(task.receivers).values():
            yield from scatter_legs(sender, ranks, task.elements)
            yield from ring_legs(ranks, task.elements)
