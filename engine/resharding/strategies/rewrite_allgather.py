"""Alpa's default: shard the destination's spec further, and gather the parts within the hosts at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.rewriting import rewritten_receivers
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, strategies
from meshwave.engine.resharding.tasks import Load, UnitTask, cut_tasks, slices_with_owners


@strategies.register("rewrite-allgather")
class RewriteAllGather(Strategy):
    """Rewrite the destination's spec to a finer one, send each part once, and gather within hosts at the end.

    If copies span hosts, or the length is not divisible, the spec is unchanged and each receiver is sent its whole box.
    Taken from Alpa's sources; the paper compares with it (arXiv:2211.05322, section 5.1).
    """

    title: ClassVar = "Rewrite and gather"

    def unit_tasks(self, load: Load, number: int = 0) -> list[UnitTask]:
        return cut_tasks(load, slices_with_owners(load), rewritten_receivers(load), number)

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        return Latency(sum(links.link_between(sender, rank).seconds(task.bytes) for rank in _direct_receivers(task)))

    def gather_seconds(self, tasks: Sequence[UnitTask], links: Links) -> float:
        """Return the duration in seconds of a ring all-gather of each tensor's parts, one tensor after another."""
        size: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)  # parts by tensor and ring
        for task in tasks:
            for ring in task.rings:
                size[task.tensor, ring] += task.bytes
        longest: defaultdict[int, float] = defaultdict(float)
        for (tensor, ring), each in size.items():
            longest[tensor] = max(longest[tensor], (len(ring) - 1) * links.intra_node.seconds(each))
        return sum(longest.values())

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        for rank in _direct_receivers(task):
            yield Leg(sender, rank, 0, task.elements)
        for first, *others in task.rings:
            chain = [first, *(rank for rank in others if rank in task.receivers)]
            for source, target in zip(chain[:-1], chain[1:], strict=True):
                yield Leg(source, target, 0, task.elements)


def _direct_receivers(task: UnitTask) -> list[int]:
    """Return the ranks to which the sender sends: the first rank of each ring, unless it owns the slice."""
    if not task.rings:
        return list(task.receivers)
    return [ring[0] for ring in task.rings if ring[0] in task.receivers]
