"""Prove that a program is complete, that every message meets its other end, and that it ends."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import Program

# ---- deadlock ----


class _Wait(NamedTuple):
    """A rank that stands still for ever."""

    rank: int
    at: int  # the row that it stands at
    needs: int  # a row that has to run before that one, and cannot


class Standstill(NamedTuple):
    """A rank that waits for ever: the action that it stands at, and one that has to run before."""

    rank: int
    at: Action
    needs: Action  # of this rank, or of the next one of the ring


def ring(program: Program) -> list[Standstill]:
    """The shortest ring of ranks that wait for each other, as :func:`verify` tells it; empty where none is.

    Each rank needs what the next one runs only after the action that it stands at itself.
    """
    return [Standstill(wait.rank, program.row(wait.at), program.row(wait.needs)) for wait in _ring(program)]


def _deadlock(program: Program) -> list[str]:
    """The shortest ring of ranks that wait for each other, and the move that opens it."""
    found = _ring(program)
    return [_told(program, found)] if found else []


def _ring(program: Program) -> list[_Wait]:
    waits = _waits(program)
    rings = [ring for rank in waits if (ring := _shortest_ring(program, waits, rank))]
    return _from_the_move(program, min(rings, key=len)) if rings else []


def _waits(program: Program) -> dict[int, list[_Wait]]:
    """For each rank that stands still, the action it stands at and each that this one needs."""
    graph = program.graph
    stuck = np.zeros(len(program), np.bool_)
    stuck[graph.stuck] = True
    rows = np.flatnonzero(stuck & program.is_compute)
    ranks, first = np.unique(program.rank[rows], return_index=True)
    is_head = np.zeros(len(program), np.bool_)
    is_head[rows[first]] = True
    waits: dict[int, list[_Wait]] = {rank: [] for rank in ranks.tolist()}
    source, target = graph.waits
    blocking = stuck[source] & is_head[target]  # what came before a head on its rank has run
    for needed, row in zip(source[blocking].tolist(), target[blocking].tolist(), strict=True):
        rank = int(program.rank[row])
        waits[rank].append(_Wait(rank, row, needed))
    return waits


def _shortest_ring(program: Program, waits: dict[int, list[_Wait]], start: int) -> list[_Wait]:
    """From ``start`` over the ranks that each one waits for back to it; empty if no way leads back."""
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


def _from_the_move(program: Program, ring: list[_Wait]) -> list[_Wait]:
    """The ring told from a rank that can run what the others wait for before what it stands at; if
    slots of two are in it, from one of those, which is to be parted.

    Of single actions there always is one: every action comes later in the step than those it needs, so that round the
    ring not every rank can stand at something earlier than what is needed of it. As each such move
    lets an earlier action go first, taking the advice again and again ends with a sound program.
    """
    for first, wait in enumerate(ring):
        if program.doubled[wait.at] or program.doubled[ring[first - 1].needs]:
            return ring[first:] + ring[:first]
    for first, wait in enumerate(ring):
        if _depth(program, ring[first - 1].needs) < _depth(program, wait.at):
            return ring[first:] + ring[:first]
    raise AssertionError("what a computation needs comes before it")


def _depth(program: Program, row: int) -> tuple[int, int]:
    """How far down the step an action is: stages up, stages down, then microbatches; inputs come earlier."""
    op, stage, mb, *_ = program.row(row)
    last = 2 * program.stages
    return {Op.F: stage, Op.W: last}.get(op, last - 1 - stage), mb


def _told(program: Program, ring: list[_Wait]) -> str:
    def name(row: int) -> str:
        return " with ".join(str(program.row(each)) for each in range(row, row + 1 + program.doubled[row]))

    first, last = ring[0], ring[-1]
    told = f"rank {first.rank} waits for ever at {name(first.at)}: it needs {name(first.needs)} first"
    for before, wait in pairwise(ring):
        if before.needs != wait.at:
            told += f", which rank {wait.rank} runs only after {name(wait.at)}"
        told += f", and that needs {name(wait.needs)}"
    if last.needs != first.at:
        told += f", which rank {first.rank} runs only after {name(first.at)}"
    for row in (first.at, last.needs):
        if program.doubled[row]:
            return f"{told}. Part {name(row)} into two"
    return f"{told}. Move {name(first.at)} after {name(last.needs)}"
