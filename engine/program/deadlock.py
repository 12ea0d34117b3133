"""Deadlocks: the shortest cycle of ranks that wait for each other, and a change that breaks it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op, format_cells
from meshwave.engine.program.program import Program


class _RowWait(NamedTuple):
    """Rank in a deadlock: the row of its next action, and the row that must run first."""

    rank: int
    at: int  # row of its next action
    needs: int  # row that must run before it, but cannot


class Wait(NamedTuple):
    """Rank in a deadlock: its next action, and the action that must run first."""

    rank: int
    at: Action
    needs: Action  # action of this rank, or of the next rank of the cycle


def deadlock_cycle(program: Program) -> list[Wait]:
    """Return the shortest cycle of ranks that wait for each other; empty if there is none.

    Each rank needs an action that the next rank of the cycle runs only after its own next action.
    """
    return [Wait(wait.rank, program.row(wait.at), program.row(wait.needs)) for wait in _shortest_cycle(program)]


def deadlock_problems(program: Program) -> list[Problem]:
    """Return the shortest cycle as a problem, with a change that breaks it; empty without a deadlock."""
    cycle = _shortest_cycle(program)
    return [Problem("", "deadlock", _problem_params(program, cycle))] if cycle else []


def _problem_params(program: Program, cycle: list[_RowWait]) -> dict[str, Any]:
    def cell_text(row: int) -> str:
        actions = [program.row(each) for each in range(row, row + 1 + program.next_is_fused[row])]
        return format_cells([actions[0]._replace(fused=0), *actions[1:]])[0]

    first, last = cycle[0], cycle[-1]
    params: dict[str, Any] = {
        "action": str(program.row(first.at)),
        "cycle": [{"rank": wait.rank, "at": cell_text(wait.at), "needs": cell_text(wait.needs)} for wait in cycle],
    }
    for row in (first.at, last.needs):
        if program.next_is_fused[row]:
            return {**params, "split": cell_text(row)}
    return {**params, "move": cell_text(first.at), "after": cell_text(last.needs)}


def _shortest_cycle(program: Program) -> list[_RowWait]:
    waits = _find_waits(program)
    cycles = [cycle for rank in waits if (cycle := _shortest_cycle_from(program, waits, rank))]
    return _rotate_to_breakable_rank(program, min(cycles, key=len)) if cycles else []


def _find_waits(program: Program) -> dict[int, list[_RowWait]]:
    """Return, for each blocked rank, its next action with each action that must run first."""
    graph = program.graph
    stuck = np.zeros(len(program), np.bool_)
    stuck[graph.stuck] = True
    rows = np.flatnonzero(stuck & program.is_compute)
    ranks, first = np.unique(program.rank[rows], return_index=True)
    is_head = np.zeros(len(program), np.bool_)
    is_head[rows[first]] = True
    waits: dict[int, list[_RowWait]] = {rank: [] for rank in ranks.tolist()}
    source, target = graph.waits
    blocking = stuck[source] & is_head[target]  # actions before the next one of a rank have run
    for needed, row in zip(source[blocking].tolist(), target[blocking].tolist(), strict=True):
        rank = int(program.rank[row])
        waits[rank].append(_RowWait(rank, row, needed))
    return waits


def _shortest_cycle_from(program: Program, waits: dict[int, list[_RowWait]], start: int) -> list[_RowWait]:
    """Return the shortest cycle through rank ``start``; empty if there is none."""
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


def _rotate_to_breakable_rank(program: Program, cycle: list[_RowWait]) -> list[_RowWait]:
    """Return the cycle, rotated to start at the rank whose change breaks it.

    This is a rank with a shared slot, which is to be split. Otherwise it is a rank that can run the action needed by
    the previous rank before its own next action. Such a rank exists: every action comes later in the step than those
    that it needs, so not every rank of the cycle waits at an action earlier than the one that it has to provide. Each
    such move runs an earlier action first, so that repeated moves end with an order without deadlock.
    """
    for first, wait in enumerate(cycle):
        if program.next_is_fused[wait.at] or program.next_is_fused[cycle[first - 1].needs]:
            return cycle[first:] + cycle[:first]
    for first, wait in enumerate(cycle):
        if _depth_in_step(program, cycle[first - 1].needs) < _depth_in_step(program, wait.at):
            return cycle[first:] + cycle[:first]
    raise AssertionError("what a computation needs comes before it")


def _depth_in_step(program: Program, row: int) -> tuple[int, int]:
    """Return the position of an action in a step, as a sort key: stages up, stages down, then microbatches."""
    op, stage, mb, *_ = program.row(row)
    last = 2 * program.stages
    return {Op.F: stage, Op.W: last}.get(op, last - 1 - stage), mb
