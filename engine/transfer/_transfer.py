"""A tensor's whole way from one mesh and spec to another: plan, messages, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from engine.transfer._boxes import Box, Mesh, boxes
from engine.transfer._links import Links
from engine.transfer._moves import Move, moves
from engine.transfer._plan import Plan, plan
from engine.transfer._played import MOST_PLAYED, played_seconds
from engine.transfer._tasks import Tensor, UnitTask, unit_tasks
from engine.transfer.strategies import strategies

Side = tuple[Mesh, tuple[str, ...]]
"""A mesh, and how the tensor is cut on it."""


@dataclass(frozen=True)
class Transfer:
    """A tensor's way from one mesh and spec to another: data alone, the same on every rank."""

    tensor: Tensor
    source: Side
    destination: Side
    links: Links
    plan: Plan

    @cached_property
    def tasks(self) -> list[UnitTask]:
        return unit_tasks(self.tensor, *self.source, *self.destination)

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        return tuple(moves(self.plan, self.tasks, self.links))

    @cached_property
    def played_s(self) -> float:
        """How long it takes as it is played: the price of the transfer; see :func:`played_seconds`."""
        return played_seconds(self.plan, self.tasks, self.links)

    @cached_property
    def owned(self) -> dict[int, Box]:
        """What each rank of the source holds."""
        return _boxes(self.source, self.tensor)

    @cached_property
    def needed(self) -> dict[int, Box]:
        """What each rank of the destination gets."""
        return _boxes(self.destination, self.tensor)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Everybody who takes part, ascending."""
        return tuple(sorted({*self.owned, *self.needed}))

    @cached_property
    def digest(self) -> bytes:
        """Of the plan: equal where all ranks would do the same."""
        hosts = [self.links.host[rank] for rank in self.ranks]
        planned = [(each.task, int(each.sender), int(each.chunks)) for each in self.plan.tasks]
        said = self.tensor, self.source, self.destination, hosts, self.plan.strategy, planned
        return sha256(repr(said).encode()).digest()


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
    """Plan a transfer; ``strategy`` none: of all of them the one that takes the shortest as it is played.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
        InputError: there is no such strategy or ordering.
    """
    source, destination = (source[0], tuple(source[1])), (destination[0], tuple(destination[1]))
    tried = [strategy] if strategy else list(strategies)
    plans = (
        plan(tensor, source, destination, links, strategy=name, ordering=ordering, chunks=chunks) for name in tried
    )
    made = [Transfer(tensor, source, destination, links, each) for each in plans]
    if len(made) == 1:
        return made[0]
    all_play = all(len(each.moves) <= MOST_PLAYED for each in made)  # else the two kinds of seconds would be compared
    return min(made, key=lambda each: each.played_s if all_play else each.plan.makespan_s)


def _boxes(side: Side, tensor: Tensor) -> dict[int, Box]:
    mesh, spec = side
    return dict(zip(mesh.ranks, boxes(mesh, spec, tensor.shape), strict=True))
