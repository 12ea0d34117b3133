"""What a program has wrong, as problems of the design that was drawn: at its cell, with meshes by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from meshwave.engine.document import Design
from meshwave.engine.findings import Problem
from meshwave.engine.program.action import Action, Op, parse_action, parse_cells

Cell = tuple[int, int]
"""The mesh whose order it stands in, and where."""

_IDLE = re.compile(r"rank (\d+) computes nothing")


def as_problems(design: Design, faults: Sequence[str]) -> list[Problem]:
    """Each sentence of :mod:`meshwave.engine.program.verification` at the cell that it is about."""
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


_MESSAGE_OR_COMPUTATION = re.compile(r"\b\d+(?:SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)\d+(?:(?:TO|FROM)\d+)?\b")


def by_mesh_names(words: str, meshes: Sequence[str]) -> str:
    """``mesh C waits for ever at 2B0`` for ``rank 2 waits ...``: a program knows ranks, a person meshes."""

    def name(number: re.Match[str]) -> str:
        return meshes[int(number[0])] if int(number[0]) < len(meshes) else number[0]

    def named(found: re.Match[str]) -> str:
        return f"mesh{'es' if found[1] else ''} {re.sub(r'[0-9]+', name, found[2])}"

    return re.sub(r"\brank(s?) (\d+(?:(?:, | and )\d+)*)\b", named, words)


def actions_in(words: str) -> Iterator[Action]:
    """The computations and messages that a sentence names, in its order."""
    return (parse_action(match[0]) for match in _MESSAGE_OR_COMPUTATION.finditer(words))
