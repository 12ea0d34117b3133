"""Conversion of problems of a program to problems of its design, with cells, mesh names, and fixes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.findings import Fix, Problem
from meshwave.engine.program.action import Action, Op, format_cells, parse_action, parse_cell, parse_cells
from meshwave.engine.program.deadlock_repair import repair
from meshwave.engine.program.program import Program, format_program

Cell = tuple[int, int]
"""Index of the mesh of a cell, and index of the cell in the order of that mesh."""
Orders = tuple[tuple[str, ...], ...]

MAX_REPAIRED_COMPUTATIONS = 4096
"""Maximum number of computations in an order for which a repair is offered as a fix, which takes half a second."""


def locate_problems(design: Design, problems: Sequence[Problem], order: Program) -> list[Problem]:
    """Return the problems of :mod:`meshwave.engine.program.verification`, located at their cells in the design.

    ``order`` is the design's order of computations.
    """
    orders: Orders = design.pipeline.actions or ()
    cells = _cells_of(orders, {each for problem in problems for each in _related_computations(problem)})
    names = [mesh.name for mesh in design.meshes]
    return [
        replace_ranks_by_meshes(problem, names).replace(
            where=_problem_path(cells, problem, len(orders)),
            fixes=_problem_fixes(design, orders, cells, problem, order),
        )
        for problem in problems
    ]


def replace_ranks_by_meshes(problem: Problem, meshes: Sequence[str]) -> Problem:
    """Return the problem with ranks replaced by the names of their meshes."""
    if not problem.params.keys() & _RANKS:
        return problem
    return problem.replace(params={**problem.params, "meshes": list(meshes)})


_RANKS = {"rank", "ranks", "cycle"}
"""Names of problem parameters whose values are ranks."""


# ---- places ----


def _related_computations(problem: Problem) -> list[Action]:
    """Return the action that a problem concerns, and the computations of the same stage and microbatch."""
    if "action" not in problem.params:
        return []
    subject = parse_action(problem.params["action"])
    return [subject, *(subject._replace(op=op) for op in (Op.F, Op.B, Op.I, Op.W))]


def _cells_of(orders: Orders, actions: set[Action]) -> dict[Action, list[Cell]]:
    """Return the cells of the given actions.

    Only these cells are searched, because an order can have as many cells as a step has computations.
    """
    cells: dict[Action, list[Cell]] = defaultdict(list)
    either = {action._replace(fused=fused) for action in actions for fused in (0, 1)}
    for rank, order in enumerate(orders):
        found = parse_cells(order)
        for place in [place for place, action in enumerate(found) if action in either]:
            number = place - sum(
                action.fused for action in found[: place + 1]
            )  # two overlapping computations are one cell
            cells[found[place]._replace(fused=0)].append((rank, number))
    return cells


def _problem_path(cells: dict[Action, list[Cell]], problem: Problem, orders: int) -> str:
    """Return the path of the last cell of the action that a problem concerns, or of its order if the cell is missing."""
    if problem.code == "idle_rank" and problem.params["rank"] < orders:
        return f"pipeline.actions[{problem.params['rank']}]"
    actions = _related_computations(problem)
    if not actions:
        return "pipeline.actions"
    subject, *kin = actions
    if subject in cells:
        rank, number = cells[subject][-1]  # the superfluous cell if an action occurs twice
        return f"pipeline.actions[{rank}][{number}]"
    home = next((f"[{cells[action][0][0]}]" for action in kin if action in cells), "")
    return f"pipeline.actions{home}"


# ---- fixes ----


def _problem_fixes(
    design: Design, orders: Orders, cells: dict[Action, list[Cell]], problem: Problem, order: Program
) -> Iterable[Fix]:
    """Return the edits of the orders that resolve a problem."""
    if problem.code == "deadlock":
        return [*_repair_fix(design, orders, order)]
    edit = _EDITS.get(problem.code)
    if edit is None or not orders:
        return []
    return [edit(orders, cells, problem.params)]


def _repair_fix(design: Design, orders: Orders, order: Program) -> Iterator[Fix]:
    if not orders or design.pipeline.placement is not None or len(order) > MAX_REPAIRED_COMPUTATIONS:
        return
    found = repair(order)
    changed = [
        (f"pipeline.actions[{rank}]", cells)
        for rank, cells in enumerate(format_program(found.order))
        if parse_cells(tuple(cells)) != parse_cells(orders[rank])
    ]
    yield Fix("repair_order", {"moved": [*map(str, found.moved)], "split": [*map(str, found.split)]}, tuple(changed))


def _remove_repetitions(orders: Orders, cells: dict[Action, list[Cell]], params: Mapping[str, Any]) -> Fix:
    action = parse_action(params["action"])
    return _removal_fix(orders, [(place, action) for place in cells[action][1:]])


def _remove_halves(orders: Orders, cells: dict[Action, list[Cell]], params: Mapping[str, Any]) -> Fix:
    backward = parse_action(params["action"])
    halves = [backward._replace(op=op) for op in (Op.I, Op.W)]
    return _removal_fix(orders, [(place, half) for half in halves for place in cells[half]])


def _removal_fix(orders: Orders, removed: Sequence[tuple[Cell, Action]]) -> Fix:
    """Return the fix that removes actions from their cells; in a shared slot, the other action stays."""

    def remove(action: Action, cell: str) -> list[str]:
        kept = [each._replace(fused=0) for each in parse_cell(cell)]
        return format_cells(each for each in kept if each != action)

    edits = {place: partial(remove, action) for place, action in removed}
    names = list(dict.fromkeys(str(action) for _, action in removed))
    return Fix("remove_actions", {"actions": names}, _cell_edits(orders, edits))


def _split_slot(orders: Orders, cells: dict[Action, list[Cell]], params: Mapping[str, Any]) -> Fix:
    def split(cell: str) -> list[str]:
        return format_cells(each._replace(fused=0) for each in parse_cell(cell))

    place = cells[parse_action(params["action"])][-1]
    return Fix("split_slot", {"cell": orders[place[0]][place[1]]}, _cell_edits(orders, {place: split}))


def _add_half(orders: Orders, cells: dict[Action, list[Cell]], params: Mapping[str, Any]) -> Fix:
    """Return the fix that adds the missing half of a backward next to the existing half, input gradient first."""
    missing = parse_action(params["action"])

    def add_half(cell: str) -> list[str]:
        return [cell, params["action"]] if missing.op == Op.W else [params["action"], cell]

    place = cells[parse_action(params["half"])][-1]
    return Fix("add_action", {"action": params["action"]}, _cell_edits(orders, {place: add_half}))


def _cell_edits(orders: Orders, edits: Mapping[Cell, Callable[[str], list[str]]]) -> tuple[tuple[str, Any], ...]:
    """Return the document edits that replace cells, one per mesh."""
    ranks = sorted({rank for rank, _ in edits})
    return tuple(
        (
            f"pipeline.actions[{rank}]",
            [
                new
                for number, cell in enumerate(orders[rank])
                for new in (edits[rank, number](cell) if (rank, number) in edits else [cell])
            ],
        )
        for rank in ranks
    )


_EDITS: dict[str, Callable[[Orders, dict[Action, list[Cell]], Any], Fix]] = {
    "repeated_action": _remove_repetitions,
    "backward_and_half": _remove_halves,
    "slot_of_one_microbatch": _split_slot,
    "missing_half": _add_half,
}
