"""Timeline of an order with a deadlock: what runs before it, and after it the blocked actions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwave.engine.program.program import Program
from meshwave.engine.program.simulation import simulate, slot_sums
from meshwave.engine.program.timeline import Bools, Floats, Timeline


class BlockedOrder(NamedTuple):
    """Timeline of an order that cannot run, and its actions that never run."""

    timeline: Timeline
    is_blocked: Bools  # [spans]


def simulate_until_deadlock(program: Program, seconds: Floats, meshes: tuple[str, ...]) -> BlockedOrder:
    """Simulate a program until its deadlock.

    The blocked computations of each rank follow without gaps in their order, so that the order can be seen; their
    transfers and collectives are left out.

    Args:
        program: a program that is valid except for a deadlock.
        seconds: ``[rows]`` seconds of each row, as for :func:`meshwave.engine.program.simulation.simulate`.
        meshes: name of the mesh of each rank.
    """
    run = simulate(program, seconds, meshes=meshes)
    is_blocked = ~_finished_rows(program)[program.spans]
    took = slot_sums(program, seconds)[program.slot[program.spans]]
    start, end = run.start.copy(), run.end.copy()
    for rank in range(run.ranks):
        own = run.is_work & (run.rank == rank)
        waiting = np.flatnonzero(own & is_blocked)
        free = end[own & ~is_blocked].max(initial=0.0)
        end[waiting] = free + np.cumsum(np.where(run.fused[waiting], 0.0, took[waiting]))
        start[waiting] = end[waiting] - took[waiting]
    kept = np.flatnonzero(run.is_work | ~is_blocked)
    place = np.full(len(run) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    columns = {
        name: getattr(run, name)[kept] for name in ("rank", "peer", "op", "stage", "microbatch", "fused", "other")
    }
    cause = np.where(is_blocked, -1, place[run.cause])[kept]
    return BlockedOrder(replace(run, **columns, start=start[kept], end=end[kept], cause=cause), is_blocked[kept])


def _finished_rows(program: Program) -> Bools:
    """Return whether each row runs, ``[rows]``; both computations of a slot run, or neither."""
    finished = np.zeros(len(program), np.bool_)
    finished[program.graph.nodes] = True
    finished = finished[program.slot]
    sends, makers = program.send_rows
    finished[sends] = finished[makers]
    return finished
