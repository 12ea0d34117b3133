"""Deadlocks: the shortest cycle of ranks that wait for each other, and the change that opens it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op, format_cells
from meshwave.engine.program.program import Program


class _RowWait(NamedTuple):
    """A rank in a deadlock."""

    rank: int
    at: int  # the row of its next action
    needs: int  # a row that has to run before that one, and cannot


class Wait(NamedTuple):
    """A rank in a deadlock: its next action, and the action that must run first."""

    rank: int
    at: Action
    needs: Action  # of this rank, or of the next one of the cycle


def deadlock_cycle(program: Program) -> list[Wait]:
    """Return the shortest cycle of ranks that wait for each other; empty if there is none.

    Each rank needs an action that the next rank runs only after its own next action.
    """
    return [Wait(wait.rank, program.row(wait.at), program.row(wait.needs)) for wait in _shortest_cycle(program)]


def deadlock_problems(program: Program) -> list[Problem]:
    """Return the shortest cycle as a problem, with the change that opens it; empty without a deadlock."""
    cycle = _shortest_cycle(program)
    return [Problem("", "deadlock", _params(program, cycle))] if cycle else []


def _params(program: Program, cycle: list[_RowWait]) -> dict[str, Any]:
    def cell(row: int) -> str:
        actions = [program.row(each) for each in range(row, row + 1 + program.next_is_fused[row])]
        return format_cells([actions[0]._replace(fused=0), *actions[1:]])[0]

    first, last = cycle[0], cycle[-1]
    params: dict[str, Any] = {
        "action": str(program.row(first.at)),
        "cycle": [{"rank": wait.rank, "at": cell(wait.at), "needs": cell(wait.needs)} for wait in cycle],
    }
    for row in (first.at, last.needs):
        if program.next_is_fused[row]:
            return {**params, "split": cell(row)}
    return {**params, "move": cell(first.at), "after": cell(last.needs)}


def _shortest_cycle(program: Program) -> list[_RowWait]:
    waits = _waits(program)
    cycles = [cycle for rank in waits if (cycle := _shortest_cycle_from(program, waits, rank))]
    return _start_at_change(program, min(cycles, key=len)) if cycles else []


def _waits(program: Program) -> dict[int, list[_RowWait]]:
    """Return, for each rank that is stuck, its next action with each that this one needs."""
    graph = program.graph
    stuck = np.zeros(len(program), np.bool_)
    stuck[graph.stuck] = True
    rows = np.flatnonzero(stuck & program.is_compute)
    ranks, first = np.unique(program.rank[rows], return_index=True)
    is_head = np.zeros(len(program), np.bool_)
    is_head[rows[first]] = True
    waits: dict[int, list[_RowWait]] = {rank: [] for rank in ranks.tolist()}
    source, target = graph.waits
    blocking = stuck[source] & is_head[target]  # actions before a head on its rank have run
    for needed, row in zip(source[blocking].tolist(), target[blocking].tolist(), strict=True):
        rank = int(program.rank[row])
        waits[rank].append(_RowWait(rank, row, needed))
    return waits


def _shortest_cycle_from(program: Program, waits: dict[int, list[_RowWait]], start: int) -> list[_RowWait]:
    """Return the shortest cycle through a rank; empty if there is none."""
    paths = deque([[wait] for wait in waits[start]])
    seen = set()
    while paths:
        path = paths.popleft()
        rank = int(program.rank[path[-1].needs])
        if rank == start:
            return path
        if rank not in seen:
            seen.add(rank)
            paths.extend([*path, wait] for wait in waits[rank])
    return []


def _start_at_change(program: Program, cycle: list[_RowWait]) -> list[_RowWait]:
    """Start the cycle at the rank whose change opens it.

    That is a rank with a slot of two, which is to be split. Otherwise it is a rank that can run the action needed by
    the previous rank before its own next action. Such a rank exists: every action comes later in the step than those it
    needs, so that not every rank of the cycle waits at an action earlier than the one needed of it. Each such move lets
    an earlier action go first, so that repeating it ends with a sound program.
    """
    for first, wait in enumerate(cycle):
        if program.next_is_fused[wait.at] or program.next_is_fused[cycle[first - 1].needs]:
            return cycle[first:] + cycle[:first]
    for first, wait in enumerate(cycle):
        if _depth(program, cycle[first - 1].needs) < _depth(program, wait.at):
            return cycle[first:] + cycle[:first]
    raise AssertionError("what a computation needs comes before it")


def _depth(program: Program, row: int) -> tuple[int, int]:
    """Return how late in the step an action is: stages up, stages down, then microbatches; inputs come earlier."""
    op, stage, mb, *_ = program.row(row)
    last = 2 * program.stages
    return {Op.F: stage, Op.W: last}.get(op, last - 1 - stage), mb
