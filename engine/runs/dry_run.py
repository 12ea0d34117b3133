"""Dry runs: execution of a program that waits for the modelled time of each computation.

Messages are sent in the order of the program, and ranks wait for each other as in training. :class:`Device` tracks the
time of one device. A device is executed by a process with real messages
(:mod:`meshwave.engine.runtime.dry_run.executor`), or by a thread without torch
(:mod:`meshwave.engine.runs.dry_run_threads`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import floor, log10
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from meshwave.engine.costs import Costs
from meshwave.engine.document import Design
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part
from meshwave.engine.program.flow_table import FlowTable
from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import TransferModel, computing_seconds
from meshwave.engine.runs.live_links import LiveLinks
from meshwave.engine.units import format_number, quantity

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

SHORTEST_WAIT_S = 0.02
"""Shortest wait, in seconds, that is accurate to 1-2%. A wait of a quarter of it is accurate to 5%."""
PROCESSES_PER_CORE = 8
"""Maximum number of processes per core that send messages in time; with more, waits lengthen in proportion."""
DEFAULT_STEP_LIMIT_S = 10.0
"""Maximum wall time of a step, in seconds, at the default time-dilation factor."""
STEP_LIMIT_S = 86_400.0
"""Maximum wall time of a step, in seconds, at a requested time-dilation factor."""
REALTIME_STEP_LIMIT_S = 2.0
"""Longest step, in seconds, that is not dilated if all its actions are long enough for accurate waits."""
NEGLIGIBLE_SHARE = 0.01
"""Share of the total waiting time; the shortest actions up to this share do not affect the time-dilation factor."""

STEPS = 8
"""Default maximum number of steps of a dry run; all steps are alike."""

SPIN_NS = 100_000
"""Length of the last part of a wait, in nanoseconds, in which the clock is polled; sleeps overshoot by as much."""
STOP_CHECK_NS = 200_000_000
"""Maximum interval, in nanoseconds, between two checks of whether the dry run was stopped."""
CATCH_UP_FRACTION = 0.1
"""Largest fraction by which an action is shortened to make up for an earlier delay."""

BLOCKS_MESSAGES = frozenset({"indivisible_micro_batch", "unequal_replicas"})
"""Codes of the problems that prevent dry runs as well as training, because they prevent messages.

Other problems, such as a vocabulary that does not fit the text, do not affect a dry run.
"""


class Rehearsal(Part):
    """Options of a dry run: every action waits for its modelled time instead of computing."""

    scale: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Time-dilation factor: wall seconds for one modelled second, or for one unit if costs are in units; null: the
    smallest at which waits are accurate on this machine."""

    @property
    def description(self) -> str:
        """Text such as ``dry run, time x 40``, which the run database stores."""
        return "dry run" if self.scale is None else f"dry run, time x {format_number(self.scale)}"


def limit_steps(design: Design) -> Design:
    """Return the design with at most :data:`STEPS` steps."""
    if design.training.steps <= STEPS:
        return design
    return design.model_copy(update={"training": design.training.model_copy(update={"steps": STEPS})})


# ---- the time-dilation factor ----


class ActionDurations(NamedTuple):
    """Modelled durations of a program that determine the time-dilation factor, in seconds or units of cost."""

    shortest: float  # the shortest action that is not negligible; 0 if no action takes time
    step: float


def action_durations(program: Program, costs: Costs) -> ActionDurations:
    """Return the modelled durations that determine the time-dilation factor.

    A computation with collectives inside waits in parts, so each part counts as an action.
    """
    parts = 1 if costs.network is None else costs.network.parts
    durations = np.sort((slot_seconds(program, costs.seconds) / parts)[program.is_compute & ~program.fused])
    durations = durations[durations > 0]
    step = costs.simulate(program).makespan
    if not durations.size:
        return ActionDurations(0.0, step)
    shortest = np.searchsorted(np.cumsum(durations), NEGLIGIBLE_SHARE * durations.sum())
    return ActionDurations(float(durations[shortest]), step)


def default_scale(durations: ActionDurations, processes: int, cores: int) -> float:
    """Return the smallest time-dilation factor at which waits are accurate on this machine, within the step limit."""
    shortest, step = durations
    least = SHORTEST_WAIT_S * max(1.0, processes / (PROCESSES_PER_CORE * cores))
    if not shortest or not step:
        return 1.0
    if shortest >= least and step <= REALTIME_STEP_LIMIT_S:
        return 1.0
    return min(least / shortest, DEFAULT_STEP_LIMIT_S / step)


class TooLongError(Refusal):
    """A step of a dry run would exceed the limit of one day."""


def step_wall_seconds(durations: ActionDurations, scale: float) -> float:
    """Return the wall time of a step of a dry run in seconds.

    Raises:
        TooLongError: the wall time exceeds the limit of one day.
    """
    step_s = durations.step * scale
    if step_s > STEP_LIMIT_S:
        params = {
            "scale": format_number(scale),
            "step": wall_time_text(step_s),
            "most": _round_down(STEP_LIMIT_S / durations.step),
        }
        raise TooLongError("dry_run_too_long", params, "--scale")
    return step_s


def _round_down(value: float) -> str:
    """Return a value rounded down to two digits, as text."""
    digit = 10.0 ** (floor(log10(value)) - 1)
    return format_number(floor(value / digit) * digit)


_LONG = (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0))


def wall_time_text(seconds: float) -> str:
    """Return a wall time such as ``13 minutes`` or ``5.8 years``; short times in seconds."""
    unit = next(((name, size) for name, size in _LONG if seconds >= 2 * size), None)
    return f"{format_number(seconds / unit[1], 2)} {unit[0]}" if unit else quantity(seconds, "s")


def dry_run_note(durations: ActionDurations, scale: float, unit: str) -> str:
    """Return a note that describes a dry run: its waits, the expected step time and its accuracy."""
    shortest = durations.shortest * scale
    times = "" if scale == 1 else f"{format_number(scale)} times "
    wait = f"{format_number(scale)} s per unit" if unit != "s" else f"{times}its modelled time"
    note = (
        f"dry run: nothing is computed, each action waits {wait}; expected step time "
        f"{wall_time_text(durations.step * scale)}, shortest actions {quantity(shortest, 's')}; "
        f"times are in {'modelled seconds' if unit == 's' else 'units'}"
    )
    if 0 < shortest < 0.9 * SHORTEST_WAIT_S:
        limit = quantity(SHORTEST_WAIT_S, "s")
        note += f"; waits below {limit} are inaccurate on this machine; use a larger --scale"
    return note


def slot_seconds(program: Program, seconds: Floats) -> Floats:
    """Return the wait of each action in seconds, ``[rows]``.

    If two actions share a slot, the first one waits for both.
    """
    waits = seconds.copy()
    second = np.flatnonzero(program.fused)
    waits[second - 1] += waits[second]
    waits[second] = 0.0
    return waits


# ---- a device that waits ----


class Stopped(Exception):
    """Exception that is raised in a dry run when it is stopped."""


def wait_until(at_ns: int, stop: threading.Event | None = None) -> None:
    """Wait until ``at_ns`` on the clock ``time.perf_counter_ns``.

    Sleep until shortly before that time, then poll the clock. A wait never ends early, and a few microseconds late if a
    core is free.

    Raises:
        Stopped: ``stop`` was set.
    """
    while (left := at_ns - time.perf_counter_ns()) > SPIN_NS:
        time.sleep(min(left - SPIN_NS, STOP_CHECK_NS) / 1e9)
        if stop is not None and stop.is_set():
            raise Stopped
    while time.perf_counter_ns() < at_ns:
        pass


def raise_priority(threads: Iterable[int] = (0,)) -> bool:
    """Give threads of this process real-time priority, so that they run as soon as they wake up.

    They mostly wait, so other processes are hardly affected. Thread 0 is the calling one.

    Returns:
        True if the system allows it.
    """
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or not permitted
        return False
    return True


class Device:
    """Clock of a device that waits instead of computing.

    The device becomes free when its last action should have ended, rather than when the thread woke up, so that the
    delays of a tenth of a millisecond between two waits do not add up. Longer delays do count. Times are nanoseconds of
    ``time.perf_counter_ns``, the same clock for all processes of a host.
    """

    def __init__(
        self,
        transfer_model: TransferModel,
        stop: threading.Event | None = None,
        links: LiveLinks | None = None,
        place: int = 0,
    ) -> None:
        """Initialize the device.

        ``links`` are the shared links that it uses; ``place`` is its index in its mesh.
        """
        self._blocks = transfer_model == "sender-blocking"
        self._stop, self._links, self._place = stop, links, place
        self.free_ns = 0
        self._sending_ns = 0
        self._inputs_ns = 0

    def start(self, at_ns: int) -> None:
        """Begin a step at ``at_ns``, which is the same time for all devices."""
        self.free_ns = self._inputs_ns = self._sending_ns = at_ns
        wait_until(at_ns, self._stop)

    def finish_sending(self) -> bool:
        """Wait until the last message has arrived, if sends block the device. Return True if it had to wait."""
        if self._sending_ns <= self.free_ns:
            return False
        self.wait_for_input(self._sending_ns)
        return True

    def wait_for_input(self, due_ns: int) -> int:
        """Wait until an input that is due at ``due_ns`` has arrived; return its arrival time."""
        self._inputs_ns = max(self._inputs_ns, due_ns)
        wait_until(due_ns, self._stop)
        return due_ns

    def compute(self, duration_ns: int, flows: Iterable[int] = (), beside: Iterable[int] = ()) -> None:
        """Wait for the duration of an action whose inputs have arrived.

        The flows ``beside`` become ready at its beginning, ``flows`` at its end.
        """
        latest = time.perf_counter_ns() - int(duration_ns * CATCH_UP_FRACTION)
        self.free_ns = max(self.free_ns, self._inputs_ns, latest)
        self.announce(beside)
        self.free_ns += duration_ns
        self.announce(flows)
        wait_until(self.free_ns, self._stop)

    def announce(self, flows: Iterable[int]) -> None:
        """Announce flows that become ready when the device is free; emulated links need no announcement."""
        if self._links is not None:
            for flow in flows:
                self._links.announce(flow, self._place, self.free_ns)

    @property
    def shares_links(self) -> bool:
        """True if the ends of flows are computed, rather than observed on emulated links."""
        return self._links is not None

    def wait_for_flow(self, flow: int) -> int:
        """Wait until a flow on the shared links is complete, and return its end time."""
        assert self._links is not None, "flows exist only if transfers share links"
        return self._links.wait(flow, partial(wait_until, stop=self._stop))

    def extend_until(self, at_ns: int) -> None:
        """Extend the current action until ``at_ns``, because it waits for other devices."""
        self.free_ns = max(self.free_ns, at_ns)
        wait_until(at_ns, self._stop)

    def send(self, duration_ns: int) -> int:
        """Start to send the last result; return its arrival time on links that are not shared."""
        arrives = self.free_ns + duration_ns
        if self._blocks:
            self._sending_ns = max(self._sending_ns, arrives)
        return arrives


# ---- the waits of a program ----


class ComputePiece(NamedTuple):
    """Piece of a computation: a wait, then an exchange, or a reduction whose gradients are now final; -1 for none.

    A flow beside the computation begins with the first piece of a part, and ends in its last piece.
    """

    ns: int
    exchange: int = -1  # flow
    reduction: int = -1  # row
    begins: int = -1  # flow beside the computation
    ends: int = -1


@dataclass(frozen=True)
class Waits:
    """Waiting times of the actions of a program in nanoseconds, dilated by ``scale``."""

    program: Program
    ns: Int64s  # [rows] the first row of a slot has the whole wait; a SEND its transfer, a REDUCE_GRAD the reduction
    transfer_model: TransferModel
    scale: float
    flows: FlowTable | None  # on shared links: transfers, reductions and exchanges, which ``ns`` excludes
    early: Mapping[int, Sequence[tuple[float, int]]] = field(default_factory=dict)
    """Reductions that begin inside a slot, by its first row: the share of the slot before each, and its row."""

    def pieces(self, row: int) -> Iterator[ComputePiece]:
        """Yield the pieces of the slot whose first row is ``row``."""
        exchanges, beside = self.exchanges(row), self.flows_beside(row)
        parts = max(1, len(exchanges), len(beside))
        part_ns = int(self.ns[row]) // parts
        moments = [(share * parts, reduction) for share, reduction in self.early.get(row, ())]
        for number in range(parts):
            passed, begins = 0, beside[number] if beside else -1
            ends = begins
            for moment, reduction in moments:
                if min(int(moment), parts - 1) == number:
                    until = round((moment - number) * part_ns)
                    yield ComputePiece(until - passed, reduction=reduction, begins=begins)
                    passed, begins = until, -1
            exchange = exchanges[number] if exchanges else -1
            yield ComputePiece(part_ns - passed, exchange=exchange, begins=begins, ends=ends)

    def exchanges(self, row: int) -> range:
        """Return the flows of the exchanges inside a computation or optimizer step; they separate equal parts of it."""
        return self.flows.flows_of_row(row) if self.flows is not None and self.program.is_work[row] else range(0)

    def flows_beside(self, row: int) -> range:
        """Return the flows beside a computation, one for each of its parts."""
        return self.flows.flows_beside(row) if self.flows is not None else range(0)

    def flows_sent(self, row: int) -> Sequence[int]:
        """Return the flows of the messages that a slot sends."""
        return self.flows.made.get(row, ()) if self.flows is not None else ()

    def flow(self, row: int) -> int:
        """Return the flow of a SEND or REDUCE_GRAD; -1 if it does not use shared links."""
        return -1 if self.flows is None else int(self.flows.first[row])

    def rank_waits(self, rank: int) -> list[int]:
        """Return the waiting time of each row of a rank in nanoseconds."""
        found: list[int] = self.ns[self.program.rows(rank)].tolist()
        return found


def plan_waits(program: Program, costs: Costs, scale: float, lanes: Sequence[int] | None = None) -> Waits:
    """Return the waiting times of the actions of a program.

    Args:
        program: the program.
        costs: its modelled costs.
        scale: the time-dilation factor.
        lanes: ``[ranks]`` number of devices of each mesh that take part; by default one represents the mesh.
    """
    seconds, flows = slot_seconds(program, costs.seconds), None
    if costs.network is not None:
        flows = FlowTable.from_program(program, costs.seconds, costs.network, lanes or [1] * program.ranks)
        slots = program.is_work & ~program.fused
        seconds[slots] = computing_seconds(program, costs.seconds, costs.network)[slots]
    ns = np.rint(seconds * (scale * 1e9)).astype(np.int64)
    return Waits(program, ns, costs.transfer_model, scale, flows, _early_reductions(program, costs.lead))


def _early_reductions(program: Program, lead: Floats | None) -> dict[int, list[tuple[float, int]]]:
    """Return the reductions that begin inside the last computation of their stage on their rank, by its slot."""
    found: dict[int, list[tuple[float, int]]] = {}
    if lead is None:
        return found
    for row in np.flatnonzero(lead > 0).tolist():
        of_stage = program.is_compute & (program.stage == program.stage[row]) & (program.rank == program.rank[row])
        if of_stage.any():  # a rank may hold a replica of a stage that computes no microbatch
            slot = int(program.slot[np.flatnonzero(of_stage)[-1]])
            found.setdefault(slot, []).append((1 - float(lead[row]), row))
    return found


def record_send_starts(start: Int64s, links: LiveLinks, waits: Waits, rows: NDArray[np.intp], first: int = 0) -> None:
    """Write the start times of messages into ``start``, ``[rows from first on]``.

    Call it when all messages have arrived, because earlier flows on shared links can delay the start of a message.
    """
    for row in rows.tolist():
        if (flow := waits.flow(row)) >= 0:
            start[row - first] = links.start_ns(flow)
