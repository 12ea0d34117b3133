"""From a plan to moves: every message between two ranks, in one order that all ranks know.

A rank that posts all its receives at once and sends each range as soon as it holds it realises the
plan. Nobody can wait for ever: of the moves that are not done, the first one in the order is wanted
by both its ranks, and what it hands on has come with a move before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.transfer._links import Links
from engine.transfer._plan import Plan
from engine.transfer._tasks import UnitTask
from engine.transfer.strategies import strategies


class Move(NamedTuple):
    """One message: elements ``start`` to ``stop`` of a unit task's slice, flattened row-major."""

    task: int
    source: int  # ranks
    target: int
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


def moves(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Iterator[Move]:
    """Every message of a plan, task by task in the order of the plan.

    Raises:
        InputError: there is no strategy of that name.
    """
    strategy = strategies[plan.strategy]()
    for each in plan.tasks:
        task = tasks[each.task]
        if task.receivers and task.elements:
            for leg in strategy.legs(task, each.sender, links, each.chunks):
                yield Move(each.task, *leg)
