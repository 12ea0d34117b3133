"""Rounds in which no host sends or receives twice, by edge colouring of a bipartite graph (König, 1916).

If all jobs have the same duration and one receiving host each, the minimum number of rounds equals the number of jobs
of the busiest side, so that the order is optimal for the given senders (arXiv:2211.05322 uses greedy rounds instead).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.resharding.orderings._base import Order
from meshwave.engine.resharding.problem import Job

Side = tuple[str, int]


def colour_rounds(jobs: Sequence[Job], hosts: Sequence[int]) -> Order | None:
    """Return the jobs round by round, longer jobs first in each round; None if a job has several receiving hosts."""
    if any(len(job.receivers) > 1 for job in jobs):
        return None
    edges: dict[int, tuple[Side, Side]] = {
        number: (("tx", hosts[number]), ("rx", job.receivers[0])) for number, job in enumerate(jobs) if job.receivers
    }
    taken: dict[Side, dict[int, int]] = {side: {} for ends in edges.values() for side in ends}
    rounds: dict[int, int] = {}
    for number, (sender, receiver) in edges.items():
        free, other = _first_free_round(taken[sender]), _first_free_round(taken[receiver])
        if free != other:
            _swap_rounds(receiver, free, other, edges, taken, rounds)
        _assign_round(number, free, edges, taken, rounds)
    local = [(number, hosts[number]) for number, job in enumerate(jobs) if not job.receivers]
    return local + [
        (number, hosts[number])
        for number in sorted(edges, key=lambda number: (rounds[number], -jobs[number].options[hosts[number]], number))
    ]


def _first_free_round(used: dict[int, int]) -> int:
    """Return the first round that is not in ``used``."""
    return next(colour for colour in range(len(used) + 1) if colour not in used)


def _swap_rounds(
    side: Side,
    one: int,
    other: int,
    edges: dict[int, tuple[Side, Side]],
    taken: dict[Side, dict[int, int]],
    rounds: dict[int, int],
) -> None:
    """Exchange two rounds along the path of jobs that starts at ``side`` in round ``one``, which frees that round.

    The path alternates between the two rounds. It never reaches the requesting sender, which has no job in round
    ``one`` and could only be reached by such a job.
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
        _assign_round(number, colour, edges, taken, rounds)


def _assign_round(
    number: int,
    colour: int,
    edges: dict[int, tuple[Side, Side]],
    taken: dict[Side, dict[int, int]],
    rounds: dict[int, int],
) -> None:
    rounds[number] = colour
    for end in edges[number]:
        taken[end][colour] = number
