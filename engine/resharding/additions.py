"""Reductions of partial tensors: messages that send partial sums to the ranks that add them, and their duration.

The source performs a reduce-scatter: in each group of ranks that hold partial sums, every rank adds up one piece of its
box and receives the partial sums for it directly, one message from each other rank. A sum is always computed in the
order of the mesh, so that it equals the result of a single process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.tasks import Move, UnitTask


def partial_sum_moves(tasks: Sequence[UnitTask], senders: Iterable[tuple[int, int]]) -> list[Move]:
    """Return the messages that send partial sums to the ranks that add them.

    In each step every rank of a group sends to a different rank, so that no rank receives all partial sums at once.

    Args:
        tasks: all unit tasks.
        senders: pairs of a task number and the rank that sends its slice.
    """
    found = []
    for place, (number, sender) in enumerate(senders):
        task = tasks[number]
        group = task.ranks_summed_by(sender)
        for step in range(1, len(group)):
            source = group[(group.index(sender) + step) % len(group)]
            found.append((step, place, Move(number, source, sender, 0, task.elements)))
    return [move for _, _, move in sorted(found)]


def addition_seconds(moves: Iterable[Move], tasks: Sequence[UnitTask], links: Links) -> float:
    """Return the duration of messages with partial sums in seconds; they are sequential on each rank's link and NIC."""
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
