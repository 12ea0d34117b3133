"""Send/recv: the whole slice to each receiver, one after another."""

from __future__ import annotations

from typing import ClassVar

from engine.transfer._links import Links
from engine.transfer._tasks import UnitTask
from engine.transfer.strategies._base import Latency, Strategy, strategies


@strategies.register("send-recv")
class SendRecv(Strategy):
    """The sender sends the whole slice to each receiver, one after another: ``A B t``."""

    title: ClassVar = "Send/recv"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        return Latency(sum(links.between(sender, rank).seconds(task.bytes) for rank in task.receivers))
