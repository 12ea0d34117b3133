"""A plan: for each unit task who sends it, when it starts and ends, and in how many chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.transfer._boxes import Mesh
from engine.transfer._links import Links
from engine.transfer._schedule import Job, lower_bound, makespan, run_in_order
from engine.transfer._tasks import Tensor, UnitTask, unit_tasks
from engine.transfer.orderings import Ordering, orderings
from engine.transfer.strategies import Latency, strategies

CLOSE = 1e-9


class Planned(NamedTuple):
    """One unit task of a plan, in the order in which all ranks take the tasks."""

    task: int
    sender: int  # a rank
    start_s: float
    end_s: float
    chunks: int


@dataclass(frozen=True)
class Plan:
    strategy: str
    ordering: str
    tasks: tuple[Planned, ...]
    makespan_s: float
    bound_s: float  # no plan of this strategy is shorter
    is_optimal: bool  # shown, not guessed


def plan(
    tensor: Tensor,
    source: tuple[Mesh, Sequence[str]],
    destination: tuple[Mesh, Sequence[str]],
    links: Links,
    *,
    strategy: str = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Plan:
    """Plan one tensor from one mesh and spec to another; a pure function, the same on every rank.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
        InputError: there is no such strategy or ordering.
    """
    tasks = unit_tasks(tensor, *source, *destination)
    return _planned(tasks, links, strategy, ordering, chunks)


def every_plan(
    tasks: Sequence[UnitTask], links: Links, chunks: int | None = None, only: Sequence[str] | None = None
) -> Iterator[Plan]:
    """The plans of every strategy with every ordering."""
    for strategy in only or strategies:
        for ordering in orderings:
            yield _planned(tasks, links, strategy, ordering, chunks)


def _planned(tasks: Sequence[UnitTask], links: Links, strategy: str, ordering: str, chunks: int | None) -> Plan:
    taken: Ordering = orderings[ordering]()
    member = strategies[strategy]()
    senders = [_senders(task, links) for task in tasks]
    known: dict[object, Latency] = {}  # tasks that differ by ranks and not by hosts take as long

    def latency(task: UnitTask, host: int, rank: int) -> Latency:
        key = task.bytes, task.elements, host, tuple(links.host[receiver] for receiver in task.receivers)
        if key not in known:
            known[key] = member.latency(task, rank, links, chunks) if task.receivers else Latency(0.0)
        return known[key]

    found = [
        {host: latency(task, host, rank) for host, rank in of_host.items()}
        for task, of_host in zip(tasks, senders, strict=True)
    ]
    jobs = [
        Job(
            task.bytes,
            {host: latency.seconds for host, latency in latencies.items()},
            tuple(sorted({links.host[rank] for rank in task.receivers})),
        )
        for task, latencies in zip(tasks, found, strict=True)
    ]
    answer = taken.solve(jobs, links.nics)
    placed = run_in_order(jobs, answer.order, links.nics)
    length, bound = makespan(placed), lower_bound(jobs, links.nics)
    planned = tuple(
        Planned(each.job, senders[each.job][each.host], each.start, each.end, found[each.job][each.host].chunks)
        for each in placed
    )
    return Plan(strategy, ordering, planned, length, bound, answer.is_optimal or length <= bound * (1 + CLOSE))


def _senders(task: UnitTask, links: Links) -> dict[int, int]:
    """The lowest rank of each host that owns the slice, hosts ascending; the first one is the lowest rank of all."""
    return {host: ranks[0] for host, ranks in links.by_host(task.senders).items()}
