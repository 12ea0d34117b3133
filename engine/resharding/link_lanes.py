"""Use of links by a plan: NICs that unit tasks occupy, and the messages of each unit task.

The duration of a task follows from its strategy's formula (arXiv:2211.05322, section 3); its messages are simulated
individually. The last message ends with the task, or earlier if the formula includes time for which no message waits: a
send within the host during one to another host, the start of a ring before all pieces are distributed, and steps with
an empty piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.resharding.additions import partial_sum_moves
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import UnitTask

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Direction = Literal["tx", "rx", "in"]
"""Direction of a lane: out of a host's NIC, into it, or between devices within the host."""
WAYS: tuple[Direction, ...] = ("tx", "rx", "in")


class Lane(NamedTuple):
    """One direction of one NIC of a host, or all links within the host."""

    host: int
    way: Direction
    nic: int = 0


class LaneUse(NamedTuple):
    """Use of a lane by a unit task, from start to end."""

    lane: int  # index in the list of lanes
    task: int
    start_s: float
    end_s: float


class Hops(NamedTuple):
    """Messages of one unit task as columns; times are in seconds from the start of the task."""

    source: Integers  # ranks
    target: Integers
    chunk: Integers  # index of the chunk, in the order of starts in the slice
    bytes: Floats
    start_s: Floats
    end_s: Floats


MAX_HOPS = 400_000
MAX_SCANNED_LEGS = 20_000
"""Number of messages of a unit task that are scanned for the links they use; later messages of a ring use the same
links."""
Port = tuple[int, str, bool]
"""Rank, direction (*out* or *into*), and True for the port within the host."""
Message = tuple[int, int, int, float, float, float]


def plan_lanes(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> tuple[list[Lane], list[LaneUse]]:
    """Return the lanes that a plan uses, host by host, and their use by unit tasks.

    A task occupies a NIC of its sender's host and a NIC of each receiver's host for its whole duration. Messages
    between receivers do not occupy NICs; they are included in the hops only.
    """
    free: dict[tuple[int, Direction], list[float]] = {}
    taken: list[tuple[Lane, int, float, float]] = []
    for each in plan.tasks:
        task = tasks[each.task]
        if not task.receivers:
            continue
        sides: list[tuple[int, Direction]] = [(links.host[each.sender], "tx")]
        sides += [(host, "rx") for host in links.ranks_by_host(task.receivers)]
        for host, way in sides:
            nics = free.setdefault((host, way), [0.0] * links.nics)
            nic = int(np.argmin(nics))
            nics[nic] = each.end_s
            taken.append((Lane(host, way, nic), each.task, each.start_s, each.end_s))
    used = {lane for lane, *_ in taken} | {Lane(host, way) for host, way in _used_sides(plan, tasks, links)}
    found = sorted(used, key=lambda lane: (lane.host, WAYS.index(lane.way), lane.nic))
    place = {lane: number for number, lane in enumerate(found)}
    return found, [LaneUse(place[lane], task, start, end) for lane, task, start, end in taken]


def _used_sides(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> set[tuple[int, Direction]]:
    """Return the NIC directions and hosts that the messages of a plan use.

    Tasks between the same hosts use the same directions, so only one of each kind is scanned.
    """
    strategy = strategies[plan.strategy]()
    kinds: dict[object, tuple[UnitTask, int]] = {}
    for each in plan.tasks:
        task = tasks[each.task]
        hosts = tuple(links.host[rank] for rank in task.receivers)
        key = links.host[each.sender], hosts, task.elements == 1, task.rings
        kinds.setdefault(key, (task, each.sender))
    additions = partial_sum_moves(tasks, [(each.task, each.sender) for each in plan.tasks])
    found = {side for move in additions for side in nic_sides(move.source, move.target, links) if side is not None}
    for task, sender in kinds.values():
        legs = islice(strategy.legs(task, sender, links), MAX_SCANNED_LEGS) if task.receivers else ()
        for source, target in {(leg.source, leg.target) for leg in legs}:
            found |= {side for side in nic_sides(source, target, links) if side is not None}
    return found


def nic_sides(source: int, target: int, links: Links) -> tuple[tuple[int, Direction], tuple[int, Direction] | None]:
    """Return the NIC directions that a message uses: a tx and an rx, or the links within a host and None."""
    out, to = links.host[source], links.host[target]
    return ((out, "in"), None) if out == to else ((out, "tx"), (to, "rx"))


def task_hops(strategy: str, task: UnitTask, sender: int, links: Links, chunks: int) -> Hops:
    """Return all messages of a unit task, in which each rank forwards a range as soon as it has received it.

    A rank sends and receives one message at a time on its link within the host, and one on its link to other hosts.

    Raises:
        InputError: there are more than ``MAX_HOPS`` messages.
    """
    legs = list(islice(strategies[strategy]().legs(task, sender, links, chunks), MAX_HOPS + 1))
    if len(legs) > MAX_HOPS:
        raise Refusal("too_many_messages_to_list", {"maximum": MAX_HOPS})
    item = task.bytes / max(1, task.elements)
    number = {start: place for place, start in enumerate(sorted({leg.start for leg in legs}))}
    free: defaultdict[Port, float] = defaultdict(float)
    arrived: dict[int, dict[tuple[int, int], float]] = {
        rank: {(0, task.elements): 0.0} for rank in (sender, *task.keepers)
    }
    found: list[Message] = []
    for source, target, start, stop in legs:
        near = links.host[source] == links.host[target]
        out, into = (source, "out", near), (target, "into", near)
        begin = max(free[out], free[into], _arrival_s(arrived[source], start, stop))
        size = (stop - start) * item
        end = begin + links.link_between(source, target).seconds(size)
        free[out] = free[into] = arrived.setdefault(target, {})[start, stop] = end
        found.append((source, target, number[start], size, begin, end))
    return _hop_columns(found)


def _arrival_s(arrived: Mapping[tuple[int, int], float], start: int, stop: int) -> float:
    """Return the time in seconds at which the last message of a range of elements arrived."""
    if (when := arrived.get((start, stop))) is not None:
        return when
    return max(end for (first, last), end in arrived.items() if first < stop and start < last)


def _hop_columns(found: Sequence[Message]) -> Hops:
    rows = np.array(found, np.float64).reshape(-1, 6)
    source, target, chunk = rows[:, :3].astype(np.int64).T
    size, start, end = rows[:, 3:].T
    return Hops(source, target, chunk, size, start, end)
