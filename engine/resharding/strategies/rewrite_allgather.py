"""alpa's default: the destination's spec is cut further, and the parts are gathered inside the hosts at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import ClassVar

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.rewriting import rewritten_needers
from meshwave.engine.resharding.strategies._base import Latency, Leg, Strategy, strategies
from meshwave.engine.resharding.tasks import Load, UnitTask, cut, holders


@strategies.register("rewrite-allgather")
class RewriteAllGather(Strategy):
    """alpa's own: the destination's spec is rewritten to one that is cut further, each part is sent to one
    rank, and ranks of a host gather whole tensors at the end.

    Where copies span hosts, or the length does not divide, nothing is rewritten, and each receiver is sent the
    whole of its box. After the sources of alpa; the paper compares with it (arXiv:2211.05322, section 5.1).
    """

    title: ClassVar = "Rewrite, gather"

    def unit_tasks(self, load: Load, number: int = 0) -> list[UnitTask]:
        return cut(load, holders(load), rewritten_needers(load), number)

    def latency(self, task: UnitTask, sender: int, links: Links, chunks: int | None = None) -> Latency:
        return Latency(sum(links.between(sender, rank).seconds(task.bytes) for rank in _sent_to(task)))

    def gather_seconds(self, tasks: Sequence[UnitTask], links: Links) -> float:
        """A ring all-gather of what each rank was sent of a tensor, tensor after tensor."""
        size: defaultdict[tuple[int, tuple[int, ...]], int] = defaultdict(int)  # of a tensor in a ring
        for task in tasks:
            for ring in task.rings:
                size[task.tensor, ring] += task.bytes
        longest: defaultdict[int, float] = defaultdict(float)
        for (tensor, ring), each in size.items():
            longest[tensor] = max(longest[tensor], (len(ring) - 1) * links.intra_node.seconds(each))
        return sum(longest.values())

    def legs(self, task: UnitTask, sender: int, links: Links, chunks: int = 1) -> Iterator[Leg]:
        for rank in _sent_to(task):
            yield Leg(sender, rank, 0, task.elements)
        for first, *others in task.rings:
            chain = [first, *(rank for rank in others if rank in task.receivers)]
            for source, target in zip(chain[:-1], chain[1:], strict=True):
                yield Leg(source, target, 0, task.elements)


def _sent_to(task: UnitTask) -> list[int]:
    """Who is sent the slice: the first of each ring, unless it owns it."""
    if not task.rings:
        return list(task.receivers)
    return [ring[0] for ring in task.rings if ring[0] in task.receivers]
