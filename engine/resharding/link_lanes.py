"""What a plan does on the links: who holds which NIC and when, and every message behind a unit task.

A task takes as long as its strategy's formula says (arXiv:2211.05322, section 3); its messages are played
one by one. The last of them ends when the plan says that the task does, or before, where the formula counts
what nobody waits for: a send inside the host beside one that leaves it, a ring's start before all pieces are
dealt, steps whose piece is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import InputError
from meshwave.engine.resharding.additions import additions
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.strategies import strategies
from meshwave.engine.resharding.tasks import UnitTask

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Way = Literal["tx", "rx", "in"]
"""Out of a host's NIC, into it, or between devices inside the host."""
WAYS: tuple[Way, ...] = ("tx", "rx", "in")


class Lane(NamedTuple):
    """One direction of one NIC of a host; or the links inside it, which are one lane."""

    host: int
    way: Way
    nic: int = 0


class Held(NamedTuple):
    """A lane, for as long as a unit task holds it."""

    lane: int  # its place in the list of lanes
    task: int
    start_s: float
    end_s: float


class Hops(NamedTuple):
    """The messages of one unit task as columns; seconds count from the task's start."""

    source: Integers  # ranks
    target: Integers
    chunk: Integers  # from 0, by where it starts in the slice
    bytes: Floats
    start_s: Floats
    end_s: Floats


MOST_MESSAGES = 400_000
MOST_LOOKED_AT = 20_000
"""Messages of a unit task, to see which links it passes: the later ones of a ring pass none that is new."""
Port = tuple[int, str, bool]
"""A rank, *out* or *into*, and whether it is that inside the host."""
Message = tuple[int, int, int, float, float, float]


def lanes(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> tuple[list[Lane], list[Held]]:
    """The lanes that a plan uses, host by host, and what holds them.

    A task holds a NIC of its sender's host and one of each receiver's host for as long as it takes; what
    passes a NIC on the way between receivers holds nothing and shows as hops alone.
    """
    free: dict[tuple[int, Way], list[float]] = {}
    taken: list[tuple[Lane, int, float, float]] = []
    for each in plan.tasks:
        task = tasks[each.task]
        if not task.receivers:
            continue
        sides: list[tuple[int, Way]] = [(links.host[each.sender], "tx")]
        sides += [(host, "rx") for host in links.by_host(task.receivers)]
        for host, way in sides:
            nics = free.setdefault((host, way), [0.0] * links.nics)
            nic = int(np.argmin(nics))
            nics[nic] = each.end_s
            taken.append((Lane(host, way, nic), each.task, each.start_s, each.end_s))
    used = {lane for lane, *_ in taken} | {Lane(host, way) for host, way in _passed(plan, tasks, links)}
    found = sorted(used, key=lambda lane: (lane.host, WAYS.index(lane.way), lane.nic))
    place = {lane: number for number, lane in enumerate(found)}
    return found, [Held(place[lane], task, start, end) for lane, task, start, end in taken]


def _passed(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> set[tuple[int, Way]]:
    """What the messages of a plan pass; tasks between the same hosts pass the same."""
    strategy = strategies[plan.strategy]()
    kinds: dict[object, tuple[UnitTask, int]] = {}
    for each in plan.tasks:
        task = tasks[each.task]
        hosts = tuple(links.host[rank] for rank in task.receivers)
        key = links.host[each.sender], hosts, task.elements == 1, task.rings
        kinds.setdefault(key, (task, each.sender))
    addends = additions(tasks, [(each.task, each.sender) for each in plan.tasks])
    found = {side for move in addends for side in sides_of(move.source, move.target, links) if side is not None}
    for task, sender in kinds.values():
        legs = islice(strategy.legs(task, sender, links), MOST_LOOKED_AT) if task.receivers else ()
        for source, target in {(leg.source, leg.target) for leg in legs}:
            found |= {side for side in sides_of(source, target, links) if side is not None}
    return found


def sides_of(source: int, target: int, links: Links) -> tuple[tuple[int, Way], tuple[int, Way] | None]:
    """What a message passes: a tx and an rx, or the inside of a host."""
    out, to = links.host[source], links.host[target]
    return ((out, "in"), None) if out == to else ((out, "tx"), (to, "rx"))


def hops(strategy: str, task: UnitTask, sender: int, links: Links, chunks: int) -> Hops:
    """Every message of a unit task, as ranks send them that hand a range on as soon as they hold it.

    A rank sends and receives one message at a time on its link inside the host, and one on that to others.

    Raises:
        InputError: there are more than can be told one by one.
    """
    legs = list(islice(strategies[strategy]().legs(task, sender, links, chunks), MOST_MESSAGES + 1))
    if len(legs) > MOST_MESSAGES:
        raise InputError(f"a unit task of more than {MOST_MESSAGES:,} messages cannot be told message by message")
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
        begin = max(free[out], free[into], _held(arrived[source], start, stop))
        size = (stop - start) * item
        end = begin + links.between(source, target).seconds(size)
        free[out] = free[into] = arrived.setdefault(target, {})[start, stop] = end
        found.append((source, target, number[start], size, begin, end))
    return _columns(found)


def _held(arrived: Mapping[tuple[int, int], float], start: int, stop: int) -> float:
    """When the last part of a range had come."""
    if (when := arrived.get((start, stop))) is not None:
        return when
    return max(end for (first, last), end in arrived.items() if first < stop and start < last)


def _columns(found: Sequence[Message]) -> Hops:
    rows = np.array(found, np.float64).reshape(-1, 6)
    source, target, chunk = rows[:, :3].astype(np.int64).T
    size, start, end = rows[:, 3:].T
    return Hops(source, target, chunk, size, start, end)
