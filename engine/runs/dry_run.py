"""Rehearsals: a program played with waits of its modelled times in place of its computations.

What a device does between two messages is a wait; who waits for whom is real. :class:`Device` keeps the
time of one of them, whether a process plays it (:mod:`meshwave.engine.runtime.dry_run.executor`, over the real wire) or a
thread (:mod:`meshwave.engine.runs.dry_run_threads`, on machines without torch).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from meshwave.engine.units import number, quantity

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

SHORTEST_S = 0.02
"""An action that is waited for so long is within 1 to 2 percent; one of a quarter of it within 5."""
PROCESSES_A_CORE = 8
"""With more of them the waits get as much longer, so that the cores keep up with the messages."""
LONGEST_STEP_S = 10.0
"""Nobody waits longer than this for a step, unless they ask for it."""
MOST_STEP_S = 86_400.0
"""Nor longer than a day, whatever they ask for: that is a slip of the hand."""
AS_IT_IS_S = 2.0
"""A step that takes no longer, and has no action that is too short, is played in its own time."""
MATTERS = 0.01
"""The shortest action that matters: all shorter ones together are less than this share of the waiting."""

STEPS = 8
"""Nothing is learnt, and one step is like another: so many are enough, unless somebody asks for more."""

SPIN_NS = 100_000
"""The end of a wait that is spent looking at the clock, as long as a sleep may overshoot."""
LOOK_NS = 200_000_000
"""How long a wait may go on before it is asked whether it is still wanted."""
MADE_GOOD = 0.1
"""The most of an action's time by which it may be shorter, since what came before it was late."""

ASKED = frozenset({"indivisible_micro_batch", "unequal_replicas"})
"""The codes of what keeps a design from being trained and keeps its messages from being sent too; whatever else does,
such as a vocabulary that no text fits, is of no matter where nothing is computed."""


class Rehearsal(Part):
    """Every action waits its modelled seconds instead of computing."""

    scale: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """By how much modelled time is stretched, seconds of the clock for one modelled second (or for one unit,
    where costs are in units); null: as it stays true on this machine."""

    @property
    def words(self) -> str:
        return "rehearsal" if self.scale is None else f"rehearsal, time x {number(self.scale)}"


def shortened(design: Design) -> Design:
    """The same with no more steps than a rehearsal needs."""
    if design.training.steps <= STEPS:
        return design
    return design.model_copy(update={"training": design.training.model_copy(update={"steps": STEPS})})


# ---- the scale ----


class Lengths(NamedTuple):
    """How long things take by the model, in its seconds or units."""

    shortest: float  # action that matters; 0 where nothing takes time
    step: float

    @classmethod
    def of(cls, program: Program, costs: Costs) -> Lengths:
        """A computation that exchanges inside waits part by part, and each of them has to be long enough."""
        parts = 1 if costs.network is None else np.where(costs.network.row_kind >= 0, costs.network.parts, 1)
        took = np.sort((slot_seconds(program, costs.seconds) / parts)[program.is_compute & ~program.fused])
        took = took[took > 0]
        step = costs.play(program).makespan
        if not took.size:
            return cls(0.0, step)
        matters = np.searchsorted(np.cumsum(took), MATTERS * took.sum())
        return cls(float(took[matters]), step)


def usual_scale(lengths: Lengths, processes: int, cores: int) -> float:
    """The least stretching at which waits are true here, as far as nobody has to wait too long for a step."""
    shortest, step = lengths
    wanted = SHORTEST_S * max(1.0, processes / (PROCESSES_A_CORE * cores))
    if not shortest or not step:
        return 1.0
    if shortest >= wanted and step <= AS_IT_IS_S:
        return 1.0
    return min(wanted / shortest, LONGEST_STEP_S / step)


class TooLongError(Refusal):
    """A step of a dry run would exceed the limit of one day."""


def step_wall_seconds(lengths: Lengths, scale: float) -> float:
    """Return the wall time of a step of a dry run.

    Raises:
        TooLongError: it exceeds the limit.
    """
    step_s = lengths.step * scale
    if step_s > MOST_STEP_S:
        params = {"scale": number(scale), "step": long_time(step_s), "most": _not_above(MOST_STEP_S / lengths.step)}
        raise TooLongError("dry_run_too_long", params, "--scale")
    return step_s


def _not_above(value: float) -> str:
    """A number that is no larger, of few digits."""
    digit = 10.0 ** (floor(log10(value)) - 1)
    return number(floor(value / digit) * digit)


_LONG = (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0))


def long_time(seconds: float) -> str:
    """``5.8 years``, ``13 minutes``: a time that is waited for; seconds as long as they are few."""
    unit = next(((name, size) for name, size in _LONG if seconds >= 2 * size), None)
    return f"{number(seconds / unit[1], 2)} {unit[0]}" if unit else quantity(seconds, "s")


def in_words(lengths: Lengths, scale: float, unit: str) -> str:
    """What a rehearsal is and how true, in a sentence."""
    shortest = lengths.shortest * scale
    times = "" if scale == 1 else f"{number(scale)} times "
    stretched = f"{number(scale)} s for a unit" if unit != "s" else f"{times}its modelled time"
    said = (
        f"a rehearsal: nothing is computed, each action waits {stretched}; a step should take "
        f"{long_time(lengths.step * scale)}, its shortest actions {quantity(shortest, 's')}; "
        f"times are told in {'modelled seconds' if unit == 's' else 'units'}"
    )
    if 0 < shortest < 0.9 * SHORTEST_S:
        said += f"; below {quantity(SHORTEST_S, 's')} the machine's own delays show: a larger --scale is truer"
    return said


def slot_seconds(program: Program, seconds: Floats) -> Floats:
    """[rows] how long each action waits; of two that share a slot the first waits for both."""
    waits = seconds.copy()
    second = np.flatnonzero(program.fused)
    waits[second - 1] += waits[second]
    waits[second] = 0.0
    return waits


# ---- a device that waits ----


class Stopped(Exception):
    """The rehearsal is not wanted any more."""


def wait_until(at_ns: int, stop: threading.Event | None = None) -> None:
    """Sleep until just before a time of ``time.perf_counter_ns``, and look at the clock for the rest: never too
    short, and few microseconds too long where a core is free.

    Raises:
        Stopped: ``stop`` was set.
    """
    while (left := at_ns - time.perf_counter_ns()) > SPIN_NS:
        time.sleep(min(left - SPIN_NS, LOOK_NS) / 1e9)
        if stop is not None and stop.is_set():
            raise Stopped
    while time.perf_counter_ns() < at_ns:
        pass


def come_first(threads: Iterable[int] = (0,)) -> bool:
    """Let threads of this process run as soon as they are woken, before other work of this machine; whether the system
    allows it. What mostly waits takes little from others. Thread 0 is the one that calls."""
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or no right to
        return False
    return True


class Device:
    """The time of one device that waits where others compute.

    It is free when its last action should have ended, not when the machine woke it: a device does not lose the
    tenths of a millisecond that this machine needs between two waits. What was later by more is late.
    Times are nanoseconds of ``time.perf_counter_ns``, the same clock for all processes of a host.
    """

    def __init__(
        self,
        transfer_model: TransferModel,
        stop: threading.Event | None = None,
        links: LiveLinks | None = None,
        place: int = 0,
    ) -> None:
        """``links``: those that it shares with others. ``place``: of the device among those of its mesh."""
        self._blocks = transfer_model == "sender-blocking"
        self._stop, self._links, self._place = stop, links, place
        self.free_ns = 0
        self._sending_ns = 0
        self._held_ns = 0

    def start(self, at_ns: int) -> None:
        """A step begins, for all devices at once."""
        self.free_ns = self._held_ns = self._sending_ns = at_ns
        wait_until(at_ns, self._stop)

    def clear_to_send(self) -> bool:
        """Where a sender does nothing else until what it sent is there: wait for that; whether there was a wait."""
        if self._sending_ns <= self.free_ns:
            return False
        self.hold(self._sending_ns)
        return True

    def hold(self, due_ns: int) -> int:
        """An input is in hand, which is not there before ``due_ns``; returns when it was there."""
        self._held_ns = max(self._held_ns, due_ns)
        wait_until(due_ns, self._stop)
        return due_ns

    def compute(self, took_ns: int, flows: Sequence[int] = ()) -> None:
        """Wait as long as an action takes whose inputs are in hand; at its end some ``flows`` are ready."""
        latest = time.perf_counter_ns() - int(took_ns * MADE_GOOD)
        self.free_ns = max(self.free_ns, self._held_ns, latest) + took_ns
        self.announce(flows)
        wait_until(self.free_ns, self._stop)

    def announce(self, flows: Iterable[int]) -> None:
        """Flows are ready once the device is free; over emulated links nobody has to know."""
        if self._links is not None:
            for flow in flows:
                self._links.announce(flow, self._place, self.free_ns)

    @property
    def shares_links(self) -> bool:
        """Whether it is told when flows are complete, and does not see it."""
        return self._links is not None

    def wait_for(self, flow: int) -> int:
        """Wait until a flow is complete on the shared links; returns when it was."""
        assert self._links is not None, "whoever waits for a flow has links"
        return self._links.wait(flow, partial(wait_until, stop=self._stop))

    def go_on_until(self, at_ns: int) -> None:
        """The action under way is not over before a time: it waits for others."""
        self.free_ns = max(self.free_ns, at_ns)
        wait_until(at_ns, self._stop)

    def send(self, took_ns: int) -> int:
        """What was just made starts on its way; returns when it is there, if nothing disturbs it."""
        arrives = self.free_ns + took_ns
        if self._blocks:
            self._sending_ns = max(self._sending_ns, arrives)
        return arrives


# ---- who waits for what ----


@dataclass(frozen=True)
class Waits:
    """How long each action of a program is waited for, on a clock that is ``scale`` times as slow."""

    program: Program
    ns: Int64s  # [rows] of a slot's first row all of it; of a SEND its transfer, of a REDUCE_GRAD the reduction
    transfer_model: TransferModel
    scale: float
    flows: FlowTable | None  # on shared links: transfers, reductions and exchanges, which no computation here includes

    @classmethod
    def of(cls, program: Program, costs: Costs, scale: float, lanes: Sequence[int] | None = None) -> Waits:
        """``lanes``: [ranks] the devices of each mesh; by default one stands for all of them."""
        seconds, flows = slot_seconds(program, costs.seconds), None
        if costs.network is not None:
            flows = FlowTable.from_program(program, costs.seconds, costs.network, lanes or [1] * program.ranks)
            slots = program.is_compute & ~program.fused
            seconds[slots] = computing_seconds(program, costs.seconds, costs.network)[slots]
        ns = np.rint(seconds * (scale * 1e9)).astype(np.int64)
        return cls(program, ns, costs.transfer_model, scale, flows)

    def exchanges(self, row: int) -> range:
        """The flows of the exchanges inside a computation, between which it computes in equal parts."""
        return self.flows.flows_of_row(row) if self.flows is not None and self.program.is_compute[row] else range(0)

    def sent_by(self, row: int) -> Sequence[int]:
        """The flows of what a slot sends."""
        return self.flows.made.get(row, ()) if self.flows is not None else ()

    def flow(self, row: int) -> int:
        """The flow of a SEND or REDUCE_GRAD; -1 where it shares nothing."""
        return -1 if self.flows is None else int(self.flows.first[row])

    def of_rank(self, rank: int) -> list[int]:
        """[rows of the rank]"""
        found: list[int] = self.ns[self.program.rows(rank)].tolist()
        return found


def note_starts(start: Int64s, links: LiveLinks, waits: Waits, rows: NDArray[np.intp], first: int = 0) -> None:
    """Write down when the messages of some rows set out, once all are there: it may be that others went first.

    ``start``: [rows from ``first`` on]
    """
    for row in rows.tolist():
        if (flow := waits.flow(row)) >= 0:
            start[row - first] = links.sent(flow)
