"""How long a plan takes as it is really played: every message by itself, on NICs that are shared.

The plan lets a unit task hold NICs of both its ends for as long as it lasts. That makes a problem of senders
and orders that can be solved (arXiv:2211.05322, section 3), and is more than a process does: it sends what it
holds, and messages that pass a NIC in the same direction share it. So they do here, max-min fairly, as
connections of TCP do (Bertsekas and Gallager, "Data Networks", section 6.5.2). Before its first byte a message
costs its link's alpha, in which its lane waits and no NIC does.

A rank sends in lanes, each of them in the order of the plan: what it owns and sends to other hosts, what it
owns and sends inside its own, so too the sums that it made, and by each slice what it hands on.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Literal, NamedTuple, Self

from meshwave.engine.program._shared_links_loop import EVEN, share
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.moves import moves
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.tasks import Move, UnitTask

BUFFER_BYTES = 2**22
"""Of a message, that the transport takes off its sender's hands before anybody has them: the most that Linux keeps
for a connection (the last of ``tcp_wmem``), and what NCCL does (``NCCL_BUFFSIZE``)."""
MOST_PLAYED = 5_000
"""Messages of a plan; of more, its makespan is taken for the truth."""
Port = tuple[Literal["tx", "rx", "out", "into"], int]
"""One direction of all NICs of a host; or of the link of a rank inside its host."""
Ports = tuple[Port, Port]
Lane = tuple[int, bool, int]
"""A rank, whether the lane is inside its host, and the task of what it hands on; see :func:`_lane_number`."""


class Sent(NamedTuple):
    """One message of a plan as it was played."""

    move: Move
    chunk: int  # from 0, by where it starts in the task's slice
    bytes: float
    ports: Ports  # by which it leaves, and by which it comes
    set_out_s: float  # its link's alpha begins
    start_s: float  # its first byte
    end_s: float  # its last


Rates = tuple[tuple[float, float], ...]
"""From a moment on so many bytes/s, of every message that passes the same ports."""


@dataclass(frozen=True)
class Played:
    """A plan as it was played."""

    seconds: float  # until the last message has come
    messages: tuple[Sent, ...] | None  # in the order of the plan; none: more than can be played
    rates: Mapping[Ports, Rates] = field(default_factory=dict)


def play(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Played:
    """Send every message of a plan; of more than can be played the plan's makespan is taken for the truth."""
    going = _Play.of(plan, tasks, links)
    return Played(plan.makespan_s, None) if going is None else going.told()


def played_seconds(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> float:
    """Until the last message of a plan has come; see :func:`play`."""
    going = _Play.of(plan, tasks, links)
    return plan.makespan_s if going is None else going.run()


def capacity(port: Port, links: Links) -> float:
    """Bytes/s, of a port whose links are not free."""
    outside = port[0] in ("tx", "rx")
    link, count = (links.inter_node, links.nics) if outside else (links.intra_node, 1)
    return count * (link.bandwidth or 0.0)


class _Way:
    """All messages that pass the same two ports now. They have the same rate, so that only the next one to end is
    looked at: ``served`` counts the bytes that one which was always there would have got."""

    def __init__(self, ports: Ports, most: float) -> None:
        self.ports, self.most = ports, most  # bytes/s of one message
        self.rate = self.served = 0.0
        self.messages = 0
        self.rates: list[tuple[float, float]] = []  # from a moment on so many bytes/s
        self._marks: list[tuple[float, int, bool]] = []  # a heap: at what is served, which message, its last byte

    def join(self, message: int, size: float, kept: float) -> None:
        """``kept``: the last bytes, for which the sender does not wait."""
        self.messages += 1
        heappush(self._marks, (self.served + size, message, True))
        heappush(self._marks, (self.served + max(0.0, size - kept), message, False))

    def tell(self, now: float) -> None:
        """Note the rate, where it is another than before."""
        if not self.rates or self.rates[-1][1] != self.rate:
            self.rates.append((now, self.rate))

    @property
    def next_s(self) -> float:
        """Seconds to the next mark."""
        return (self._marks[0][0] - self.served) / self.rate

    def go_on(self, seconds: float) -> list[tuple[int, bool]]:
        """The messages that pass a mark meanwhile, and whether it is their end."""
        self.served += seconds * self.rate
        passed = []
        while self._marks and self._marks[0][0] <= self.served * (1 + EVEN):
            _, message, is_end = heappop(self._marks)
            self.messages -= is_end
            passed.append((message, is_end))
        return passed


class _Play:
    """The messages of one plan on their way."""

    def __init__(self, moves: Sequence[Move], tasks: Sequence[UnitTask], links: Links) -> None:
        self._moves, self._tasks, self._links = moves, tasks, links
        self._missing, self._wanted_by = _needs(moves, tasks)
        self._lane = [self._lane_of(move) for move in moves]
        self._queues: dict[Lane, deque[int]] = {}  # what has not set out yet
        for number, lane in enumerate(self._lane):
            self._queues.setdefault(lane, deque()).append(number)
        self._is_busy = dict.fromkeys(self._queues, False)
        self._set_out, self._first, self._last = ([0.0] * len(moves) for _ in range(3))  # moments of each message
        self._now = 0.0
        self._starting: list[tuple[float, int]] = []  # a heap: when the alpha of a message is over
        self._ways: dict[Ports, _Way] = {}
        self._rates: dict[Ports, list[tuple[float, float]]] = {}
        self._capacity = partial(capacity, links=links)

    @classmethod
    def of(cls, plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Self | None:
        """The play of a plan; none of more messages than can be played."""
        sent = list(islice(moves(plan, tasks, links), MOST_PLAYED + 1))
        return None if len(sent) > MOST_PLAYED else cls(sent, tasks, links)

    def run(self) -> float:
        """Until the last message has come."""
        for lane in self._queues:
            self._send(lane)
        while self._starting or self._ways:
            self._step()
        return self._now

    def told(self) -> Played:
        """The same, with all that happens meanwhile."""
        seconds = self.run()
        sent = tuple(map(self._sent, range(len(self._moves)), _chunks(self._moves)))
        return Played(seconds, sent, {ports: tuple(rates) for ports, rates in self._rates.items()})

    def _sent(self, message: int, chunk: int) -> Sent:
        moments = self._set_out[message], self._first[message], self._last[message]
        move = self._moves[message]
        return Sent(move, chunk, self._size(move), self._ports(move), *moments)

    def _step(self) -> None:
        """Go on to the next moment at which something happens."""
        wait = min((way.next_s for way in self._ways.values()), default=float("inf"))
        if self._starting:
            wait = min(wait, max(0.0, self._starting[0][0] - self._now))
        self._now += wait
        passed = [mark for way in self._ways.values() for mark in way.go_on(wait)]
        while self._starting and self._starting[0][0] <= self._now * (1 + EVEN):
            message = heappop(self._starting)[1]
            if not self._join(message):
                passed += [(message, False), (message, True)]
        for message, is_end in passed:
            if is_end:
                self._end(message)
            else:
                self._let_go(message)
        self._ways = {ports: way for ports, way in self._ways.items() if way.messages}
        _share(list(self._ways.values()), self._capacity)
        for way in self._ways.values():
            way.tell(self._now)

    def _send(self, lane: Lane) -> None:
        """Let the next of a lane set out, if the one before has and what it hands on is there."""
        queue = self._queues[lane]
        if queue and not self._is_busy[lane] and not self._missing[queue[0]]:
            message = queue.popleft()
            self._is_busy[lane] = True
            self._set_out[message] = self._now
            move = self._moves[message]
            heappush(self._starting, (self._now + self._links.between(move.source, move.target).latency_s, message))

    def _join(self, message: int) -> bool:
        """Put a message on its way; false where the link is free, so that it is there."""
        self._first[message] = self._now
        move = self._moves[message]
        link = self._links.between(move.source, move.target)
        if not link.bandwidth:
            return False
        ports = self._ports(move)
        if ports not in self._ways:
            self._ways[ports] = _Way(ports, link.bandwidth)
            self._ways[ports].rates = self._rates.setdefault(ports, [])
        self._ways[ports].join(message, self._size(move), self._kept(message))
        return True

    def _kept(self, message: int) -> float:
        """Messages to one rank follow one another; before one to another rank the sender waits for its buffer alone."""
        queue = self._queues[self._lane[message]]
        follows = queue and self._moves[queue[0]].target == self._moves[message].target
        return 0.0 if follows else BUFFER_BYTES

    def _let_go(self, message: int) -> None:
        self._is_busy[self._lane[message]] = False
        self._send(self._lane[message])

    def _end(self, message: int) -> None:
        self._last[message] = self._now
        for other in self._wanted_by[message]:
            self._missing[other] -= 1
            self._send(self._lane[other])

    def _size(self, move: Move) -> float:
        task = self._tasks[move.task]
        return move.elements * (task.bytes / task.elements)

    def _lane_of(self, move: Move) -> Lane:
        near, task = self._links.host[move.source] == self._links.host[move.target], self._tasks[move.task]
        return move.source, near, _lane_number(move, task)

    def _ports(self, move: Move) -> Ports:
        out, to = self._links.host[move.source], self._links.host[move.target]
        return (("out", move.source), ("into", move.target)) if out == to else (("tx", out), ("rx", to))


def _lane_number(move: Move, task: UnitTask) -> int:
    """-1 of what its rank owns, -2 of a sum that it made, the task of what it hands on."""
    if move.is_addend(task):
        return -1
    if move.source not in task.senders:
        return move.task
    return -2 if task.addends else -1


def _chunks(moves: Sequence[Move]) -> list[int]:
    """The number of each message's range in its task."""
    starts: defaultdict[int, set[int]] = defaultdict(set)
    for move in moves:
        starts[move.task].add(move.start)
    number = {task: {start: place for place, start in enumerate(sorted(each))} for task, each in starts.items()}
    return [number[move.task][move.start] for move in moves]


def _needs(moves: Sequence[Move], tasks: Sequence[UnitTask]) -> tuple[list[int], list[list[int]]]:
    """Of each message how many others bring what it hands on, and which ones hand on what it brings."""
    missing: list[int] = [0] * len(moves)
    wanted_by: list[list[int]] = [[] for _ in moves]
    brought: defaultdict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)  # of a task to a rank: ranges
    added: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # of a task to a rank: addends
    for number, move in enumerate(moves):
        task, source, target, start, stop = move
        if move.is_addend(tasks[task]):
            added[task, target].append(number)
            continue
        needed = added[task, source]
        if source not in tasks[task].senders:
            needed = _bringing(brought[task, source], start, stop)
        for brings in needed:
            wanted_by[brings].append(number)
        missing[number] = len(needed)
        brought[task, target][start, stop] = number
    return missing, wanted_by


def _bringing(brought: dict[tuple[int, int], int], start: int, stop: int) -> list[int]:
    """The messages that bring a range, of those that bring ranges."""
    if (start, stop) in brought:  # as it came
        return [brought[start, stop]]
    return [number for (first, last), number in brought.items() if first < stop and start < last]


def _share(ways: Sequence[_Way], capacity: Callable[[Port], float]) -> None:
    """Give every message its max-min fair rate: each way is a class of flows (:func:`meshwave.engine.program._shared_links_loop.share`)."""
    number = {port: at for at, port in enumerate(dict.fromkeys(port for way in ways for port in way.ports))}
    ports = [number[port] for way in ways for port in way.ports]
    limits, demand = [capacity(port) for port in number], [0.0] * len(number)
    for way in ways:
        for port in way.ports:
            demand[number[port]] += way.most * way.messages
    most, messages, fair = [way.most for way in ways], [way.messages for way in ways], [0.0] * len(ways)
    share(
        range(0, 2 * len(ways) + 1, 2), ports, [1.0] * len(ports), most, messages, demand, limits,
        [0.0] * len(number), [0.0] * len(number), fair, list(range(len(ways))), len(ways),
    )  # fmt: skip
    for way, rate in zip(ways, fair, strict=True):
        way.rate = rate
