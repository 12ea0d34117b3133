"""Transfers of tensors from one mesh and spec to another: plan, messages and duration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Self

from meshwave.engine.progress import report_progress
from meshwave.engine.resharding.boxes import Box
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.moves import plan_moves
from meshwave.engine.resharding.orderings import orderings
from meshwave.engine.resharding.plan import Plan, plan_tasks, strategy_tasks
from meshwave.engine.resharding.plan_simulation import MAX_SIMULATED_MESSAGES, simulated_plan_seconds
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Load, Move, Side, Tensor, UnitTask


@dataclass(frozen=True)
class Transfer:
    """Planned transfer of tensors, as data that is equal on every rank."""

    loads: tuple[Load, ...]
    tasks: tuple[UnitTask, ...]  # unit tasks of all tensors, one tensor after another
    links: Links
    plan: Plan

    @classmethod
    def from_plan(cls, loads: Sequence[Load], links: Links, plan: Plan) -> Self:
        """Return the transfer of a plan, with the unit tasks of its strategy; see :func:`strategy_tasks`."""
        return cls(tuple(loads), tuple(strategy_tasks(loads, plan.strategy)), links, plan)

    @property
    def tensor(self) -> Tensor:
        """First tensor; most transfers have only one. ``source`` and ``destination`` refer to it as well."""
        return self.loads[0].tensor

    @property
    def source(self) -> Side:
        """Source of the first tensor."""
        return self.loads[0].source

    @property
    def destination(self) -> Side:
        """Destination of the first tensor."""
        return self.loads[0].destination

    @property
    def source_boxes(self) -> dict[int, Box]:
        """Box of the first tensor on each rank of its source."""
        return self.loads[0].source_boxes

    @property
    def destination_boxes(self) -> dict[int, Box]:
        """Box of the first tensor on each rank of its destination."""
        return self.loads[0].destination_boxes

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """Messages of the plan."""
        return tuple(plan_moves(self.plan, self.tasks, self.links))

    @cached_property
    def simulated_s(self) -> float:
        """Simulated duration of the transfer in seconds, used as its cost; see :func:`simulated_plan_seconds`."""
        return simulated_plan_seconds(self.plan, self.tasks, self.links)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of sources and destinations, in ascending order."""
        return tuple(sorted({rank for load in self.loads for rank in (*load.source_boxes, *load.destination_boxes)}))

    @cached_property
    def digest(self) -> bytes:
        """Digest of the plan; it is equal on ranks that would execute the same messages."""
        hosts = [self.links.host[rank] for rank in self.ranks]
        planned = [(each.task, int(each.sender), int(each.chunks)) for each in self.plan.tasks]
        return sha256(repr((self.loads, hosts, self.plan.strategy, planned)).encode()).digest()


def plan_transfer(
    tensor: Tensor,
    source: Side,
    destination: Side,
    links: Links,
    *,
    strategy: str | None = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Transfer:
    """Plan the transfer of one tensor; see :func:`plan_joint_transfer`.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
        InputError: the strategy or ordering does not exist.
    """
    load = Load(tensor, (source[0], tuple(source[1])), (destination[0], tuple(destination[1])))
    return plan_joint_transfer([load], links, strategy=strategy, ordering=ordering, chunks=chunks)


def plan_joint_transfer(
    loads: Sequence[Load],
    links: Links,
    *,
    strategy: str | None = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Transfer:
    """Plan one transfer of several tensors, as one problem over the unit tasks of all of them.

    Args:
        loads: the tensors with their sources and destinations.
        links: links between the ranks.
        strategy: name of a strategy; None selects the one with the shortest simulated time.
        ordering: name of an ordering.
        chunks: number of chunks; None selects the best number.

    Raises:
        SpecError: a spec does not fit its mesh or its tensor.
        InputError: the strategy or ordering does not exist.
    """
    tried = [strategy] if strategy else list(strategies)
    made = [each for name in tried for each in candidate_transfers(loads, links, chunks, [name], [ordering])]
    if len(made) == 1:
        return made[0]
    all_play = all(
        len(each.moves) <= MAX_SIMULATED_MESSAGES for each in made
    )  # simulated times and makespans are not comparable
    return min(made, key=lambda each: each.simulated_s if all_play else each.plan.makespan_s)


def candidate_transfers(
    loads: Sequence[Load],
    links: Links,
    chunks: int | None = None,
    only: Sequence[str] | None = None,
    ordered: Sequence[str] | None = None,
) -> Iterator[Transfer]:
    """Yield the transfers of every strategy with every ordering, or of the given strategies and orderings.

    Raises:
        SpecError: a spec does not fit its mesh or its tensor.
        InputError: a strategy or ordering does not exist.
    """
    cut_by, put_by = list(only or strategies), list(ordered or orderings)
    for number, strategy in enumerate(cut_by):
        tasks = tuple(strategy_tasks(loads, strategy))
        for place, ordering in enumerate(put_by):
            report_progress((number + place / len(put_by)) / len(cut_by), f"planning {strategy}, {ordering}")
            yield Transfer(tuple(loads), tasks, links, plan_tasks(tasks, links, strategy, ordering, chunks))
