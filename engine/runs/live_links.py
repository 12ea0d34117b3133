"""Shared links in a dry run: end times of flows, given the flows that have been announced so far.

The sharing rules are those of :mod:`meshwave.engine.program.shared_links`. The simulator knows all flows of a step in
advance; a dry run learns of them during the step. :class:`LiveNetwork` simulates the flows up to a committed time, a
little in the past, and estimates from there when active flows end. :class:`LiveLinks` connects it to the clock: all
processes or threads of a dry run write the ready times of their flows to a shared table, and each of them simulates the
same flows. A thread that waits for a flow sleeps until the estimated end, then checks again.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.flow_table import FlowTable
from meshwave.engine.program.shared_links_loop import RATE_TOLERANCE, compute_fair_rates, has_units

Int64s = NDArray[np.int64]

GRACE_NS = 8_000_000
"""Lag of the committed time behind the clock, in nanoseconds.

A flow that is announced later counts as ready at the committed time.
"""
LOOK_NS = 10_000_000
"""Shortest sleep, in nanoseconds, before new announcements are read; half of the remaining wait if that is longer."""
NOT_READY_NS = 500_000
"""Sleep, in nanoseconds, before new announcements are read while a participant has not announced the flow."""


# ---- network of the flows announced so far ----


class LiveNetwork:
    """Shared network whose flows are announced one by one; times are modelled seconds or units."""

    def __init__(self, table: FlowTable) -> None:
        self._known = _flow_lists(table)
        self.start()

    def start(self) -> None:
        """Begin a step without any flows."""
        self._committed = _NetworkState(self._known)
        self._ahead: _NetworkState | None = None

    def announce(self, flow: int, ready: float) -> None:
        """Announce the time at which a flow is ready; it is raised to the committed time if it is earlier."""
        self._committed.announce(flow, max(ready, self._committed.now))
        if self._ahead is not None and ready > self._ahead.now:
            self._ahead.announce(flow, ready)
        else:
            self._ahead = None

    def simulate_until(self, until: float) -> None:
        """Simulate up to ``until``; flows announced later do not change earlier times."""
        self._committed.run(until)

    def end_time(self, flow: int) -> float | None:
        """Return the estimated end time of a flow; None if the flow, or a flow that it waits for, is not announced."""
        found = self._committed.ends.get(flow)
        return self._state_at_end(flow).ends.get(flow) if found is None else found

    def start_time(self, flow: int) -> float:
        """Return the start time of an announced flow: when it is ready and, for a message, has its connection."""
        found = self._state_at_end(flow).starts.get(flow)
        return self._committed.starts[flow] if found is None else found

    def _state_at_end(self, flow: int) -> _NetworkState:
        """Return the simulation state at the end of a flow, given the flows announced so far."""
        if self._ahead is None:
            self._ahead = self._committed.copy()
        if flow not in self._committed.ends:
            self._ahead.run(inf, flow)
        return self._ahead


class _FlowLists(NamedTuple):
    """Flow table as Python lists, whose elements are faster to read than those of arrays."""

    kind: list[int]  # [flows]
    size: list[float]
    after: list[int]
    before: dict[int, int]  # the next flow in the queue of each
    is_message: list[bool]
    latency: list[float]  # [kinds]
    line: list[int]
    rate: list[float]
    use_ptr: list[int]
    port: list[int]  # [uses]
    weight: list[float]
    capacity: list[float]  # [ports]
    units: list[int]


def _flow_lists(table: FlowTable) -> _FlowLists:
    network, after = table.network, table.after.tolist()
    return _FlowLists(
        table.kind.tolist(),
        table.size.tolist(),
        after,
        {before: flow for flow, before in enumerate(after) if before >= 0},
        table.is_message.tolist(),
        network.latency_s.tolist(),
        network.connection.tolist(),
        network.rate.tolist(),
        network.use_ptr.tolist(),
        network.use_port.tolist(),
        network.use_weight.tolist(),
        network.capacity.tolist(),
        network.units.tolist(),
    )


class _ActiveFlow:
    """Flow in transit; ``left`` bytes remain at time ``since``."""

    __slots__ = ("end", "flow", "left", "rate", "since")

    def __init__(self, flow: int, left: float, since: float, rate: float, end: float) -> None:
        self.flow, self.left, self.since, self.rate, self.end = flow, left, since, rate, end

    def set_rate(self, rate: float, now: float) -> None:
        if rate != self.rate:
            self.left -= self.rate * (now - self.since)
            self.since, self.rate = now, rate
            self.end = now + max(0.0, self.left) / rate


class _NetworkState:
    """Simulation state of all flows of a step up to a time."""

    def __init__(self, known: _FlowLists, past: dict[int, float] | None = None) -> None:
        """Begin at time 0; ``past`` has the end times of flows that ended earlier."""
        self._known, self._past = known, past or {}
        self.now = 0.0
        self.ends: dict[int, float] = {}
        self.starts: dict[int, float] = {}
        self._coming: list[tuple[float, float, int]] = []  # a heap: end of the latency, ready time, flow
        self._held: dict[int, float] = {}  # ready times of flows that wait for the flow before them
        self._lines: defaultdict[int, list[int]] = defaultdict(list)  # by connection; the first flow has it
        self._order: dict[int, int] = {}  # the order in which active flows queued for their connections
        self._number = 0
        self._waiting: list[int] = []  # flows that have their connection and wait for units, in queue order
        self._units = known.units[:]
        self._moving: list[_ActiveFlow] = []

    def copy(self) -> _NetworkState:
        """Return a copy for simulating ahead, without the start and end times recorded so far."""
        other = _NetworkState(self._known, self.ends)
        other.now, other._number = self.now, self._number
        other._held, other._order = dict(self._held), dict(self._order)
        other._coming, other._waiting, other._units = self._coming[:], self._waiting[:], self._units[:]
        other._lines.update((line, flows[:]) for line, flows in self._lines.items() if flows)
        other._moving = [_ActiveFlow(each.flow, each.left, each.since, each.rate, each.end) for each in self._moving]
        return other

    def announce(self, flow: int, ready: float) -> None:
        known, self.starts[flow] = self._known, ready
        before = known.after[flow]
        if before >= 0 and before not in self.ends and before not in self._past:
            self._held[flow] = ready
        else:
            heapq.heappush(self._coming, (ready + known.latency[known.kind[flow]], ready, flow))

    def run(self, until: float, flow: int = -1) -> None:
        """Simulate up to a time, or until a flow has ended."""
        while flow not in self.ends:
            first = min(self._moving, key=lambda each: each.end, default=None)
            soonest, coming = first.end if first else inf, self._coming[0][0] if self._coming else inf
            if (moment := min(soonest, coming)) > until or moment == inf:
                break
            self.now = max(self.now, moment)
            if first and soonest <= coming:
                self._finish_flow(first)
            else:
                self._enqueue(heapq.heappop(self._coming)[2])
            if self._start_flows(after_an_end=soonest <= coming) or soonest <= coming:
                self._set_rates()
        if until < inf:
            self.now = max(self.now, until)

    def _enqueue(self, flow: int) -> None:
        """Queue a flow for its connection after its latency is over."""
        line = self._lines[self._known.line[self._known.kind[flow]]]
        self._order[flow] = self._number = self._number + 1
        line.append(flow)
        if line[0] == flow:
            self._waiting.append(flow)

    def _finish_flow(self, moving: _ActiveFlow) -> None:
        flow, known = moving.flow, self._known
        self._moving.remove(moving)
        del self._order[flow]
        self.ends[flow] = self.now
        self._count_units(flow, 1)
        line = self._lines[known.line[known.kind[flow]]]
        del line[0]
        if line:
            self._waiting.append(line[0])
            self._waiting.sort(key=self._order.__getitem__)
        following = known.before.get(flow, -1)
        if following in self._held:
            self.announce(following, max(self._held.pop(following), self.now))

    def _start_flows(self, *, after_an_end: bool) -> bool:
        """Start the flows that have their connection and enough units of their ports; return True if any starts."""
        known, waiting, before = self._known, self._waiting, len(self._moving)
        self._waiting = []
        for flow in waiting:
            kind = known.kind[flow]
            if not has_units(known.use_ptr, known.port, self._units, kind):
                self._waiting.append(flow)
                continue
            self._count_units(flow, -1)
            if after_an_end and known.is_message[flow]:
                self.starts[flow] = self.now
            self._moving.append(_ActiveFlow(flow, known.size[flow], self.now, 0.0, inf))
        return len(self._moving) > before

    def _count_units(self, flow: int, change: int) -> None:
        kind = self._known.kind[flow]
        for use in range(self._known.use_ptr[kind], self._known.use_ptr[kind + 1]):
            if self._units[self._known.port[use]] >= 0:
                self._units[self._known.port[use]] += change

    def _set_rates(self) -> None:
        """Set the rate of each flow in transit to its max-min fair rate."""
        rates = _fair_rates(self._known, [self._known.kind[each.flow] for each in self._moving])
        for each, rate in zip(self._moving, rates, strict=True):
            each.set_rate(rate, self.now)


def _fair_rates(known: _FlowLists, kinds: Sequence[int]) -> list[float]:
    """Return the max-min fair rates in bytes/s of flows of these kinds that are in transit together, ``[flows]``."""
    demand = [0.0] * len(known.capacity)
    for kind in kinds:
        for use in range(known.use_ptr[kind], known.use_ptr[kind + 1]):
            demand[known.port[use]] += known.weight[use] * known.rate[kind]
    if all(taken <= most * (1 + RATE_TOLERANCE) for taken, most in zip(demand, known.capacity, strict=True)):
        return [known.rate[kind] for kind in kinds]
    busy, fair = [0] * len(known.rate), [0.0] * len(known.rate)
    for kind in kinds:
        busy[kind] += 1
    found = list(dict.fromkeys(kinds))
    left, shares = [0.0] * len(demand), [0.0] * len(demand)
    compute_fair_rates(
        known.use_ptr, known.port, known.weight, known.rate, busy, demand, known.capacity, left, shares, fair, found,
        len(found),
    )  # fmt: skip
    return [fair[kind] for kind in kinds]


# ---- connected to the clock ----


class LiveLinks:
    """Shared links of a dry run, as seen from one process or thread.

    Times are nanoseconds of ``time.perf_counter_ns``. A cell of the shared table whose time is before the start of the step
    was written in an earlier step.
    """

    def __init__(self, table: FlowTable, board: Int64s, scale: float) -> None:
        """Initialize the links.

        ``board``, ``[cells]``, is shared by all participants; ``scale`` is the time-dilation factor.
        """
        self.table = table
        self._board, self._ns = board, scale * 1e9
        self._network = LiveNetwork(table)
        self._lock = threading.Lock()
        groups = len(table.cells) - 1
        self._flows: list[list[int]] = [[] for _ in range(groups)]
        for flow, group in enumerate(table.group.tolist()):
            self._flows[group].append(flow)
        self._open = np.ones(groups, np.bool_)
        self._start_ns = -1

    def start(self, at_ns: int) -> None:
        """Begin a step."""
        with self._lock:
            self._start_ns = at_ns
            self._network.start()
            self._open[:] = True

    def announce(self, flow: int, place: int, at_ns: int) -> None:
        """Announce to all participants that one of them is ready for a flow."""
        self._board[self.table.cell(flow, place)] = at_ns

    def wait(self, flow: int, wait_until: Callable[[int], None]) -> int:
        """Wait until a flow is complete, and return its end time."""
        while True:
            due, now = self._flow_end_ns(flow), time.perf_counter_ns()
            if due is not None and due <= now:
                return due
            wait_until(now + NOT_READY_NS if due is None else min(due, now + max(LOOK_NS, (due - now) // 2)))

    def start_ns(self, flow: int) -> int:
        """Return the start time of a complete flow."""
        with self._lock:
            self._read_board()
            return self._clock_ns(self._network.start_time(flow))

    def _flow_end_ns(self, flow: int) -> int | None:
        with self._lock:
            self._read_board()
            end = self._network.end_time(flow)
        return None if end is None else self._clock_ns(end)

    def _read_board(self) -> None:
        """Read the announcements made since the last call."""
        first = self.table.cells[:-1]
        ready = (np.minimum.reduceat(self._board, first) >= self._start_ns) & self._open
        for group in np.flatnonzero(ready).tolist():
            at = int(self._board[self.table.cells[group] : self.table.cells[group + 1]].max())
            for flow in self._flows[group]:
                self._network.announce(flow, (at - self._start_ns) / self._ns)
        self._open &= ~ready
        self._network.simulate_until((time.perf_counter_ns() - GRACE_NS - self._start_ns) / self._ns)

    def _clock_ns(self, moment: float) -> int:
        return self._start_ns + round(moment * self._ns)
