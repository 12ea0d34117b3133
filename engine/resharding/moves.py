"""Messages of a plan: all moves between two ranks, in one order that is the same on all ranks.

A rank executes the plan if it posts all its receives at once and sends each range as soon as it has the data. There is
no deadlock: the first unfinished move of the order is posted by both its ranks, and the range that it forwards arrived
with an earlier move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwave.engine.resharding.additions import partial_sum_moves
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Move, UnitTask
from meshwave.engine.traffic import Traffic


def plan_moves(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Iterator[Move]:
    """Yield the messages of a plan: first the partial sums of partial tensors, then the unit tasks in plan order.

    Raises:
        InputError: the strategy does not exist.
    """
    strategy = strategies[plan.strategy]()
    yield from partial_sum_moves(tasks, [(each.task, each.sender) for each in plan.tasks])
    for each in plan.tasks:
        task = tasks[each.task]
        if task.receivers and task.elements:
            for leg in strategy.legs(task, each.sender, links, each.chunks):
                yield Move(each.task, *leg)


def plan_traffic(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Traffic:
    """Return the traffic of a plan between the ranks of ``links``, whose nodes are their hosts."""
    ranks = sorted(links.host)
    messages = (
        (move.source, move.target, move.elements * tasks[move.task].bytes / tasks[move.task].elements)
        for move in plan_moves(plan, tasks, links)
    )
    return Traffic.from_messages(ranks, [links.host[rank] for rank in ranks], messages).limit_rows()
