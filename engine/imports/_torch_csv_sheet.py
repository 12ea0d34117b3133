"""Read a pipeline schedule from a CSV of torch.distributed.pipelining into a custom design.

A row is a rank, a cell an action. Both forms of torch are read: in ``compute_comms`` the messages are
checked against the computations and then left out, since the lowering adds its own. What is wrong is
said at its cell, as a spreadsheet names it.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from itertools import islice, product
from string import ascii_uppercase
from typing import NamedTuple

from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.program.action import Action, Op, format_cells, parse_cell
from meshwave.engine.progress import tell

MOST_CELLS = 1_500_000
"""Cells that are read: in half a minute and 1.5 GB."""
READ, CHECKED = 0.4, 0.9
"""The shares of an import that are done once the cells are read, and once they are checked."""
TOLD = 8
"""So many errors are told at once; the rest is counted."""
NAMED = 8  # cells of one action that are named at most
ROOM = 68  # letters of a line that are shown around a wrong cell
MOST_CANDIDATES = 4_000  # cells that are compared with a wrong one, to suggest the nearest

_SHARDING = re.compile(r"(\d{1,6})\s*(UNSHARD|RESHARD)", re.ASCII)
_ACTION = re.compile(r"\b\d+(?:SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)\d+\b")
_SLOT = re.compile(r"\([^()]*\)")
_RANK = re.compile(r"\brank (\d+)")
_COMPUTATIONS = (Op.F, Op.B, Op.I, Op.W)
_MESSAGES = (Op.SEND_F, Op.RECV_F, Op.SEND_B, Op.RECV_B)


# ---- the file as cells ----


class _Fault(NamedTuple):
    """Something wrong, at a cell; None where no cell is to blame."""

    place: tuple[int, int] | None  # row and column, from 0
    say: Callable[[], str]  # the sentence: made only for those that are told


class _Sheet:
    """Rows of cells, and what the cells that can be read mean."""

    def __init__(self, text: str) -> None:
        count = sum(map(text.count, ",\t;\n"))
        if count > MOST_CELLS:
            message = f"the file has about {count:,} cells, and up to {MOST_CELLS:,} are read; use fewer microbatches"
            raise DesignError([Problem("", "csv_size", message)])
        self.rows = _split(text.removeprefix("\ufeff"))
        self.orders: list[list[Action]] = [[] for _ in self.rows]
        self.places: dict[Action, list[tuple[int, int]]] = defaultdict(list)  # an action's cells, its slot put aside
        self.faults: list[_Fault] = []
        self.empty: list[tuple[int, int]] = []  # cells between others
        for row, cells in enumerate(self.rows):
            tell(READ * row / len(self.rows), "reading cells")
            for column, cell in enumerate(cells):
                self._read(row, column, cell)
        if not self.rows:
            self.faults.append(_Fault(None, partial(str, "the file is empty; give every rank a row such as 0F0,0B0")))

    def _read(self, row: int, column: int, cell: str) -> None:
        if not cell:
            self.empty.append((row, column))
            return
        if _SHARDING.fullmatch(cell):
            return
        try:
            actions = parse_cell(cell)
        except InputError as error:
            self.faults.append(_Fault((row, column), partial(_unread, self, row, cell, str(error))))
            return
        for action in actions:
            self.orders[row].append(action)
            self.places[action._replace(fused=0)].append((row, column))

    def first(self, part: str) -> dict[int, tuple[int, int]]:
        """The first cell of each stage, or of each microbatch."""
        found: dict[int, tuple[int, int]] = {}
        for action, places in self.places.items():
            if action.op < Op.REDUCE_GRAD:
                number = getattr(action, part)
                found[number] = min(found.get(number, places[0]), places[0])
        return found


def _split(text: str) -> list[list[str]]:
    """The cells of each row, without the empty rows at the end."""
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), delimiter=_delimiter(text))]
    except csv.Error as error:
        raise DesignError([Problem("", "csv", f"the file is no CSV: {error}")]) from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _delimiter(text: str) -> str:
    """What stands between cells: a comma, or what spreadsheets write where the comma is for decimals."""
    return next((mark for mark in ",\t;" if mark in _SLOT.sub("", text)), ",")


def _unread(sheet: _Sheet, row: int, cell: str, words: str) -> str:
    """Why a cell was not read, with the nearest one that its row could have."""
    head, marker, _ = words.partition(" is no action;")
    near = _nearest(sheet, row, cell.upper()) if marker else None
    return f"{head}{marker} did you mean {near}?" if near else words


def _nearest(sheet: _Sheet, row: int, cell: str) -> str | None:
    """Of the actions that stand nowhere yet, the one that looks most like a cell."""
    try:
        return format_cells(parse_cell(cell))[0]
    except InputError:
        pass
    stages = sorted({action.stage for action in sheet.orders[row] if action.stage >= 0}) or [0]
    microbatches = sorted(sheet.first("microbatch")) or [0]
    used = {action.op for action in sheet.places} | {Op.F, Op.B}
    ops = [op for op in (*_COMPUTATIONS, *_MESSAGES) if op in used]
    named = (Action(op, stage, microbatch) for microbatch, stage, op in product(microbatches, stages, ops))
    free = (str(action) for action in named if action not in sheet.places)
    return next(iter(get_close_matches(cell, islice(free, MOST_CANDIDATES), n=1, cutoff=0.5)), None)


def _where(place: tuple[int, int] | None) -> str:
    if place is None:
        return ""
    row, column = place
    return f"row {row + 1}, column {column + 1} ({_cell_name(place)})"


def _cell_name(place: tuple[int, int]) -> str:
    """As a spreadsheet calls it: the column in letters, then the row."""
    row, column = place
    letters, left = "", column + 1
    while left:
        left, letter = divmod(left - 1, 26)
        letters = ascii_uppercase[letter] + letters
    return f"{letters}{row + 1}"


def _named(sheet: _Sheet, place: tuple[int, int]) -> str:
    row, column = place
    return sheet.rows[row][column]


def _shown(sheet: _Sheet, place: tuple[int, int] | None) -> str:
    """The row with an arrow under the cell, on two lines of their own."""
    if place is None:
        return ""
    row, column = place
    cells = ["".join(mark if mark.isprintable() else "\ufffd" for mark in cell) for cell in sheet.rows[row]]
    start = len(",".join(cells[:column])) + bool(column)
    line, size = ",".join(cells), max(len(cells[column]), 1)
    left = max(0, min(start - ROOM // 2, len(line) - ROOM))
    before, after = "…" if left else "", "…" if left + ROOM < len(line) else ""
    return f"\n    {before}{line[left : left + ROOM]}{after}\n    {' ' * (len(before) + start - left)}{'^' * min(size, ROOM)}"
