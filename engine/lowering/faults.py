"""What a program has wrong, as problems of the design that was drawn: at its cell, with meshes by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from engine.design import Design
from engine.errors import Problem
from engine.program.action import Action, Op, parse_cell
from engine.program.words import actions_in, by_mesh_names

Cell = tuple[int, int]
"""The mesh whose order it stands in, and where."""

_IDLE = re.compile(r"rank (\d+) computes nothing")


def as_problems(design: Design, faults: Sequence[str]) -> list[Problem]:
    """Each sentence of :mod:`engine.program.verify` at the cell that it is about."""
    orders = design.pipeline.actions or ()
    cells: dict[Action, list[Cell]] = defaultdict(list)
    for rank, order in enumerate(orders):
        for number, cell in enumerate(order):
            for action in parse_cell(cell):
                cells[action._replace(fused=0)].append((rank, number))
    meshes = [mesh.name for mesh in design.meshes]
    return [Problem(_where(cells, fault, len(orders)), "program", by_mesh_names(fault, meshes)) for fault in faults]


def _where(cells: dict[Action, list[Cell]], fault: str, orders: int) -> str:
    """The cell of the first action that the sentence names; of one that is missing, the order that it belongs to."""
    idle = _IDLE.match(fault)
    if idle and int(idle[1]) < orders:
        return f"pipeline.actions[{idle[1]}]"
    first = next(actions_in(fault), None)
    if first is None:
        return "pipeline.actions"
    if first in cells:
        rank, number = cells[first][-1]  # of those that stand twice, the one too many
        return f"pipeline.actions[{rank}][{number}]"
    kin = (first._replace(op=op) for op in (Op.F, Op.B, Op.I, Op.W))
    home = next((f"[{cells[action][0][0]}]" for action in kin if action in cells), "")
    return f"pipeline.actions{home}"
