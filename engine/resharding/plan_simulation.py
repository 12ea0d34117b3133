"""Simulation of a plan: every message, on shared NICs.

In the plan a unit task occupies NICs of both its hosts for its whole duration. This makes the choice of senders and
orders a solvable problem (arXiv:2211.05322, section 3), but is stricter than real processes: they send all ranges that
they hold, and messages through a NIC in the same direction share it. The simulation shares NICs max-min fairly, as
TCP connections do (Bertsekas and Gallager, "Data Networks", section 6.5.2). Before its first byte a message waits for its
link's alpha, which occupies its lane and no NIC.

A rank sends in lanes, each in plan order: one for its own slices to other hosts, one for its own slices within its
host, one for sums that it computed, and one per slice that it forwards.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import Literal, NamedTuple, Self

from meshwave.engine.program.shared_links_loop import RATE_TOLERANCE, compute_fair_rates
from meshwave.engine.resharding.links import Links
from meshwave.engine.resharding.moves import plan_moves
from meshwave.engine.resharding.plan import Plan
from meshwave.engine.resharding.tasks import Move, UnitTask

BUFFER_BYTES = 2**22
"""Bytes of a message that the transport accepts from the sender before the receiver has them: the maximum that Linux
buffers per connection (the last value of ``tcp_wmem``), and NCCL's ``NCCL_BUFFSIZE``."""
MAX_SIMULATED_MESSAGES = 5_000
"""Maximum number of messages to simulate; a larger plan is estimated by its makespan."""
Port = tuple[Literal["tx", "rx", "out", "into"], int]
"""One direction of all NICs of a host, or of the link of a rank within its host."""
Ports = tuple[Port, Port]
Lane = tuple[int, bool, int]
"""Rank, True for a lane within its host, and the task that the lane forwards; see :func:`_lane_number`."""


class SimulatedMessage(NamedTuple):
    """Message of a plan with its simulated times in seconds."""

    move: Move
    chunk: int  # index of the chunk, in the order of starts in the task's slice
    bytes: float
    ports: Ports  # outgoing and incoming port
    set_out_s: float  # start of the latency
    start_s: float  # time of the first byte
    end_s: float  # time of the last byte


Rates = tuple[tuple[float, float], ...]
"""Pairs of a time and the rate from then on, in bytes/s, of each message through the same ports."""


@dataclass(frozen=True)
class PlanSimulation:
    """Result of the message-by-message simulation of a plan."""

    seconds: float  # time until the last message has arrived
    messages: tuple[SimulatedMessage, ...] | None  # in plan order; None if there are more than MAX_SIMULATED_MESSAGES
    rates: Mapping[Ports, Rates] = field(default_factory=dict)


def simulate_plan(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> PlanSimulation:
    """Simulate every message of a plan; a plan of more than ``MAX_SIMULATED_MESSAGES`` messages takes its makespan."""
    simulation = _Simulation.from_plan(plan, tasks, links)
    return PlanSimulation(plan.makespan_s, None) if simulation is None else simulation.run_and_record()


def simulated_plan_seconds(plan: Plan, tasks: Sequence[UnitTask], links: Links) -> float:
    """Return the simulated time in seconds until the last message of a plan has arrived; see :func:`simulate_plan`."""
    simulation = _Simulation.from_plan(plan, tasks, links)
    return plan.makespan_s if simulation is None else simulation.run()


def port_capacity(port: Port, links: Links) -> float:
    """Return the capacity in bytes/s of a port whose links have a finite bandwidth."""
    outside = port[0] in ("tx", "rx")
    link, count = (links.inter_node, links.nics) if outside else (links.intra_node, 1)
    return count * (link.bandwidth or 0.0)


class _PortPair:
    """Messages that currently use the same two ports.

    They have equal rates, so only the message that ends next must be examined. ``served`` counts the bytes that a
    message would have received since the start.
    """

    def __init__(self, ports: Ports, most: float) -> None:
        self.ports, self.most = ports, most  # limit of one message in bytes/s
        self.rate = self.served = 0.0
        self.messages = 0
        self.rates: list[tuple[float, float]] = []  # (time, bytes/s from then on)
        self._marks: list[tuple[float, int, bool]] = []  # heap of (value of ``served``, message, True if it ends then)

    def join(self, message: int, size: float, kept: float) -> None:
        """Add a message of ``size`` bytes; the sender does not wait for its last ``kept`` bytes."""
        self.messages += 1
        heappush(self._marks, (self.served + size, message, True))
        heappush(self._marks, (self.served + max(0.0, size - kept), message, False))

    def record_rate(self, now: float) -> None:
        """Record the current rate if it has changed."""
        if not self.rates or self.rates[-1][1] != self.rate:
            self.rates.append((now, self.rate))

    @property
    def next_s(self) -> float:
        """Seconds until the next message ends or its sender need not wait any longer."""
        return (self._marks[0][0] - self.served) / self.rate

    def advance(self, seconds: float) -> list[tuple[int, bool]]:
        """Advance the time, and return the messages that end, or whose sender need not wait any longer.

        Each message comes with True if it ends.
        """
        self.served += seconds * self.rate
        passed = []
        while self._marks and self._marks[0][0] <= self.served * (1 + RATE_TOLERANCE):
            _, message, is_end = heappop(self._marks)
            self.messages -= is_end
            passed.append((message, is_end))
        return passed


class _Simulation:
    """Simulation of the messages of one plan."""

    def __init__(self, moves: Sequence[Move], tasks: Sequence[UnitTask], links: Links) -> None:
        self._moves, self._tasks, self._links = moves, tasks, links
        self._missing, self._wanted_by = _list_dependencies(moves, tasks)
        self._lane = [self._lane_of(move) for move in moves]
        self._queues: dict[Lane, deque[int]] = {}  # messages that have not started
        for number, lane in enumerate(self._lane):
            self._queues.setdefault(lane, deque()).append(number)
        self._is_busy = dict.fromkeys(self._queues, False)
        self._set_out, self._first, self._last = ([0.0] * len(moves) for _ in range(3))  # times of each message
        self._now = 0.0
        self._starting: list[tuple[float, int]] = []  # heap of (end of the latency, message)
        self._ways: dict[Ports, _PortPair] = {}
        self._rates: dict[Ports, list[tuple[float, float]]] = {}
        self._capacity = partial(port_capacity, links=links)

    @classmethod
    def from_plan(cls, plan: Plan, tasks: Sequence[UnitTask], links: Links) -> Self | None:
        """Return the simulation of a plan; None if it has more than ``MAX_SIMULATED_MESSAGES`` messages."""
        sent = list(islice(plan_moves(plan, tasks, links), MAX_SIMULATED_MESSAGES + 1))
        return None if len(sent) > MAX_SIMULATED_MESSAGES else cls(sent, tasks, links)

    def run(self) -> float:
        """Simulate all messages, and return the seconds until the last one has arrived."""
        for lane in self._queues:
            self._start_next_message(lane)
        while self._starting or self._ways:
            self._advance_to_next_event()
        return self._now

    def run_and_record(self) -> PlanSimulation:
        """Simulate all messages, and return them with their rates."""
        seconds = self.run()
        sent = tuple(map(self._simulated_message, range(len(self._moves)), _chunk_indices(self._moves)))
        return PlanSimulation(seconds, sent, {ports: tuple(rates) for ports, rates in self._rates.items()})

    def _simulated_message(self, message: int, chunk: int) -> SimulatedMessage:
        moments = self._set_out[message], self._first[message], self._last[message]
        move = self._moves[message]
        return SimulatedMessage(move, chunk, self._message_bytes(move), self._port_pair(move), *moments)

    def _advance_to_next_event(self) -> None:
        """Advance to the next event."""
        wait = min((way.next_s for way in self._ways.values()), default=float("inf"))
        if self._starting:
            wait = min(wait, max(0.0, self._starting[0][0] - self._now))
        self._now += wait
        passed = [mark for way in self._ways.values() for mark in way.advance(wait)]
        while self._starting and self._starting[0][0] <= self._now * (1 + RATE_TOLERANCE):
            message = heappop(self._starting)[1]
            if not self._start_transfer(message):
                passed += [(message, False), (message, True)]
        for message, is_end in passed:
            if is_end:
                self._end_message(message)
            else:
                self._release_lane(message)
        self._ways = {ports: way for ports, way in self._ways.items() if way.messages}
        _set_fair_rates(list(self._ways.values()), self._capacity)
        for way in self._ways.values():
            way.record_rate(self._now)

    def _start_next_message(self, lane: Lane) -> None:
        """Start the next message of a lane if the lane is free and the range to be sent has arrived."""
        queue = self._queues[lane]
        if queue and not self._is_busy[lane] and not self._missing[queue[0]]:
            message = queue.popleft()
            self._is_busy[lane] = True
            self._set_out[message] = self._now
            move = self._moves[message]
            heappush(
                self._starting, (self._now + self._links.link_between(move.source, move.target).latency_s, message)
            )

    def _start_transfer(self, message: int) -> bool:
        """Start the transfer of a message; return False if the link is infinitely fast, so that it arrives at once."""
        self._first[message] = self._now
        move = self._moves[message]
        link = self._links.link_between(move.source, move.target)
        if not link.bandwidth:
            return False
        ports = self._port_pair(move)
        if ports not in self._ways:
            self._ways[ports] = _PortPair(ports, link.bandwidth)
            self._ways[ports].rates = self._rates.setdefault(ports, [])
        self._ways[ports].join(message, self._message_bytes(move), self._buffered_bytes(message))
        return True

    def _buffered_bytes(self, message: int) -> float:
        """Return the number of final bytes of a message for which its sender does not wait.

        Consecutive messages to one rank wait for each other; before a message to another rank the sender only waits
        until the rest of the last message fits into the transport's buffer.
        """
        queue = self._queues[self._lane[message]]
        follows = queue and self._moves[queue[0]].target == self._moves[message].target
        return 0.0 if follows else BUFFER_BYTES

    def _release_lane(self, message: int) -> None:
        self._is_busy[self._lane[message]] = False
        self._start_next_message(self._lane[message])

    def _end_message(self, message: int) -> None:
        self._last[message] = self._now
        for other in self._wanted_by[message]:
            self._missing[other] -= 1
            self._start_next_message(self._lane[other])

    def _message_bytes(self, move: Move) -> float:
        task = self._tasks[move.task]
        return move.elements * (task.bytes / task.elements)

    def _lane_of(self, move: Move) -> Lane:
        near, task = self._links.host[move.source] == self._links.host[move.target], self._tasks[move.task]
        return move.source, near, _lane_number(move, task)

    def _port_pair(self, move: Move) -> Ports:
        out, to = self._links.host[move.source], self._links.host[move.target]
        return (("out", move.source), ("into", move.target)) if out == to else (("tx", out), ("rx", to))


def _lane_number(move: Move, task: UnitTask) -> int:
    """Return -1 for slices that the rank owns, -2 for sums that it computes, and the task number for forwarded slices."""
    if move.is_partial_sum(task):
        return -1
    if move.source not in task.senders:
        return move.task
    return -2 if task.addends else -1


def _chunk_indices(moves: Sequence[Move]) -> list[int]:
    """Return the index of each message's range within its task."""
    starts: defaultdict[int, set[int]] = defaultdict(set)
    for move in moves:
        starts[move.task].add(move.start)
    number = {task: {start: place for place, start in enumerate(sorted(each))} for task, each in starts.items()}
    return [number[move.task][move.start] for move in moves]


def _list_dependencies(moves: Sequence[Move], tasks: Sequence[UnitTask]) -> tuple[list[int], list[list[int]]]:
    """Return, for each message, the number of messages that it waits for, and the messages that wait for it."""
    missing: list[int] = [0] * len(moves)
    wanted_by: list[list[int]] = [[] for _ in moves]
    brought: defaultdict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)  # ranges by (task, rank)
    added: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # partial sums by (task, rank)
    for number, move in enumerate(moves):
        task, source, target, start, stop = move
        if move.is_partial_sum(tasks[task]):
            added[task, target].append(number)
            continue
        needed = added[task, source]
        if source not in tasks[task].senders:
            needed = _overlapping_messages(brought[task, source], start, stop)
        for brings in needed:
            wanted_by[brings].append(number)
        missing[number] = len(needed)
        brought[task, target][start, stop] = number
    return missing, wanted_by


def _overlapping_messages(brought: dict[tuple[int, int], int], start: int, stop: int) -> list[int]:
    """Return the numbers of the messages that overlap a range of elements."""
    if (start, stop) in brought:
        return [brought[start, stop]]
    return [number for (first, last), number in brought.items() if first < stop and start < last]


def _set_fair_rates(ways: Sequence[_PortPair], port_capacity: Callable[[Port], float]) -> None:
    """Set the max-min fair rate of every message, with one class of flows per pair of ports."""
    number = {port: at for at, port in enumerate(dict.fromkeys(port for way in ways for port in way.ports))}
    ports = [number[port] for way in ways for port in way.ports]
    limits, demand = [port_capacity(port) for port in number], [0.0] * len(number)
    for way in ways:
        for port in way.ports:
            demand[number[port]] += way.most * way.messages
    most, messages, fair = [way.most for way in ways], [way.messages for way in ways], [0.0] * len(ways)
    compute_fair_rates(
        range(0, 2 * len(ways) + 1, 2), ports, [1.0] * len(ports), most, messages, demand, limits,
        [0.0] * len(number), [0.0] * len(number), fair, list(range(len(ways))), len(ways),
    )  # fmt: skip
    for way, rate in zip(ways, fair, strict=True):
        way.rate = rate
