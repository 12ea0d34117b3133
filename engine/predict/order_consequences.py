"""Consequences of a hand-drawn order: its simulation, and the differences from another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwave.engine.costs import Costs, estimate, peak_memory
from meshwave.engine.document import Design
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.lowering.lower import add_messages, order_computations
from meshwave.engine.program.blocked_order import BlockedOrder, simulate_until_deadlock
from meshwave.engine.program.deadlock import Wait, deadlock_cycle
from meshwave.engine.program.order_edits import Floats, computation_starts
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.program.verification import computation_problems, verify


@dataclass(frozen=True, eq=False)
class OrderOutcome:
    """Order of computations with its simulation."""

    order: Program  # computations only
    program: Program | None  # with transfers and updates; None if computations are missing
    costs: Costs | None
    timeline: Timeline | None  # None if the order cannot run
    problems: list[Problem]  # reasons why the order cannot run

    @cached_property
    def cycle(self) -> list[Wait]:
        """Shortest cycle of ranks that wait for each other; empty if there is no deadlock."""
        return deadlock_cycle(self.program) if self.program is not None and self.timeline is None else []

    @cached_property
    def peak_bytes(self) -> Floats | None:
        """Peak memory of a device of each rank in bytes, ``[ranks]``; None if the order cannot run."""
        if self.timeline is None or self.program is None or self.costs is None:
            return None
        return peak_memory(self.program, self.costs).total_bytes


def simulate_order(design: Design, order: Program, known: Sequence[Problem] = ()) -> OrderOutcome:
    """Simulate an order of computations on the meshes and costs of a design, or find the reason why it cannot run.

    Args:
        design: the design that provides meshes and costs.
        order: the computations.
        known: known reasons why it cannot run; they save the time to verify a long order.

    Raises:
        InputError: the cost model cannot price the design.
    """
    if problems := computation_problems(order, design.pipe.microbatches):
        return OrderOutcome(order, None, None, None, problems)
    program = add_messages(order, design)
    if len(program.graph.stuck):
        return OrderOutcome(order, program, None, None, list(known) or verify(program))
    costs = estimate(design, program)
    names = tuple(mesh.name for mesh in design.meshes)
    timeline = costs.simulate(program, meshes=names)
    return OrderOutcome(order, program, costs, timeline, [])


def simulate_blocked_order(design: Design) -> BlockedOrder:
    """Return the timeline of the hand-drawn order of a design whose only problem is a deadlock.

    Raises:
        InputError: the cost model cannot price the design.
    """
    program = add_messages(order_computations(design), design)
    names = tuple(mesh.name for mesh in design.meshes)
    return simulate_until_deadlock(program, estimate(design, program).seconds, names)


@dataclass(frozen=True, eq=False)
class Consequences:
    """Changes caused by another order, in seconds or in units of cost."""

    delay: Floats  # [spans of the timeline before] delay of the start of each computation; 0 for other spans
    makespan: tuple[float, float]  # step time before and after
    bubble_ratio: tuple[float, float]
    peak_bytes: tuple[Floats, Floats]  # [ranks] before and after

    @property
    def later(self) -> int:
        """Number of computations that start later."""
        return int((self.delay > self._tolerance).sum())

    @property
    def earlier(self) -> int:
        """Number of computations that start earlier."""
        return int((self.delay < -self._tolerance).sum())

    @property
    def _tolerance(self) -> float:
        """Difference of start times up to which they count as equal."""
        return 1e-9 * max(self.makespan)


def find_consequences(before: OrderOutcome, after: OrderOutcome) -> Consequences:
    """Compare the simulations of two orders of the same stages.

    Raises:
        DesignError: one of the orders cannot run.
    """
    was, now = before.timeline, after.timeline
    if was is None or now is None or before.peak_bytes is None or after.peak_bytes is None:
        raise DesignError((before.problems or after.problems)[:1])
    own = np.flatnonzero(was.is_compute)
    starts = computation_starts(now, after.order)[was.op[own], was.stage[own], was.microbatch[own]]
    delay = np.zeros(len(was))
    delay[own] = np.nan_to_num(starts - was.start[own])  # a backward that was split or joined has no counterpart
    return Consequences(
        delay=delay,
        makespan=(was.makespan, now.makespan),
        bubble_ratio=(was.bubble_ratio, now.bubble_ratio),
        peak_bytes=(before.peak_bytes, after.peak_bytes),
    )
