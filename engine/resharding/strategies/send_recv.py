"""Send/recv: the whole slice to each receiver, one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, strategies
from meshwave.engine.resharding.tasks import UnitTask


@strategies.register("send-recv")
class SendRecv(Strategy):
    """Send the whole slice to each receiver, one after another."""

    title: ClassVar = "Send/recv"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        return Latency(sum(links.link_between(sender, rank).seconds(task.bytes) for rank in task.receivers))

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        return (Leg(sender, rank, 0, task.elements) for rank in task.receivers)
