"""Dry runs in threads: one for each rank, without torch and without processes; messages are empty."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwave.engine.program.action import RECEIVES, SENDS, Action, Op, message_key
from meshwave.engine.runs.dry_run import LOOK_NS, Device, Int64s, Stopped, Waits, come_first, note_starts
from meshwave.engine.runs.live_links import LiveLinks

TURN_S = 2e-4
"""How long a thread may go on that computes in Python while another one waits for its turn."""


class Coming(NamedTuple):
    """A message: its arrival time, or the flow that brings it."""

    due_ns: int
    flow: int = -1


class Inbox:
    """Messages to one rank that it has not received yet."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._there = threading.Condition()
        self._coming: dict[object, Coming] = {}

    def put(self, name: object, coming: Coming) -> None:
        """Add a message."""
        with self._there:
            self._coming[name] = coming
            self._there.notify()

    def take(self, name: object) -> tuple[Coming, bool]:
        """Return a message by name, and whether it had to be waited for.

        Raises:
            Stopped: it will never be sent.
        """
        with self._there:
            waits = name not in self._coming
            while name not in self._coming:
                self._there.wait(LOOK_NS / 1e9)
                if self._stop.is_set():
                    raise Stopped
            return self._coming.pop(name), waits


@dataclass(frozen=True)
class Played:
    """One step of all ranks: ``[rows of the program]`` nanoseconds, as a recorder takes them."""

    start: Int64s
    end: Int64s
    wait: Int64s

    @property
    def seconds(self) -> float:
        """Wall time from the first start to the last end."""
        return float(self.end.max() - self.start.min()) / 1e9 if len(self.end) else 0.0


def play(waits: Waits, stop: threading.Event | None = None) -> Played:
    """Run one step with a thread for each rank, without processes, torch or message contents.

    Raises:
        Stopped: ``stop`` was set.
    """
    stop = stop or threading.Event()
    program = waits.program
    inboxes = [Inbox(stop) for _ in range(program.ranks)]
    played = Played(*np.zeros((3, len(program)), np.int64))
    failed: list[BaseException] = []
    links = None
    if waits.flows is not None:
        links = LiveLinks(waits.flows, np.full(waits.flows.cells[-1], -1, np.int64), waits.scale)
    at_ns = time.perf_counter_ns() + program.ranks * 1_000_000  # when all threads will be there
    if links is not None:
        links.start(at_ns)

    def play_rank(rank: int) -> None:
        try:
            come_first()
            _Player(waits, rank, inboxes, played, stop, links).play(at_ns)
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [
        threading.Thread(target=play_rank, args=(rank,), daemon=True, name=f"rank-{rank}")
        for rank in range(program.ranks)
    ]
    with _quick_turns():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
    if links is not None:
        note_starts(played.start, links, waits, np.flatnonzero(program.is_send))
    return played


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Let threads that wake up run soon, even while another thread computes in Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Player:
    """Runs the rows of one rank."""

    def __init__(
        self,
        waits: Waits,
        rank: int,
        inboxes: list[Inbox],
        played: Played,
        stop: threading.Event,
        links: LiveLinks | None,
    ) -> None:
        program = waits.program
        rows = program.rows(rank)
        self._program, self._rank, self._inboxes = program, rank, inboxes
        self._actions, self._first = program.actions(rank), rows.start
        self._peers: list[int] = program.peer[rows].tolist()
        self._all, self._waits = waits, waits.of_rank(rank)
        self._links, self._device = links, Device(waits.transfer_model, stop, links)
        self._start, self._end, self._wait = (column[rows] for column in (played.start, played.end, played.wait))
        self._incoming = _incoming(self._actions)
        self._reducing: list[int] = []  # rows whose reduction is under way
        self._arrived: dict[
            int, tuple[int, int]
        ] = {}  # of what was received: when it was there, how long it was waited for
        self._slots = [row for row, action in enumerate(self._actions) if not action.fused]

    def play(self, at_ns: int) -> None:
        self._device.start(at_ns)
        for row, following in zip(self._slots, [*self._slots[1:], len(self._actions)], strict=True):
            self._start[row:following] = time.perf_counter_ns()
            self._play(row, range(row, following))
            self._end[row:following] = time.perf_counter_ns()
        for row, (there, waited) in self._arrived.items():
            self._end[row], self._wait[row] = there, waited

    def _play(self, row: int, slot: range) -> None:
        op = self._actions[row].op
        if op in SENDS:
            due = self._device.send(self._waits[row])
            coming = Coming(due, self._all.flow(self._first + row))
            self._inboxes[self._peers[row]].put(message_key(self._actions[row]), coming)
            self._start[row] = self._device.free_ns
        elif op == Op.REDUCE_GRAD:
            self._reduce(row)
        elif op == Op.STEP:
            self._step(row)
        elif op not in RECEIVES:
            self._compute(row, slot)

    def _compute(self, row: int, slot: range) -> None:
        asked = time.perf_counter_ns()
        stood = self._device.clear_to_send()
        for each in slot:
            for receive in self._incoming[each]:
                coming, late = self._inboxes[self._rank].take(message_key(self._actions[receive]))
                came = time.perf_counter_ns() if late else 0
                due = coming.due_ns if coming.flow < 0 else self._device.wait_for(coming.flow)
                there = self._device.hold(max(due, came))
                stood = True
                self._arrived[receive] = there, time.perf_counter_ns() - asked
        if stood:
            self._start[slot.start : slot.stop] = held = time.perf_counter_ns()
            self._wait[slot.start : slot.stop] = held - asked
        exchanges, sends = self._all.exchanges(self._first + row), self._all.sent_by(self._first + row)
        if not exchanges:
            self._device.compute(self._waits[row], sends)
            return
        for flow in exchanges:
            self._device.compute(self._waits[row] // len(exchanges), [flow])
            self._device.go_on_until(self._device.wait_for(flow))
        self._device.announce(sends)

    def _reduce(self, row: int) -> None:
        """Announce to all holders of the stage that this copy is complete."""
        stage, flow = self._actions[row].stage, self._all.flow(self._first + row)
        ranks = list(self._program.ranks_of(stage))
        if self._links is not None and flow >= 0:
            self._links.announce(flow, ranks.index(self._rank), self._device.free_ns)
        for rank in ranks:
            self._inboxes[rank].put((Op.REDUCE_GRAD, stage, self._rank), Coming(self._device.free_ns))
        self._reducing.append(row)

    def _step(self, row: int) -> None:
        """Step once all gradients are reduced, one stage after the other; with clipping, once all ranks have theirs."""
        asked, done = time.perf_counter_ns(), 0
        inbox = self._inboxes[self._rank]
        for reduce in self._reducing:
            done = self._reduced(reduce, done)
            self._arrived[reduce] = self._device.hold(done), time.perf_counter_ns() - asked
        if self._program.clips:
            ready = max(self._device.free_ns, done)
            for other in self._inboxes:
                other.put((Op.STEP, self._rank), Coming(ready))
            for rank in range(self._program.ranks):
                coming, late = inbox.take((Op.STEP, rank))
                self._device.hold(max(coming.due_ns, time.perf_counter_ns() if late else 0))
        self._start[row] = held = time.perf_counter_ns()
        self._wait[row] = held - asked
        self._device.compute(self._waits[row])

    def _reduced(self, row: int, before: int) -> int:
        """Return when a reduction is done; it begins when the last copy is complete."""
        stage, flow = self._actions[row].stage, self._all.flow(self._first + row)
        inbox = self._inboxes[self._rank]
        told = [inbox.take((Op.REDUCE_GRAD, stage, rank)) for rank in self._program.ranks_of(stage)]
        came = time.perf_counter_ns() if any(late for _, late in told) else 0
        if self._links is not None and flow >= 0:
            done = self._device.wait_for(flow)
            self._start[row] = self._links.sent(flow)
            return max(done, came)
        ready = max(before, *(coming.due_ns for coming, _ in told))
        self._start[row] = max(ready, came - self._waits[row])
        return max(ready + self._waits[row], came)


def _incoming(actions: list[Action]) -> list[list[int]]:
    """Return ``[rows of a rank]`` the receives whose messages each action consumes."""
    receives = defaultdict(list)
    for row, action in enumerate(actions):
        if action.op in RECEIVES:
            forward, _, stage, mb = message_key(action)
            receives[forward, stage, mb].append(row)
    takes = (Op.F, Op.B, Op.I)
    return [receives[a.op == Op.F, a.stage, a.microbatch] if a.op in takes else [] for a in actions]
