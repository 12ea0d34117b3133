"""The timeline of an order with a deadlock has what runs before it, and all other computations in their order."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.blocked_order import simulate_until_deadlock
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.simulation import simulate
from tests.engine.program.test_deadlock_repair import scrambled_programs

# rank 1 runs the backward of microbatch 0 before its forward of microbatch 1, which rank 0 needs first
DEADLOCK = parse_program([["0F0", "0B1", "0F1", "0B0"], ["1F0", "1B0", "1F1", "1B1"]])


def test_blocks_behind_a_deadlock_are_blocked_and_follow_without_gaps() -> None:
    program = add_transfers(DEADLOCK)
    found = simulate_until_deadlock(program, np.where(program.is_compute, 1.0, 0.0), ("A", "B"))
    timeline = found.timeline
    own = [
        (str(timeline.action(span)), timeline.start[span], bool(found.is_blocked[span]))
        for span in np.flatnonzero(timeline.is_compute & (timeline.rank == 0))
    ]

    assert own == [("0F0", 0, False), ("0B1", 1, True), ("0F1", 2, True), ("0B0", 3, True)]
    assert [str(timeline.action(span)) for span in np.flatnonzero(timeline.is_transfer)] == ["0SEND_F0", "1SEND_B0"]


@given(order=scrambled_programs())
def test_what_runs_has_its_times_and_every_computation_is_drawn_in_its_order(order: Program) -> None:
    program = add_transfers(order)
    seconds = 1.0 + (np.arange(len(program)) % 7)
    found = simulate_until_deadlock(program, seconds, tuple("ABC"))
    timeline = found.timeline

    work = np.flatnonzero(timeline.is_compute)
    for rank in range(order.ranks):
        own = work[timeline.rank[work] == rank]
        rows = [order.row(row)[:3] for row in range(len(order)) if order.rank[row] == rank]
        by_time = own[np.lexsort((own, timeline.start[own]))]
        assert [timeline.action(span)[:3] for span in by_time] == rows
        slots = own[~timeline.fused[own]]
        assert (timeline.start[slots[1:]] >= timeline.end[slots[:-1]] - 1e-9).all()
    assert found.is_blocked.any() == bool(len(program.graph.stuck))
    if not found.is_blocked.any():
        whole = simulate(program, seconds)
        assert timeline.start.tolist() == whole.start.tolist()
        assert timeline.cause.tolist() == whole.cause.tolist()
