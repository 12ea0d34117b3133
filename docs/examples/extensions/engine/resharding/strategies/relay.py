"""Relay: each receiver hands the whole slice on to the next one."""

from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

from meshwave.engine.resharding import Links, UnitTask
from meshwave.engine.resharding.strategies import Latency, Leg, Strategy, strategies


@strategies.register("relay")
class Relay(Strategy):
    """The slice goes from the sender to the first receiver, from there to the second, and so on."""

    title: ClassVar = "Relay"

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        hops = pairwise((sender, *task.receivers))
        return Latency(sum(links.link_between(source, target).seconds(task.bytes) for source, target in hops))

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        return (Leg(source, target, 0, task.elements) for source, target in pairwise((sender, *task.receivers)))
