"""The sums of a partial tensor: which messages bring addends to who sends the sum on, and how long they take.

The source reduces and scatters: of every group of ranks that hold addends each one adds one piece of its box,
and gets that piece from the others directly, one message from each. So a sum is added in the same order
wherever it is made, in that of the mesh, and equals what one process adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.tasks import Move, UnitTask


def additions(tasks: Sequence[UnitTask], senders: Iterable[tuple[int, int]]) -> list[Move]:
    """Every message that brings an addend, where ``senders`` are pairs of a task and who sends it.

    In each step every rank of a group sends to another one, so that none gets all at once.
    """
    found = []
    for place, (number, sender) in enumerate(senders):
        task = tasks[number]
        group = task.addends_of(sender)
        for step in range(1, len(group)):
            source = group[(group.index(sender) + step) % len(group)]
            found.append((step, place, Move(number, source, sender, 0, task.elements)))
    return [move for _, _, move in sorted(found)]


def addition_seconds(moves: Iterable[Move], tasks: Sequence[UnitTask], links: Links) -> float:
    """How long addends take: messages go one after another on each rank's link inside its host and on each NIC."""
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for move in moves:
        ends = move.source, move.target
        size = tasks[move.task].bytes
        if links.host[move.source] == links.host[move.target]:
            for way, rank in zip(("out", "into"), ends, strict=True):
                busy[way, rank] += links.intra_node.seconds(size)
        else:
            for way, rank in zip(("tx", "rx"), ends, strict=True):
                busy[way, links.host[rank]] += links.inter_node.seconds(size) / links.nics
    return max(busy.values(), default=0.0)
