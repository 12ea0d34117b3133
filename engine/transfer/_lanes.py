"""What a plan does on the links: who holds which NIC and when, and every message behind a unit task.

Seconds are those of the strategies' formulas (arXiv:2211.05322, section 3): the last message of a task
ends when the plan says that the task does, or before, where the formula counts what is not sent: steps of a
ring whose piece is empty, and the waits of a hierarchy for a link that is not on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.transfer._links import Links
from engine.transfer._plan import Plan
from engine.transfer._tasks import UnitTask
from engine.transfer.strategies import strategies
from engine.transfer.strategies._base import pieces

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
    chunk: Integers  # from 0; of a strategy that gathers, the piece
    bytes: Floats
    start_s: Floats
    end_s: Floats


MOST_MESSAGES = 400_000
Edge = tuple[int, int]
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
    kinds: dict[object, tuple[UnitTask, int]] = {}
    for each in plan.tasks:
        task = tasks[each.task]
        key = links.host[each.sender], tuple(links.host[rank] for rank in task.receivers), task.elements == 1
        kinds.setdefault(key, (task, each.sender))
    found: set[tuple[int, Way]] = set()
    for task, sender in kinds.values():
        through = hops(plan.strategy, task, sender, links, 1, steps=1)
        for source, target in set(zip(through.source.tolist(), through.target.tolist(), strict=True)):
            found |= {side for side in sides_of(source, target, links) if side is not None}
    return found


def sides_of(source: int, target: int, links: Links) -> tuple[tuple[int, Way], tuple[int, Way] | None]:
    """What a message passes: a tx and an rx, or the inside of a host."""
    out, to = links.host[source], links.host[target]
    return ((out, "in"), None) if out == to else ((out, "tx"), (to, "rx"))


def hops(strategy: str, task: UnitTask, sender: int, links: Links, chunks: int, *, steps: int | None = None) -> Hops:
    """Every message of a unit task, hop by hop of a chain and chunk by chunk of a hop; of a ring only its
    first ``steps``, where they are given.

    Raises:
        InputError: there are more than can be told one by one.
    """
    if not task.receivers:
        return _columns(())
    rings = {"send-recv": 1, "local-allgather": _most_on_a_host(task, links), "global-allgather": len(task.receivers)}
    ring = min(rings.get(strategy, chunks), steps or len(task.receivers))
    each = ring if strategy in rings else chunks
    if (number := len(task.receivers) * each) > MOST_MESSAGES:
        raise InputError(f"the unit task takes {number:,} messages, and {MOST_MESSAGES:,} can be told one by one")
    if strategy in _MESSAGES:
        return _MESSAGES[strategy](task, sender, links, chunks, ring)
    return _in_a_row(task, sender, links, chunks, strategy)


def _most_on_a_host(task: UnitTask, links: Links) -> int:
    return max(len(ranks) for ranks in links.by_host(task.receivers).values())


def _send_recv(task: UnitTask, sender: int, links: Links, chunks: int, steps: int) -> Hops:
    found: list[Message] = []
    _send(found, sender, [(rank, 0, float(task.bytes)) for rank in task.receivers], links, 0.0)
    return _columns(found)


def _local_allgather(task: UnitTask, sender: int, links: Links, chunks: int, steps: int) -> Hops:
    found: list[Message] = []
    sent = 0.0
    for ranks in links.by_host(task.receivers).values():
        parts = pieces(task, len(ranks))
        sent = _send(found, sender, zip(ranks, range(len(ranks)), parts, strict=True), links, sent)
        _gather(found, ranks, parts, links, sent, steps)
    return _columns(found)


def _global_allgather(task: UnitTask, sender: int, links: Links, chunks: int, steps: int) -> Hops:
    found: list[Message] = []
    ranks = [rank for held in links.by_host(task.receivers).values() for rank in held]
    parts = pieces(task, len(ranks))
    sent = _send(found, sender, zip(ranks, range(len(ranks)), parts, strict=True), links, 0.0)
    _gather(found, ranks, parts, links, sent, steps)
    return _columns(found)


def _send(
    found: list[Message], sender: int, parcels: Iterable[tuple[int, int, float]], links: Links, now: float
) -> float:
    """One parcel (rank, chunk, bytes) after another; when the last one has left."""
    for rank, chunk, size in parcels:
        if size:
            end = now + links.between(sender, rank).seconds(size)
            found.append((sender, rank, chunk, size, now, end))
            now = end
    return now


def _gather(
    found: list[Message], ranks: Sequence[int], parts: Sequence[float], links: Links, now: float, steps: int
) -> None:
    """A ring: in each step every rank hands on what it got last; a step is as long as its slowest edge."""
    size = len(ranks)
    if size < 2:
        return
    ring = [(rank, ranks[(place + 1) % size]) for place, rank in enumerate(ranks)]
    step = max(links.between(*edge).seconds(parts[0]) for edge in ring)
    for number in range(min(steps, size - 1)):
        for place, (source, target) in enumerate(ring):
            piece = (place - number) % size
            if parts[piece]:
                found.append((source, target, piece, parts[piece], now + number * step, now + (number + 1) * step))


def _chain(task: UnitTask, sender: int, links: Links, chunks: int, steps: int, strategy: str) -> Hops:
    legs = strategies[strategy]().legs(task, sender, links, 1)
    return _flow(task, [(leg.source, leg.target) for leg in legs], links, chunks)


def _flow(task: UnitTask, edges: Sequence[Edge], links: Links, chunks: int) -> Hops:
    """Chunks down a tree, its edges outwards: a rank hands a chunk on as soon as it has it and the chunk
    before it is gone."""
    number = np.arange(chunks)
    size = task.bytes / chunks
    arrived: dict[int, Floats] = {edges[0][0]: np.zeros(chunks)}
    ends, seconds = [], []
    for source, target in edges:
        hop_s = links.between(source, target).seconds(size)
        end = np.maximum.accumulate(arrived[source] - number * hop_s) + (number + 1) * hop_s
        arrived[target] = end
        ends.append(end)
        seconds.append(hop_s)
    end_s = np.concatenate(ends)
    repeated = np.array(edges, np.int64).repeat(chunks, axis=0)
    return Hops(
        repeated[:, 0],
        repeated[:, 1],
        np.tile(number, len(edges)),
        np.full(len(end_s), size),
        end_s - np.array(seconds).repeat(chunks),
        end_s,
    )


def _columns(found: Iterable[Message]) -> Hops:
    rows = np.array(list(found), np.float64).reshape(-1, 6)
    source, target, chunk = rows[:, :3].astype(np.int64).T
    size, start, end = rows[:, 3:].T
    return Hops(source, target, chunk, size, start, end)


def _in_a_row(task: UnitTask, sender: int, links: Links, chunks: int, strategy: str) -> Hops:
    """Of a strategy that says its messages and how long they take together, and not when each is sent."""
    member = strategies[strategy]()
    legs = list(member.legs(task, sender, links, chunks))
    item = task.bytes / task.elements
    sizes = [(leg.stop - leg.start) * item for leg in legs]
    alone = [links.between(leg.source, leg.target).seconds(size) for leg, size in zip(legs, sizes, strict=True)]
    ends = np.cumsum(alone)
    ends *= member.latency(task, sender, links, chunks).seconds / ends[-1] if ends[-1] else 1.0
    begun = [0.0, *ends[:-1].tolist()]
    columns = zip(legs, sizes, begun, ends.tolist(), strict=True)
    return _columns(
        (leg.source, leg.target, number, size, start, end) for number, (leg, size, start, end) in enumerate(columns)
    )


_MESSAGES: Mapping[str, Callable[[UnitTask, int, Links, int, int], Hops]] = {
    "send-recv": _send_recv,
    "local-allgather": _local_allgather,
    "global-allgather": _global_allgather,
    "broadcast": partial(_chain, strategy="broadcast"),
    "hierarchical": partial(_chain, strategy="hierarchical"),
}
