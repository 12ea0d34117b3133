"""Dry runs in threads: one thread for each rank, without torch and with empty messages."""

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
from meshwave.engine.runs.dry_run import (
    STOP_CHECK_NS,
    Device,
    Int64s,
    Stopped,
    Waits,
    raise_priority,
    record_send_starts,
)
from meshwave.engine.runs.live_links import LiveLinks

TURN_S = 2e-4
"""Maximum time, in seconds, that a thread runs Python code while another thread waits for the interpreter."""


class IncomingMessage(NamedTuple):
    """Message in flight: its arrival time, or the flow that carries it."""

    due_ns: int
    flow: int = -1


class Inbox:
    """Messages to one rank that it has not received yet."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._there = threading.Condition()
        self._coming: dict[object, IncomingMessage] = {}

    def add(self, name: object, coming: IncomingMessage) -> None:
        """Add a message with the name by which it is received."""
        with self._there:
            self._coming[name] = coming
            self._there.notify()

    def take(self, name: object) -> tuple[IncomingMessage, bool]:
        """Remove and return the message with the given name, and True if the caller had to wait for it.

        Raises:
            Stopped: the dry run was stopped, so that the message will not be sent.
        """
        with self._there:
            waits = name not in self._coming
            while name not in self._coming:
                self._there.wait(STOP_CHECK_NS / 1e9)
                if self._stop.is_set():
                    raise Stopped
            return self._coming.pop(name), waits


@dataclass(frozen=True)
class RankTimes:
    """One step of all ranks, in the arrays that a recorder takes: ``[rows of the program]`` nanoseconds."""

    start: Int64s
    end: Int64s
    wait: Int64s

    @property
    def seconds(self) -> float:
        """Wall time of the step in seconds, from the first start to the last end."""
        return float(self.end.max() - self.start.min()) / 1e9 if len(self.end) else 0.0


def run_step_in_threads(waits: Waits, stop: threading.Event | None = None) -> RankTimes:
    """Run one step in a thread for each rank, without torch and with empty messages.

    Raises:
        Stopped: ``stop`` was set.
    """
    stop = stop or threading.Event()
    program = waits.program
    inboxes = [Inbox(stop) for _ in range(program.ranks)]
    times = RankTimes(*np.zeros((3, len(program)), np.int64))
    failed: list[BaseException] = []
    links = None
    if waits.flows is not None:
        links = LiveLinks(waits.flows, np.full(waits.flows.cells[-1], -1, np.int64), waits.scale)
    at_ns = time.perf_counter_ns() + program.ranks * 1_000_000  # all threads have started by then
    if links is not None:
        links.start(at_ns)

    def run_rank(rank: int) -> None:
        try:
            raise_priority()
            _RankThread(waits, rank, inboxes, times, stop, links).run_step(at_ns)
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [
        threading.Thread(target=run_rank, args=(rank,), daemon=True, name=f"rank-{rank}")
        for rank in range(program.ranks)
    ]
    with _short_switch_interval():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise next((error for error in failed if not isinstance(error, Stopped)), failed[0])
    if links is not None:
        record_send_starts(times.start, links, waits, np.flatnonzero(program.is_send))
    return times


@contextmanager
def _short_switch_interval() -> Iterator[None]:
    """Lower the thread switch interval, so that threads run soon after they wake up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _RankThread:
    """Executor of the rows of one rank."""

    def __init__(
        self,
        waits: Waits,
        rank: int,
        inboxes: list[Inbox],
        times: RankTimes,
        stop: threading.Event,
        links: LiveLinks | None,
    ) -> None:
        program = waits.program
        rows = program.rows(rank)
        self._program, self._rank, self._inboxes = program, rank, inboxes
        self._actions, self._first = program.actions(rank), rows.start
        self._peers: list[int] = program.peer[rows].tolist()
        self._all, self._waits = waits, waits.rank_waits(rank)
        self._links, self._device = links, Device(waits.transfer_model, stop, links)
        self._start, self._end, self._wait = (column[rows] for column in (times.start, times.end, times.wait))
        self._consumed_receives = _consumed_receives(self._actions)
        self._reducing: list[int] = []  # rows whose reduction has started
        self._gathering: dict[int, tuple[int, IncomingMessage]] = {}  # row and end of each gather by stage
        self._gather_end_ns = 0
        self._arrived: dict[int, tuple[int, int]] = {}  # row -> arrival time, wait for the arrival
        self._slots = [row for row, action in enumerate(self._actions) if not action.fused]

    def run_step(self, at_ns: int) -> None:
        self._device.start(at_ns)
        for row, following in zip(self._slots, [*self._slots[1:], len(self._actions)], strict=True):
            self._start[row:following] = time.perf_counter_ns()
            self._run_row(row, range(row, following))
            self._end[row:following] = time.perf_counter_ns()
        for row, (arrival, wait) in self._arrived.items():
            self._end[row], self._wait[row] = arrival, wait

    def _run_row(self, row: int, slot: range) -> None:
        op = self._actions[row].op
        if op in SENDS:
            due = self._device.send(self._waits[row])
            coming = IncomingMessage(due, self._all.flow(self._first + row))
            self._inboxes[self._peers[row]].add(message_key(self._actions[row]), coming)
            self._start[row] = self._device.free_ns
        elif op == Op.REDUCE_GRAD:
            if row not in self._reducing:
                self._announce_gradients(row)
        elif op == Op.UNSHARD:
            self._start_gather(row)
        elif op == Op.STEP:
            self._run_optimizer_step(row)
        elif op.is_compute:
            self._run_computation(row, slot)

    def _run_computation(self, row: int, slot: range) -> None:
        begin = time.perf_counter_ns()
        has_waited = self._device.finish_sending()
        for each in slot:
            has_waited = self._finish_gather(self._actions[each].stage, begin) or has_waited
            for receive in self._consumed_receives[each]:
                coming, is_late = self._inboxes[self._rank].take(message_key(self._actions[receive]))
                taken = time.perf_counter_ns() if is_late else 0
                due = coming.due_ns if coming.flow < 0 else self._device.wait_for_flow(coming.flow)
                arrival = self._device.wait_for_input(max(due, taken))
                has_waited = True
                self._arrived[receive] = arrival, time.perf_counter_ns() - begin
        if has_waited:
            self._start[slot.start : slot.stop] = start = time.perf_counter_ns()
            self._wait[slot.start : slot.stop] = start - begin
        self._wait_for_pieces(self._first + row)

    def _wait_for_pieces(self, row: int) -> None:
        """Wait for the pieces of a slot or optimizer step; ``row`` is its first row in the program."""
        sends = self._all.flows_sent(row)
        if row not in self._all.early and not self._all.exchanges(row) and not self._all.flows_beside(row):
            self._device.compute(self._waits[row - self._first], sends)
            return
        for piece in self._all.pieces(row):
            after, beside = ([flow] if flow >= 0 else [] for flow in (piece.exchange, piece.begins))
            self._device.compute(piece.ns, after, beside)
            if piece.exchange >= 0:
                self._device.extend_until(self._device.wait_for_flow(piece.exchange))
            elif piece.reduction >= 0:
                self._announce_gradients(piece.reduction - self._first)
            if piece.ends >= 0:
                self._device.extend_until(self._device.wait_for_flow(piece.ends))
        self._device.announce(sends)

    def _start_gather(self, row: int) -> None:
        """Start to gather the weights of a stage, after the previous gather of this rank."""
        flow = self._all.flow(self._first + row)
        if self._links is not None and flow >= 0:
            self._links.announce(flow, 0, self._device.free_ns)
        self._gather_end_ns = max(self._gather_end_ns, self._device.free_ns) + self._waits[row]
        self._gathering[self._actions[row].stage] = row, IncomingMessage(self._gather_end_ns, flow)

    def _finish_gather(self, stage: int, begin: int) -> bool:
        """Wait until the weights of a stage are gathered; return False if its gather has been waited for before."""
        if stage not in self._gathering:
            return False
        row, (due, flow) = self._gathering.pop(stage)
        started = due - self._waits[row]
        if self._links is not None and flow >= 0:
            due = self._device.wait_for_flow(flow)
            started = self._links.start_ns(flow)
        self._start[row] = started
        self._arrived[row] = self._device.wait_for_input(due), time.perf_counter_ns() - begin
        return True

    def _announce_gradients(self, row: int) -> None:
        """Announce to all ranks with a replica of the stage that the gradients of this replica are complete."""
        (_, stage, bucket, *_), flow = self._actions[row], self._all.flow(self._first + row)
        ranks = list(self._program.ranks_of(stage))
        if self._links is not None and flow >= 0:
            self._links.announce(flow, ranks.index(self._rank), self._device.free_ns)
        for rank in ranks:
            self._inboxes[rank].add((Op.REDUCE_GRAD, stage, bucket, self._rank), IncomingMessage(self._device.free_ns))
        self._reducing.append(row)

    def _run_optimizer_step(self, row: int) -> None:
        """Run the optimizer step once all gradients of its stages are reduced; with clipping, those of all ranks."""
        begin, done = time.perf_counter_ns(), 0
        inbox = self._inboxes[self._rank]
        for reduce in sorted(self._reducing):
            done = self._reduction_end(reduce, done)
            self._arrived[reduce] = self._device.wait_for_input(done), time.perf_counter_ns() - begin
        if self._program.clips:
            ready = max(self._device.free_ns, done)
            for other in self._inboxes:
                other.add((Op.STEP, self._rank), IncomingMessage(ready))
            for rank in range(self._program.ranks):
                coming, is_late = inbox.take((Op.STEP, rank))
                self._device.wait_for_input(max(coming.due_ns, time.perf_counter_ns() if is_late else 0))
        self._start[row] = start = time.perf_counter_ns()
        self._wait[row] = start - begin
        self._wait_for_pieces(self._first + row)

    def _reduction_end(self, row: int, before: int) -> int:
        """Return the end time of a reduction, which starts after the last replica and the reduction ``before``."""
        (_, stage, bucket, *_), flow = self._actions[row], self._all.flow(self._first + row)
        inbox = self._inboxes[self._rank]
        copies = [inbox.take((Op.REDUCE_GRAD, stage, bucket, rank)) for rank in self._program.ranks_of(stage)]
        taken = time.perf_counter_ns() if any(is_late for _, is_late in copies) else 0
        if self._links is not None and flow >= 0:
            done = self._device.wait_for_flow(flow)
            self._start[row] = self._links.start_ns(flow)
            return max(done, taken)
        ready = max(before, *(coming.due_ns for coming, _ in copies))
        self._start[row] = max(ready, taken - self._waits[row])
        return max(ready + self._waits[row], taken)


def _consumed_receives(actions: list[Action]) -> list[list[int]]:
    """Return the receives whose messages each action consumes, ``[rows of the rank]``."""
    receives = defaultdict(list)
    for row, action in enumerate(actions):
        if action.op in RECEIVES:
            forward, _, stage, mb = message_key(action)
            receives[forward, stage, mb].append(row)
    takes = (Op.F, Op.B, Op.I)
    return [receives[a.op == Op.F, a.stage, a.microbatch] if a.op in takes else [] for a in actions]
