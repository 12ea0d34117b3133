"""What a program has wrong, as problems of the design that was drawn: at its cell, with meshes by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from engine.design import Design
from engine.errors import Problem
from engine.program.action import Action, Op, parse_cells
from engine.program.words import actions_in, by_mesh_names

Cell = tuple[int, int]
"""The mesh whose order it stands in, and where."""

_IDLE = re.compile(r"rank (\d+) computes nothing")


def as_problems(design: Design, faults: Sequence[str]) -> list[Problem]:
    """Each sentence of :mod:`engine.program.verify` at the cell that it is about."""
    orders = design.pipeline.actions or ()
    cells = _cells_of(orders, {action for fault in faults for action in _about(fault)})
    meshes = [mesh.name for mesh in design.meshes]
    return [Problem(_where(cells, fault, len(orders)), "program", by_mesh_names(fault, meshes)) for fault in faults]


def _about(fault: str) -> list[Action]:
    """The first action that a sentence names, and the others of its stage and microbatch: where they stand, it belongs."""
    first = next(actions_in(fault), None)
    return [] if first is None else [first, *(first._replace(op=op) for op in (Op.F, Op.B, Op.I, Op.W))]


def _cells_of(orders: Sequence[tuple[str, ...]], named: set[Action]) -> dict[Action, list[Cell]]:
    """Where a few actions stand; an order can have as many cells as a step has computations."""
    cells: dict[Action, list[Cell]] = defaultdict(list)
    either = {action._replace(fused=fused) for action in named for fused in (0, 1)}
    for rank, order in enumerate(orders):
        actions = parse_cells(order)
        for place in [place for place, action in enumerate(actions) if action in either]:
            number = place - sum(action.fused for action in actions[: place + 1])  # two that overlap are one cell
            cells[actions[place]._replace(fused=0)].append((rank, number))
    return cells


def _where(cells: dict[Action, list[Cell]], fault: str, orders: int) -> str:
    """The cell of the first action that the sentence names; of one that is missing, the order that it belongs to."""
    idle = _IDLE.match(fault)
    if idle and int(idle[1]) < orders:
        return f"pipeline.actions[{idle[1]}]"
    about = _about(fault)
    if not about:
        return "pipeline.actions"
    first, *kin = about
    if first in cells:
        rank, number = cells[first][-1]  # of those that stand twice, the one too many
        return f"pipeline.actions[{rank}][{number}]"
    home = next((f"[{cells[action][0][0]}]" for action in kin if action in cells), "")
    return f"pipeline.actions{home}"
