"""Send/recv and a global all-gather: the slice leaves its host once, in pieces, which all receivers gather."""

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


@strategies.register("global-allgather")
class GlobalAllGather(Strategy):
    """Send a piece to every receiver, then gather the pieces in one ring over all receivers.

    It takes about twice the time of sending the slice once.
    """

    title: ClassVar = "Global all-gather"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        ranks = _receivers_by_host(task, links)
        if not ranks:
            return Latency(0.0)
        parts = piece_bytes(task, len(ranks))
        sent = sum(
            links.link_between(sender, rank).seconds(size) for rank, size in zip(ranks, parts, strict=True) if size
        )
        if len(ranks) == 1:
            return Latency(sent)
        ring = zip(ranks, [*ranks[1:], ranks[0]], strict=True)
        return Latency(sent + (len(ranks) - 1) * max(links.link_between(*edge).seconds(parts[0]) for edge in ring))

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        ranks = _receivers_by_host(task, links)
        if ranks:
            yield from scatter_legs(sender, ranks, task.elements)
            yield from ring_legs(ranks, task.elements)


def _receivers_by_host(task: UnitTask, links: Links) -> list[int]:
    return [rank for held in links.ranks_by_host(task.receivers).values() for rank in held]
