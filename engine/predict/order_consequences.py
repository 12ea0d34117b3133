"""Orders drawn by hand: move computations, see what follows, repeat a pattern, tell what differs.

Everything works on the computations of a program alone, as :func:`meshwave.engine.lowering.lower.order` gives them.
A *slot* is one computation, or a forward and a backward that overlap; it moves as one. Nothing is
changed in place, and no order is refused for waiting for ever: :func:`simulate_order` tells, and
:func:`meshwave.engine.program.deadlock_repair.repair` mends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwave.engine.costs import Costs, estimate, peak_memory
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.lowering.lower import with_messages
from meshwave.engine.program.deadlock import Standstill, ring
from meshwave.engine.program.order_edits import Floats, _starts
from meshwave.engine.program.program import Program
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.program.verification import complete, verify

# ---- what follows ----


@dataclass(frozen=True, eq=False)
class OrderOutcome:
    """An order of computations and what becomes of it."""

    order: Program  # computations alone
    program: Program | None  # with transfers and updates; None where computations are missing
    costs: Costs | None
    timeline: Timeline | None  # None where the order cannot run
    faults: list[str]  # why it cannot, in sentences

    @cached_property
    def ring(self) -> list[Standstill]:
        """The ranks that wait for each other for ever, and at what."""
        return ring(self.program) if self.program is not None and self.timeline is None else []

    @cached_property
    def peak_bytes(self) -> Floats | None:
        """``[ranks]`` the most that a device of each holds; None where the order cannot run."""
        if self.timeline is None or self.program is None or self.costs is None:
            return None
        return peak_memory(self.program, self.costs).total_bytes


def simulate_order(design: Design, order: Program, known: Sequence[str] = ()) -> OrderOutcome:
    """Simulate an order of computations on the meshes and costs of a design, or say why it cannot run.

    Args:
        known: why it cannot, where somebody has found out already; of a long order that takes a while.

    Raises:
        InputError: the cost model cannot price the design.
    """
    if faults := complete(order, design.pipe.microbatches):
        return OrderOutcome(order, None, None, None, faults)
    program = with_messages(order, design)
    if len(program.graph.stuck):
        return OrderOutcome(order, program, None, None, list(known) or verify(program))
    costs = estimate(design, program)
    names = tuple(mesh.name for mesh in design.meshes)
    timeline = costs.play(program, meshes=names)
    return OrderOutcome(order, program, costs, timeline, [])


@dataclass(frozen=True, eq=False)
class Consequences:
    """What another order changes; seconds, or units where the costs are in units."""

    delay: Floats  # [spans of the timeline before] how much later each computation starts, 0 for others
    makespan: tuple[float, float]  # before and after
    bubble_ratio: tuple[float, float]
    peak_bytes: tuple[Floats, Floats]  # [ranks] each

    @property
    def later(self) -> int:
        """How many computations start later."""
        return int((self.delay > self._same).sum())

    @property
    def earlier(self) -> int:
        return int((self.delay < -self._same).sum())

    @property
    def _same(self) -> float:
        """Starts that differ by rounding alone are the same."""
        return 1e-9 * max(self.makespan)


def find_consequences(before: OrderOutcome, after: OrderOutcome) -> Consequences:
    """What becomes of a timeline where another order of the same stages can run.

    Raises:
        InputError: one of the two cannot run.
    """
    was, now = before.timeline, after.timeline
    if was is None or now is None or before.peak_bytes is None or after.peak_bytes is None:
        raise InputError((before.faults or after.faults)[0])
    own = np.flatnonzero(was.is_compute)
    starts = _starts(now, after.order)[was.op[own], was.stage[own], was.microbatch[own]]
    delay = np.zeros(len(was))
    delay[own] = np.nan_to_num(starts - was.start[own])  # a backward that was split or joined has no other
    return Consequences(
        delay=delay,
        makespan=(was.makespan, now.makespan),
        bubble_ratio=(was.bubble_ratio, now.bubble_ratio),
        peak_bytes=(before.peak_bytes, after.peak_bytes),
    )
