"""Rounds in which nobody sends or receives twice: the edges of a bipartite graph, coloured (König, 1916).

Where all jobs take as long and each goes to one host, as few rounds as the busiest side has jobs are enough, so
that the order is the best there is for its senders (arXiv:2211.05322 has greedy rounds instead).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.resharding.orderings._base import Order
from meshwave.engine.resharding.problem import Job

Side = tuple[str, int]


def coloured(jobs: Sequence[Job], hosts: Sequence[int]) -> Order | None:
    """Jobs round by round, longer ones first in each; none where a job goes to several hosts."""
    if any(len(job.receivers) > 1 for job in jobs):
        return None
    edges: dict[int, tuple[Side, Side]] = {
        number: (("tx", hosts[number]), ("rx", job.receivers[0])) for number, job in enumerate(jobs) if job.receivers
    }
    taken: dict[Side, dict[int, int]] = {side: {} for ends in edges.values() for side in ends}
    rounds: dict[int, int] = {}
    for number, (sender, receiver) in edges.items():
        free, other = _free(taken[sender]), _free(taken[receiver])
        if free != other:
            _swap(receiver, free, other, edges, taken, rounds)
        _give(number, free, edges, taken, rounds)
    local = [(number, hosts[number]) for number, job in enumerate(jobs) if not job.receivers]
    return local + [
        (number, hosts[number])
        for number in sorted(edges, key=lambda number: (rounds[number], -jobs[number].options[hosts[number]], number))
    ]


def _free(used: dict[int, int]) -> int:
    """The first round in which a side is not busy."""
    return next(colour for colour in range(len(used) + 1) if colour not in used)


def _swap(
    side: Side,
    one: int,
    other: int,
    edges: dict[int, tuple[Side, Side]],
    taken: dict[Side, dict[int, int]],
    rounds: dict[int, int],
) -> None:
    """Exchange two rounds along the path of jobs that starts at ``side`` in round ``one``, so that it is free there.

    The path takes the two in turns. It never comes to the sender that asks, which has no job in round ``one``
    and would be reached by one.
    """
    path, colour = [], one
    while colour in taken[side]:
        number = taken[side][colour]
        path.append(number)
        sender, receiver = edges[number]
        side, colour = (sender if side == receiver else receiver), one + other - colour
    moved = [(number, one + other - rounds[number]) for number in path]
    for number in path:
        for end in edges[number]:
            del taken[end][rounds[number]]
    for number, colour in moved:
        _give(number, colour, edges, taken, rounds)


def _give(
    number: int,
    colour: int,
    edges: dict[int, tuple[Side, Side]],
    taken: dict[Side, dict[int, int]],
    rounds: dict[int, int],
) -> None:
    rounds[number] = colour
    for end in edges[number]:
        taken[end][colour] = number
