"""Read a pipeline schedule from a CSV of torch.distributed.pipelining into a custom design.

A row is a rank, a cell an action. Both forms of torch are read: in ``compute_comms`` the messages are
checked against the computations and then left out, since the lowering adds its own. What is wrong is
said at its cell, as a spreadsheet names it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from meshwave.engine.costs.presets import preset
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.pipeline import Section
from meshwave.engine.errors import InputError
from meshwave.engine.files import read_whole
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.imports._torch_csv_sheet import (
    _ACTION,
    _COMPUTATIONS,
    _MESSAGES,
    _RANK,
    CHECKED,
    NAMED,
    READ,
    TOLD,
    _cell_name,
    _Fault,
    _named,
    _Sheet,
    _shown,
    _where,
)
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Action, Op, format_cells, parse_cell
from meshwave.engine.program.program import build
from meshwave.engine.program.verification import complete, verify
from meshwave.engine.progress import tell
from meshwave.engine.schedules.custom import LARGEST_TABLE

LARGEST_FILE_BYTES = 64_000_000
NO_ROOM = "csv_devices"
"""The code of the problem that a cluster has fewer devices than the schedule has rows."""


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
    tell(READ, "checking the orders")
    _raise(sheet, sheet.faults)
    _raise(sheet, _gaps(sheet))
    _raise(sheet, _wrong(sheet))
    tell(CHECKED, "making the design")
    return [[a for a in order if a.op <= Op.W] for order in sheet.orders], list(_remarks(sheet))


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
    if document["model"].get("layers", stages) < stages:  # a U-Net has the layers of its shape
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
