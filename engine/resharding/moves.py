"""From a plan to moves: every message between two ranks, in one order that all ranks know.

A rank that posts all its receives at once and sends each range as soon as it holds it realises the
plan. Nobody can wait for ever: of the moves that are not done, the first one in the order is wanted
by both its ranks, and what it hands on has come with a move before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwave.engine.resharding.additions import additions
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Move, UnitTask


def moves(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Iterator[Move]:
    """Every message of a plan: the addends of partial tensors first, then task by task in the order of the plan.

    Raises:
        InputError: there is no strategy of that name.
    """
    strategy = strategies[plan.strategy]()
    yield from additions(tasks, [(each.task, each.sender) for each in plan.tasks])
    for each in plan.tasks:
        task = tasks[each.task]
        if task.receivers and task.elements:
            for leg in strategy.legs(task, each.sender, links, each.chunks):
                yield Move(each.task, *leg)
