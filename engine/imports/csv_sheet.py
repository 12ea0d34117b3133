"""CSV file of torch.distributed.pipelining as a sheet of cells, and the problems of its cells."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice, product
from string import ascii_uppercase
from typing import Any, NamedTuple

from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.program.action import RECEIVES, SENDS, Action, Op, format_cells, parse_cell
from meshwave.engine.progress import report_progress

MOST_CELLS = 1_500_000
"""Maximum number of cells, which are read in half a minute and 1.5 GB."""
READ_SHARE = 0.4
"""Fraction of the duration of an import that reading takes."""
MOST_LISTED = 8
"""Maximum number of problems that are listed; the others are counted."""
MOST_CELLS_NAMED = 8  # maximum characters of one action
EXCERPT_WIDTH = 68  # characters of a row that are shown around a cell
MOST_CANDIDATES = 4_000  # maximum number of actions compared with an unknown one, to suggest the most similar

COMPUTATIONS = (Op.F, Op.B, Op.I, Op.W)
MESSAGES = (*SENDS, *RECEIVES)
_SLOT = re.compile(r"\([^()]*\)")

Place = tuple[int, int]
"""Row and column of a cell, counted from 0."""


class CellProblem(NamedTuple):
    """Problem of the file, and its cell, or None if it concerns no cell."""

    place: Place | None
    problem: Problem


class Sheet:
    """Rows of cells, and the actions of the cells that can be read."""

    def __init__(self, text: str) -> None:
        count = sum(map(text.count, ",\t;\n"))
        if count > MOST_CELLS:
            raise DesignError([Problem("", "csv_size", {"cells": count, "most": MOST_CELLS})])
        self.rows = _split_cells(text.removeprefix("\ufeff"))
        self.orders: list[list[Action]] = [[] for _ in self.rows]
        self.places: dict[Action, list[Place]] = defaultdict(list)  # cells of each action, without its slot
        self.problems: list[CellProblem] = []
        self.empty: list[Place] = []  # number of empty cells between others
        for row, cells in enumerate(self.rows):
            report_progress(READ_SHARE * row / len(self.rows), "reading cells")
            for column, cell in enumerate(cells):
                self._read_cell(row, column, cell)
        if not self.rows:
            self.problems.append(CellProblem(None, Problem("", "csv_empty", {})))

    def _read_cell(self, row: int, column: int, cell: str) -> None:
        if not cell:
            self.empty.append((row, column))
            return
        try:
            actions = parse_cell(cell)
        except Refusal as error:
            self.problems.append(CellProblem((row, column), error.problem))
            return
        for action in actions:
            self.orders[row].append(action)
            self.places[action._replace(fused=0)].append((row, column))

    @property
    def has_messages(self) -> bool:
        """True if the file contains sends and receives."""
        return any(action.op in MESSAGES for action in self.places)

    def first_cells(self, part: str) -> dict[int, Place]:
        """Return the first cell of each ``stage``, or of each ``microbatch``, by its number."""
        found: dict[int, Place] = {}
        for action, places in self.places.items():
            if action.op < Op.REDUCE_GRAD:
                number = getattr(action, part)
                found[number] = min(found.get(number, places[0]), places[0])
        return found

    def raise_problems(self, found: Iterable[CellProblem]) -> None:
        """Raise an exception with the first problems at their cells, if there are any.

        Raises:
            DesignError: there are problems; contains the first ones and the number of the others.
        """
        found = list(found)
        if not found:
            return
        problems = [self._locate_at_cell(*each) for each in found[:MOST_LISTED]]
        if len(found) > MOST_LISTED:
            problems.append(Problem("", "unlisted_problems", {"count": len(found) - MOST_LISTED}))
        raise DesignError(problems)

    def _locate_at_cell(self, place: Place | None, problem: Problem) -> Problem:
        if place is None:
            return problem
        row, column = place
        params = dict(problem.params)
        if problem.code == "unknown_action" and (near := self._similar_action(row, self.rows[row][column].upper())):
            params["suggestion"] = near
        where = f"row {row + 1}, column {column + 1} ({cell_name(place)})"
        return problem.replace(where=where, params={**params, "excerpt": self._excerpt(row, column)})

    def _similar_action(self, row: int, cell: str) -> str | None:
        """Return the action most similar to a cell among those that no cell contains; None if none is similar."""
        try:
            return format_cells(parse_cell(cell))[0]
        except Refusal:
            pass
        stages = sorted({action.stage for action in self.orders[row] if action.stage >= 0}) or [0]
        microbatches = sorted(self.first_cells("microbatch")) or [0]
        used = {action.op for action in self.places} | {Op.F, Op.B}
        ops = [op for op in (*COMPUTATIONS, *MESSAGES) if op in used]
        actions = (Action(op, stage, microbatch) for microbatch, stage, op in product(microbatches, stages, ops))
        free = (str(action) for action in actions if action not in self.places)
        return next(iter(get_close_matches(cell, islice(free, MOST_CANDIDATES), n=1, cutoff=0.5)), None)

    def _excerpt(self, row: int, column: int) -> str:
        """Return the row with an arrow under the cell, as two lines of text."""
        cells = ["".join(mark if mark.isprintable() else "\ufffd" for mark in cell) for cell in self.rows[row]]
        start = len(",".join(cells[:column])) + bool(column)
        line, size = ",".join(cells), max(len(cells[column]), 1)
        left = max(0, min(start - EXCERPT_WIDTH // 2, len(line) - EXCERPT_WIDTH))
        before, after = "…" if left else "", "…" if left + EXCERPT_WIDTH < len(line) else ""
        arrow = f"{' ' * (len(before) + start - left)}{'^' * min(size, EXCERPT_WIDTH)}"
        return f"    {before}{line[left : left + EXCERPT_WIDTH]}{after}\n    {arrow}"

    def locate_problem(self, problem: Problem) -> CellProblem:
        """Return a problem of the program at a cell of the file, with the cells of the actions that it names.

        The cell is that of the first named action that is in the file, or else of another action of the same stage and
        microbatch.
        """
        actions = [action for text in _nested_strings(problem.params) for action in _actions_of(text)]
        kin = [Action(op, action.stage, action.microbatch) for action in actions for op in COMPUTATIONS]
        place = next((self.places[action][-1] for action in (*actions, *kin) if action in self.places), None)
        cells = {str(action): _cell_names(self.places[action]) for action in actions if action in self.places}
        return CellProblem(place, problem.replace(params={**problem.params, "cells": cells}))


def _nested_strings(value: Any) -> Iterator[str]:
    """Yield the strings among the parameters of a problem."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for each in value.values() for text in _nested_strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _nested_strings(each))


def _actions_of(cell: str) -> tuple[Action, ...]:
    try:
        return tuple(action._replace(fused=0) for action in parse_cell(cell))
    except Refusal:
        return ()


def _split_cells(text: str) -> list[list[str]]:
    """Return the cells of each row, without empty rows at the end."""
    try:
        rows = [
            [cell.strip() for cell in row] for row in csv.reader(text.splitlines(), delimiter=_find_delimiter(text))
        ]
    except csv.Error as error:
        raise DesignError([Problem("", "csv_malformed", {"reason": str(error)})]) from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _find_delimiter(text: str) -> str:
    """Return the delimiter of a CSV text: the comma, or a tab or semicolon where the comma is the decimal mark."""
    return next((mark for mark in ",\t;" if mark in _SLOT.sub("", text)), ",")


def _cell_names(places: list[Place]) -> str:
    more = ", ..." if len(places) > MOST_CELLS_NAMED else ""
    return f"{', '.join(map(cell_name, places[:MOST_CELLS_NAMED]))}{more}"


def cell_name(place: Place) -> str:
    """Return the name of a cell in spreadsheets: the column in letters, then the row number."""
    row, column = place
    letters, left = "", column + 1
    while left:
        left, letter = divmod(left - 1, 26)
        letters = ascii_uppercase[letter] + letters
    return f"{letters}{row + 1}"
