"""Reductions of partial tensors: messages that send addends to the ranks that sum them, and their duration.

The source performs a reduce-scatter: in each group of ranks that hold addends, every rank sums one piece of its box and
receives the addends for it directly, one message from each other rank. A sum is always computed in the order of the
mesh, so that it equals the result of a single process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.tasks import Move, UnitTask


def addend_moves(tasks: Sequence[UnitTask], senders: Iterable[tuple[int, int]]) -> list[Move]:
    """Return the messages that send addends to the ranks that sum them.

    In each step every rank of a group sends to a different rank, so that no rank receives all addends at once.

    Args:
        tasks: all unit tasks.
        senders: pairs of a task number and the rank that sends its slice.
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
    """Return the duration of addend messages in seconds; they run one after another on each rank's link and each NIC."""
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
