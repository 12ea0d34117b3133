"""Plans: sender, start, end and number of chunks of each unit task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshwave.engine.resharding.additions import addition_seconds, partial_sum_moves
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.orderings import Answer, Ordering, orderings
from meshwave.engine.resharding.problem import Job, PlacedJob, lower_bound, makespan, run_in_order
from meshwave.engine.resharding.strategies import Latency, Strategy, strategies
from meshwave.engine.resharding.tasks import Load, Side, Tensor, UnitTask

TOLERANCE = 1e-9


class PlannedTask(NamedTuple):
    """One unit task of a plan, with its sender and times; all ranks process the tasks in the same order."""

    task: int
    sender: int  # rank that sends
    start_s: float
    end_s: float
    chunks: int


@dataclass(frozen=True)
class Plan:
    """Unit tasks of a transfer in order, between the sums of partial tensors and the strategy's final gather."""

    strategy: str
    ordering: str
    tasks: tuple[PlannedTask, ...]
    makespan_s: float
    bound_s: float  # lower bound on all plans of this strategy
    is_optimal: bool  # True if the makespan is proved to be minimal
    reduce_s: float = 0.0  # seconds before the first unit task: sums of partial tensors in the source
    gather_s: float = 0.0  # seconds after the last unit task: gather of parts among receivers


def plan(
    tensor: Tensor,
    source: Side,
    destination: Side,
    links: Links,
    *,
    strategy: str = "broadcast",
    ordering: str = "ensemble",
    chunks: int | None = None,
) -> Plan:
    """Plan the transfer of one tensor from one mesh and spec to another; equal inputs give equal plans on every rank.

    Raises:
        SpecError: a spec does not fit its mesh or the tensor.
        InputError: the strategy or ordering does not exist.
    """
    tasks = strategy_tasks([Load(tensor, source, destination)], strategy)
    return plan_tasks(tasks, links, strategy, ordering, chunks)


def strategy_tasks(loads: Sequence[Load], strategy: str) -> list[UnitTask]:
    """Return the unit tasks of tensors, one tensor after another, as defined by a strategy.

    Raises:
        SpecError: a spec does not fit its mesh or its tensor.
        InputError: the strategy does not exist.
    """
    member = strategies[strategy]()
    return [task for number, load in enumerate(loads) for task in member.unit_tasks(load, number)]


def plan_tasks(tasks: Sequence[UnitTask], links: Links, strategy: str, ordering: str, chunks: int | None) -> Plan:
    """Plan the unit tasks of any number of tensors as one problem.

    Raises:
        InputError: the strategy or ordering does not exist.
    """
    taken: Ordering = orderings[ordering]()
    member = strategies[strategy]()
    senders = [_find_senders(task, links) for task in tasks]
    found = _find_latencies(tasks, senders, member, links, chunks)
    jobs = [
        Job(
            task.bytes,
            {host: latency.seconds for host, latency in latencies.items()},
            tuple(sorted({links.host[rank] for rank in task.receivers})),
        )
        for task, latencies in zip(tasks, found, strict=True)
    ]
    is_fixed = all(len(task.senders) == 1 for task in tasks if task.addends)

    def time_answer(answer: Answer) -> tuple[float, list[PlacedJob]]:
        placed = run_in_order(jobs, answer.order, links.nics)
        sent = [(each.job, senders[each.job][each.host]) for each in placed]
        return addition_seconds(partial_sum_moves(tasks, sent), tasks, links), placed

    # The search ignores the sums, whose duration depends on the senders.
    answers = [taken.solve(jobs, links.nics)] if is_fixed else list(taken.candidates(jobs, links.nics))
    outcomes = [time_answer(each) for each in answers]
    best = min(range(len(answers)), key=lambda at: outcomes[at][0] + makespan(outcomes[at][1]))
    answer, (reduce_s, placed) = answers[best], outcomes[best]
    gather_s = member.gather_seconds(tasks, links)
    planned = tuple(
        PlannedTask(
            each.job,
            senders[each.job][each.host],
            reduce_s + each.start,
            reduce_s + each.end,
            found[each.job][each.host].chunks,
        )
        for each in placed
    )
    # The bound includes the sums only if the senders are fixed.
    length = reduce_s + makespan(placed) + gather_s
    bound = (reduce_s if is_fixed else 0.0) + lower_bound(jobs, links.nics) + gather_s
    is_optimal = (answer.is_optimal and is_fixed) or length <= bound * (1 + TOLERANCE)
    return Plan(strategy, ordering, planned, length, bound, is_optimal, reduce_s, gather_s)


def _find_latencies(
    tasks: Sequence[UnitTask], senders: Sequence[dict[int, int]], member: Strategy, links: Links, chunks: int | None
) -> list[dict[int, Latency]]:
    """Return the latency of each task for each host that can send it, ``[tasks]``."""
    known: dict[object, Latency] = {}  # tasks with equal hosts have equal latencies

    def latency(task: UnitTask, host: int, rank: int) -> Latency:
        firsts = tuple(links.host[ring[0]] for ring in task.rings if ring[0] in task.receivers)
        key = task.bytes, task.elements, host, tuple(links.host[receiver] for receiver in task.receivers), firsts
        if key not in known:
            known[key] = member.latency(task, rank, links, chunks) if task.receivers else Latency(0.0)
        return known[key]

    return [
        {host: latency(task, host, rank) for host, rank in of_host.items()}
        for task, of_host in zip(tasks, senders, strict=True)
    ]


def _find_senders(task: UnitTask, links: Links) -> dict[int, int]:
    """Return the lowest rank of each host that owns the slice, with hosts in ascending order.

    The first entry is the lowest rank of all.
    """
    return {host: ranks[0] for host, ranks in links.ranks_by_host(task.senders).items()}
