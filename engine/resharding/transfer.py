"""The whole transfer of tensors from one mesh and spec to another: plan, messages, and how long they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Self

from meshwave.engine.progress import tell
from meshwave.engine.resharding.boxes import Box
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.moves import moves
from meshwave.engine.resharding.orderings import orderings
from meshwave.engine.resharding.plan import Plan, plan_tasks, tasks_of
from meshwave.engine.resharding.playback import MOST_PLAYED, played_seconds
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import Load, Move, Side, Tensor, UnitTask


@dataclass(frozen=True)
class Transfer:
    """Tensors on their way by one plan: data alone, the same on every rank."""

    loads: tuple[Load, ...]
    tasks: tuple[UnitTask, ...]  # of all tensors, one tensor after another
    links: Links
    plan: Plan

    @classmethod
    def of(cls, loads: Sequence[Load], links: Links, plan: Plan) -> Self:
        """The transfer of a plan; see :func:`tasks_of`."""
        return cls(tuple(loads), tuple(tasks_of(loads, plan.strategy)), links, plan)

    @property
    def tensor(self) -> Tensor:
        """The first tensor, which most transfers have alone; so are the source and destination its own."""
        return self.loads[0].tensor

    @property
    def source(self) -> Side:
        return self.loads[0].source

    @property
    def destination(self) -> Side:
        return self.loads[0].destination

    @property
    def owned(self) -> dict[int, Box]:
        """The box of the first tensor that each rank of its source holds."""
        return self.loads[0].owned

    @property
    def needed(self) -> dict[int, Box]:
        """The box of the first tensor that each rank of its destination gets."""
        return self.loads[0].needed

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return tuple(moves(self.plan, self.tasks, self.links))

    @cached_property
    def played_s(self) -> float:
        """How long it takes as it is played: the price of the transfer; see :func:`played_seconds`."""
        return played_seconds(self.plan, self.tasks, self.links)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Everybody who takes part, ascending."""
        return tuple(sorted({rank for load in self.loads for rank in (*load.owned, *load.needed)}))

    @cached_property
    def digest(self) -> bytes:
        """Of the plan: equal where all ranks would do the same."""
        hosts = [self.links.host[rank] for rank in self.ranks]
        planned = [(each.task, int(each.sender), int(each.chunks)) for each in self.plan.tasks]
        return sha256(repr((self.loads, hosts, self.plan.strategy, planned)).encode()).digest()


def transfer(
    tensor: Tensor,
    source: Side,
    destination: Side,
    links: Links,
    *,
    strategy: str | None = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Transfer:
    """Plan a transfer of one tensor; see :func:`transfer_many`.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
        InputError: there is no such strategy or ordering.
    """
    load = Load(tensor, (source[0], tuple(source[1])), (destination[0], tuple(destination[1])))
    return transfer_many([load], links, strategy=strategy, ordering=ordering, chunks=chunks)


def transfer_many(
    loads: Sequence[Load],
    links: Links,
    *,
    strategy: str | None = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Transfer:
    """Plan one transfer of several tensors: one order, and senders chosen, over the unit tasks of all of them.

    Args:
        strategy: its name; none: of all of them the one that takes the shortest as it is played.

    Raises:
        SpecError: a spec does not fit its mesh or its tensor.
        InputError: there is no such strategy or ordering.
    """
    tried = [strategy] if strategy else list(strategies)
    made = [each for name in tried for each in every_transfer(loads, links, chunks, [name], [ordering])]
    if len(made) == 1:
        return made[0]
    all_play = all(len(each.moves) <= MOST_PLAYED for each in made)  # else the two kinds of seconds would be compared
    return min(made, key=lambda each: each.played_s if all_play else each.plan.makespan_s)


def every_transfer(
    loads: Sequence[Load],
    links: Links,
    chunks: int | None = None,
    only: Sequence[str] | None = None,
    ordered: Sequence[str] | None = None,
) -> Iterator[Transfer]:
    """The transfers of every strategy with every ordering, or of some of them.

    Raises:
        SpecError: a spec does not fit its mesh or its tensor.
        InputError: there is no such strategy or ordering.
    """
    cut_by, put_by = list(only or strategies), list(ordered or orderings)
    for number, strategy in enumerate(cut_by):
        tasks = tuple(tasks_of(loads, strategy))
        for place, ordering in enumerate(put_by):
            tell((number + place / len(put_by)) / len(cut_by), f"planning {strategy}, {ordering}")
            yield Transfer(tuple(loads), tasks, links, plan_tasks(tasks, links, strategy, ordering, chunks))
