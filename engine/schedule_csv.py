"""Read a pipeline schedule from a CSV of torch.distributed.pipelining into a custom design.

A row is a rank, a cell an action. Both forms of torch are read: in ``compute_comms`` the messages are
checked against the computations and then left out, since the lowering adds its own. What is wrong is
said at its cell, as a spreadsheet names it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from itertools import count, islice, product
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from engine.cost.presets import preset
from engine.design import Design, parse_design
from engine.design.pipeline import Section
from engine.errors import DesignError, InputError, Problem
from engine.lowering.transfers import add_transfers
from engine.program.action import Action, Op, format_cells, parse_cell
from engine.program.program import build
from engine.program.verify import complete, verify
from engine.resources import read_whole
from engine.schedules.custom import LARGEST_TABLE

LARGEST_FILE_BYTES = 64_000_000
NO_ROOM = "csv_devices"
"""The code of the problem that a cluster has fewer devices than the schedule has rows."""
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


class Imported(NamedTuple):
    """A design that was read from a schedule, and what a person should know about it."""

    design: Design
    notes: tuple[str, ...]


def load_schedule(path: Path | str, into: Design | None = None) -> Imported:
    """Read a schedule from a file; see :func:`import_schedule`.

    Raises:
        InputError: the file cannot be read.
        DesignError: what is in it is no schedule, or does not go into the design.
    """
    content = read_whole(path, "schedule", LARGEST_FILE_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; save the schedule as CSV in UTF-8") from None
    return import_schedule(text, Path(path).stem, into)


def import_schedule(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
    """A custom design that plays the schedule of a CSV.

    Args:
        name: of the design that is made where there is none to go into.
        into: the design that lends everything but the schedule. Its meshes stay if there is one a
            row; otherwise each row gets a device of its cluster.
        draft: whether the parts of that design may not fit each other yet.

    Raises:
        DesignError: with every error of the schedule at its cell, the first few of them; or with what
            keeps it from going into the design.
    """
    orders, notes = read_schedule(text)
    stages, microbatches = (1 + max(getattr(a, of) for o in orders for a in o) for of in ("stage", "microbatch"))
    document = _new(name, len(orders), stages) if into is None else into.model_dump(mode="json")
    if into is not None:
        notes += _fit(document, len(orders), stages)
    document["pipeline"] = {
        **_kept(document["pipeline"], stages),
        "schedule": "custom",
        "microbatches": microbatches,
        "placement": None,
        "actions": [format_cells(order) for order in orders],
    }
    return Imported(parse_design(document, draft=draft), tuple(notes))


def read_schedule(text: str) -> tuple[list[list[Action]], list[str]]:
    """The computations of each rank, and remarks about the file.

    Raises:
        DesignError: as above.
    """
    sheet = _Sheet(text)
    _raise(sheet, sheet.faults)
    _raise(sheet, _gaps(sheet))
    _raise(sheet, _wrong(sheet))
    return [[a for a in order if a.op <= Op.W] for order in sheet.orders], list(_remarks(sheet))


# ---- the file as cells ----


class _Fault(NamedTuple):
    """Something wrong, at a cell; None where no cell is to blame."""

    place: tuple[int, int] | None  # row and column, from 0
    say: Callable[[], str]  # the sentence: made only for those that are told


class _Sheet:
    """Rows of cells, and what the cells that can be read mean."""

    def __init__(self, text: str) -> None:
        self.rows = _split(text.removeprefix("\ufeff"))
        self.orders: list[list[Action]] = [[] for _ in self.rows]
        self.places: dict[Action, list[tuple[int, int]]] = defaultdict(list)  # an action's cells, its slot put aside
        self.faults: list[_Fault] = []
        self.empty: list[tuple[int, int]] = []  # cells between others
        for row, cells in enumerate(self.rows):
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


# ---- what is wrong with them ----


def _gaps(sheet: _Sheet) -> Iterator[_Fault]:
    """Stages and microbatches are numbered from 0 without gaps; what lies beyond a gap was mistyped."""
    for part, many in (("stage", "stages"), ("microbatch", "microbatches")):
        first = sheet.first(part)
        missing = next(number for number in count() if number not in first)
        for number in sorted(first):
            if number > missing:
                words = (
                    f"{_named(sheet, first[number])} is of {part} {number}, but no cell is of {part} {missing}; "
                    f"{many} are numbered from 0 without gaps"
                )
                yield _Fault(first[number], partial(str, words))


def _wrong(sheet: _Sheet) -> Iterator[_Fault]:
    """What the program of these orders has wrong, in the words of its verifier."""
    computed = [[action for action in order if action.op <= Op.W] for order in sheet.orders]
    if not all(computed):
        row = next(row for row, order in enumerate(computed) if not order)
        words = f"row {row + 1} computes nothing, and every row is a rank; fill it or take it out"
        yield _Fault(None, partial(str, words))
        return
    stages, microbatches = (len(sheet.first(part)) for part in ("stage", "microbatch"))
    if stages * microbatches > LARGEST_TABLE:
        words = (
            f"{stages} stages x {microbatches} microbatches are too large: a step can have {LARGEST_TABLE:,} of both"
        )
        yield _Fault(None, partial(str, words))
        return
    if strays := list(_strays(sheet)):
        yield from strays
        return
    program = build(computed)
    faults = complete(program, microbatches)
    if not faults and _has_messages(sheet):
        faults = verify(build([[action for action in order if action.op < Op.REDUCE_GRAD] for order in sheet.orders]))
    if not faults:
        faults = verify(add_transfers(program))
    for fault in faults:
        yield _Fault(_blamed(sheet, fault), partial(_located, sheet, fault))


def _strays(sheet: _Sheet) -> Iterator[_Fault]:
    """Cells in another row than the rest of what their stage does with their microbatch."""
    rows_of: dict[int, Counter[int]] = defaultdict(Counter)
    rows_for: dict[tuple[int, int], set[int]] = defaultdict(set)
    computed = [(action, place) for action, places in sheet.places.items() if action.op <= Op.W for place in places]
    for action, (row, _) in computed:
        rows_of[action.stage][row] += 1
        rows_for[action.stage, action.microbatch].add(row)
    homes = {stage: rows.most_common(1)[0][0] for stage, rows in rows_of.items()}
    for action, place in computed:
        home = homes[action.stage]
        if place[0] != home and len(rows_for[action.stage, action.microbatch]) > 1:
            words = (
                f"{action} stands in row {place[0] + 1}, and more of stage {action.stage} in row {home + 1}; "
                "a stage's forward and backward of a microbatch belong in one row"
            )
            yield _Fault(place, partial(str, words))


def _has_messages(sheet: _Sheet) -> bool:
    return any(action.op in _MESSAGES for action in sheet.places)


def _blamed(sheet: _Sheet, fault: str) -> tuple[int, int] | None:
    """The cell to point at: that of the first action which stands somewhere, or of a missing one's kin."""
    named = [parse_cell(match[0])[0] for match in _ACTION.finditer(fault)]
    kin = (Action(op, action.stage, action.microbatch) for action in named for op in _COMPUTATIONS)
    return next((sheet.places[action][-1] for action in (*named, *kin) if action in sheet.places), None)


def _located(sheet: _Sheet, fault: str) -> str:
    """A sentence of the verifier in the terms of the file: rows for ranks, and actions with their cells."""

    def place(match: re.Match[str]) -> str:
        cells = sheet.places.get(parse_cell(match[0])[0], ())
        more = ", ..." if len(cells) > NAMED else ""
        return f"{match[0]} ({', '.join(map(_cell_name, cells[:NAMED]))}{more})" if cells else match[0]

    return _RANK.sub(lambda match: f"row {int(match[1]) + 1}", _ACTION.sub(place, fault))


def _remarks(sheet: _Sheet) -> Iterator[str]:
    """What torch would trip over in a file that is sound otherwise."""
    reduced = {action.stage for action in sheet.places if action.op == Op.REDUCE_GRAD}
    undivided = sorted(set(sheet.first("stage")) - reduced)
    if _has_messages(sheet) and undivided:
        which = f"stage {undivided[0]}" if len(undivided) == 1 else f"stages {', '.join(map(str, undivided[:8]))}"
        yield (
            f"{which} had no REDUCE_GRAD: torch would not divide those gradients by the number of microbatches. "
            "Here they are; export the design to get a file with them"
        )
    if _has_messages(sheet) and sheet.empty:
        yield f"torch refuses empty cells in a file with messages, such as {_cell_name(sheet.empty[0])}; they were left out"
    rows_of: dict[int, set[int]] = defaultdict(set)
    for action, places in sheet.places.items():
        if action.op <= Op.W:
            rows_of[action.stage] |= {row for row, _ in places}
    copied = sorted(stage for stage, rows in rows_of.items() if len(rows) > 1)
    if copied:
        on = " and ".join(str(row + 1) for row in sorted(rows_of[copied[0]]))
        yield f"stage {copied[0]} stands in rows {on}, so that it has replicas; torch itself would refuse the file"


# ---- telling it ----


def _raise(sheet: _Sheet, faults: Iterable[_Fault]) -> None:
    faults = list(faults)
    if not faults:
        return
    problems = [
        Problem(_where(fault.place), "csv", fault.say() + _shown(sheet, fault.place)) for fault in faults[:TOLD]
    ]
    if len(faults) > TOLD:
        problems.append(Problem("", "csv", f"and {len(faults) - TOLD} more"))
    raise DesignError(problems)


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
    cells = sheet.rows[row]
    start = len(",".join(cells[:column])) + bool(column)
    line, size = ",".join(cells), max(len(cells[column]), 1)
    left = max(0, min(start - ROOM // 2, len(line) - ROOM))
    before, after = "…" if left else "", "…" if left + ROOM < len(line) else ""
    return f"\n    {before}{line[left : left + ROOM]}{after}\n    {' ' * (len(before) + start - left)}{'^' * min(size, ROOM)}"


# ---- the design around it ----


def _kept(pipeline: Mapping[str, Any], stages: int) -> dict[str, Any]:
    """What every pipeline has, as this one has it, as far as it goes with so many stages."""
    kept = {key: value for key, value in pipeline.items() if key in Section.model_fields}
    if len(kept.get("stages") or ()) != stages:
        kept["stages"] = None
    if isinstance(kept.get("recompute"), list):
        kept["recompute"] = [stage for stage in kept["recompute"] if stage < stages]
    return kept


def _fit(document: dict[str, Any], ranks: int, stages: int) -> list[str]:
    """Make a design's document fit the schedule where it does not; say what was changed."""
    cluster, notes = document["cluster"], []
    devices = cluster["nodes"] * cluster["devices_per_node"]
    if len(document["meshes"]) != ranks:
        if devices < ranks:
            message = (
                f"the schedule has {ranks} rows, one a mesh, and the cluster of {document['name']!r} has {devices} "
                f"device{'s' * (devices > 1)}; add nodes to it, or read the schedule into a design of its own"
            )
            raise DesignError([Problem("", NO_ROOM, message)])
        notes.append(f"{ranks} meshes of one device each replace the {len(document['meshes'])} there were")
        document["meshes"] = _meshes(ranks)
    if document["model"]["layers"] < stages:
        notes.append(f"the model has {stages} layers now instead of {document['model']['layers']}, one a stage")
        document["model"]["layers"] = stages
    return notes


def _new(name: str, ranks: int, stages: int) -> dict[str, Any]:
    """A plain design around a schedule: a few ranks on a laptop, where they run at once; more on DGX nodes."""
    small = ranks <= 8
    cluster: Mapping[str, Any] = preset("laptop" if small else "dgx-a100").cluster.model_dump(mode="json")
    nodes = 1 if small else -(-ranks // cluster["devices_per_node"])
    model = {"kind": "gpt", "layers": stages * -(-8 // stages)}
    shape = (
        {"hidden": 128, "heads": 4, "sequence": 64, "vocab": 256}
        if small
        else {"hidden": 2048, "heads": 16, "sequence": 1024, "vocab": 50257}
    )
    return {
        "format": "meshwave/1",
        "name": name,
        "cluster": {**cluster, "nodes": nodes, **({"devices_per_node": ranks} if small else {})},
        "model": {**model, **shape},
        "meshes": _meshes(ranks),
        "pipeline": {},
    }


def _meshes(ranks: int) -> list[dict[str, Any]]:
    """One device each, in the order of the rows."""
    names = (letter + (str(turn) if turn else "") for turn in count() for letter in ascii_uppercase)
    return [
        {"name": name, "devices": [rank], "axes": {"dp": 1, "tp": 1}}
        for rank, name in zip(range(ranks), names, strict=False)
    ]
