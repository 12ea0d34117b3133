"""Import of a pipeline schedule from a CSV file of torch.distributed.pipelining as a custom design.

A row is a rank, a cell an action. Both of torch's forms are supported. The messages of ``compute_comms`` are checked
against the computations and then dropped, since lowering adds its own. REDUCE_GRAD, UNSHARD and RESHARD are dropped too; a remark
says where lowering places them differently. Problems are reported with the spreadsheet names of their cells.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count
from typing import Any, ClassVar

from meshwave.engine.costs.presets import preset
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.design import DEFAULT_UNSHARDED_STAGES
from meshwave.engine.document.meshes import equal_meshes
from meshwave.engine.document.pipeline import Section
from meshwave.engine.findings import Problem
from meshwave.engine.imports._base import Import, Imported, check_device_count, imports
from meshwave.engine.imports.csv_sheet import READ_SHARE, CellProblem, Sheet, cell_name
from meshwave.engine.lowering.gathers import add_gathers
from meshwave.engine.lowering.transfers import add_transfers
from meshwave.engine.program.action import Action, Op, format_cells
from meshwave.engine.program.program import Program, build_program
from meshwave.engine.program.verification import computation_problems, verify
from meshwave.engine.progress import report_progress
from meshwave.engine.schedules.custom import MAX_TABLE_SIZE

CHECKED_SHARE = 0.9
"""Fraction of the duration of an import after which reading and checking are complete."""
FIRST_CELL = re.compile(r"[\s,;\t\"]*\(?\s*\d+\s*[A-Z]")
"""Pattern of the start of a schedule: a stage and its action, such as 0F0 or 0UNSHARD."""


@imports.register("torch-csv")
class TorchCsv(Import):
    """Pipeline schedule with one row per rank and one action per cell; with or without messages."""

    title: ClassVar = "torch schedule (CSV)"
    note: ClassVar = "torch.distributed.pipelining: _dump_csv"
    suffixes: ClassVar = (".csv", ".tsv")

    @staticmethod
    def recognizes(text: str) -> bool:
        return FIRST_CELL.match(text) is not None

    @staticmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        return import_schedule(text, name, into, draft=draft)


def import_schedule(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
    """Return a custom design with the schedule in a CSV text.

    Args:
        text: the content of the file.
        name: the name of the new design if ``into`` is None.
        into: the design whose schedule is replaced. Its meshes are kept if there is one per row; otherwise each row
            gets a device of its cluster.
        draft: True if the parts of that design may be inconsistent.

    Raises:
        DesignError: the schedule has problems, or does not fit the design; contains the first ones with their cells.
    """
    sheet = read_schedule(text)
    orders = [[action for action in order if action.op <= Op.W] for order in sheet.orders]
    notes = list(_find_remarks(sheet))
    stages, microbatches = (1 + max(getattr(a, of) for o in orders for a in o) for of in ("stage", "microbatch"))
    document = _new_document(name, len(orders), stages) if into is None else into.model_dump(mode="json")
    if into is not None:
        notes += _fit_document(document, into, len(orders), stages)
    notes += _adopt_gathers(sheet, build_program(orders), document.get("training", {}))
    document["pipeline"] = {
        **_reusable_keys(document["pipeline"], stages),
        "schedule": "custom",
        "microbatches": microbatches,
        "placement": None,
        "actions": [format_cells(order) for order in orders],
    }
    return Imported(parse_design(document, draft=draft), tuple(notes))


def read_schedule(text: str) -> Sheet:
    """Return the cells of a file whose computations and messages are valid.

    Raises:
        DesignError: the schedule has problems; contains the first ones with their cells.
    """
    sheet = Sheet(text)
    report_progress(READ_SHARE, "checking the orders")
    for problems in (sheet.problems, _cells_after_gap(sheet), _program_problems(sheet)):
        sheet.raise_problems(problems)
    report_progress(CHECKED_SHARE, "making the design")
    return sheet


# ---- problems ----


def _cells_after_gap(sheet: Sheet) -> Iterator[CellProblem]:
    """Yield cells beyond a gap in the numbers of stages or microbatches, which are probably typing errors."""
    for part in ("stage", "microbatch"):
        first = sheet.first_cells(part)
        missing = next(number for number in count() if number not in first)
        for number in sorted(first):
            if number > missing:
                row, column = place = first[number]
                params = {"cell": sheet.rows[row][column], "part": part, "number": number, "missing": missing}
                yield CellProblem(place, Problem("", "csv_gap", params))


def _program_problems(sheet: Sheet) -> Iterator[CellProblem]:
    """Yield the problems of the program with these orders."""
    computed = [[action for action in order if action.op <= Op.W] for order in sheet.orders]
    if not all(computed):
        row = next(row for row, order in enumerate(computed) if not order)
        yield CellProblem(None, Problem("", "csv_idle_row", {"row": row + 1}))
        return
    stages, microbatches = (len(sheet.first_cells(part)) for part in ("stage", "microbatch"))
    if stages * microbatches > MAX_TABLE_SIZE:
        params = {"stages": stages, "microbatches": microbatches, "most": MAX_TABLE_SIZE}
        yield CellProblem(None, Problem("", "csv_table_size", params))
        return
    if strays := list(_misplaced_cells(sheet)):
        yield from strays
        return
    program = build_program(computed)
    found = computation_problems(program, microbatches)
    if not found and sheet.has_messages:
        found = verify(
            build_program([[action for action in order if action.op < Op.REDUCE_GRAD] for order in sheet.orders])
        )
    if not found:
        found = verify(add_transfers(program))
    yield from map(sheet.locate_problem, found)


def _misplaced_cells(sheet: Sheet) -> Iterator[CellProblem]:
    """Yield cells on another row than the other computations of their stage and microbatch."""
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
            params = {"action": str(action), "row": place[0] + 1, "stage": action.stage, "home": home + 1}
            yield CellProblem(place, Problem("", "csv_stray", params))


def _find_remarks(sheet: Sheet) -> Iterator[Problem]:
    """Yield remarks about parts of a valid file that torch would reject or compute differently."""
    reduced = {action.stage for action in sheet.places if action.op == Op.REDUCE_GRAD}
    unreduced = sorted(set(sheet.first_cells("stage")) - reduced)
    if sheet.has_messages and unreduced:
        yield _make_remark("csv_without_reduction", stages=unreduced)
    if sheet.has_messages and sheet.empty:
        yield _make_remark("csv_empty_cells", cell=cell_name(sheet.empty[0]))
    if moved := [cell for order in sheet.orders for cell in _moved_reductions(order)]:
        yield _make_remark("csv_moved_reductions", actions=moved)
    rows_of: dict[int, set[int]] = defaultdict(set)
    for action, places in sheet.places.items():
        if action.op <= Op.W:
            rows_of[action.stage] |= {row + 1 for row, _ in places}
    copied = sorted(stage for stage, rows in rows_of.items() if len(rows) > 1)
    if copied:
        yield _make_remark("csv_replicas", stage=copied[0], rows=sorted(rows_of[copied[0]]))


def _moved_reductions(order: Sequence[Action]) -> Iterator[str]:
    """Yield the reductions of a rank that do not come between the last backward of their stage and the next slot."""
    slots = list(accumulate(action.op <= Op.W and not action.fused for action in order))
    last = {action.stage: slot for action, slot in zip(order, slots, strict=True) if action.op in (Op.B, Op.W)}
    for action, slot in zip(order, slots, strict=True):
        if action.op == Op.REDUCE_GRAD and last.get(action.stage) != slot:
            yield str(action)


def _adopt_gathers(sheet: Sheet, program: Program, training: dict[str, Any]) -> Iterator[Problem]:
    """Set the number of unsharded stages in a training section, and yield a remark if UNSHARD or RESHARD differ."""
    orders = [_placed_gathers(order) for order in sheet.orders]
    most = max(_most_unsharded(order) for order in orders)
    if not most:
        return
    if training.get("sharding") != "parameters":
        yield _make_remark("csv_unused_gathers", stages=most)
        return

    def is_placed_by(limit: int) -> bool:
        gathered = add_gathers(program, [limit] * program.ranks)
        return all(_placed_gathers(gathered.actions(rank)) == order for rank, order in enumerate(orders))

    given = training["unsharded_stages"]
    if not is_placed_by(DEFAULT_UNSHARDED_STAGES if given is None and program.stages > 1 else given or 0):
        training["unsharded_stages"] = most
        if not is_placed_by(most):
            yield _make_remark("csv_other_gathers", stages=most)


def _placed_gathers(order: Iterable[Action]) -> list[Action]:
    """Return the computations, UNSHARD and RESHARD actions of a rank."""
    return [action for action in order if action.op <= Op.W or action.op in (Op.UNSHARD, Op.RESHARD)]


def _most_unsharded(order: Iterable[Action]) -> int:
    """Return the maximum number of stages that a rank holds unsharded at once."""
    changes = {Op.UNSHARD: 1, Op.RESHARD: -1}
    return max(accumulate((changes.get(action.op, 0) for action in order), initial=0))


def _make_remark(code: str, **params: Any) -> Problem:
    return Problem("", code, params, "warning")


# ---- the design ----


def _reusable_keys(pipeline: Mapping[str, Any], stages: int) -> dict[str, Any]:
    """Return the keys common to all pipelines whose values fit ``stages`` stages."""
    kept = {key: value for key, value in pipeline.items() if key in Section.model_fields}
    if len(kept.get("stages") or ()) != stages:
        kept["stages"] = None
    if isinstance(kept.get("recompute"), list):
        kept["recompute"] = [stage for stage in kept["recompute"] if stage < stages]
    return kept


def _fit_document(document: dict[str, Any], design: Design, ranks: int, stages: int) -> list[Problem]:
    """Adapt the document of a design to the schedule, and return the changes as remarks."""
    notes = []
    if len(document["meshes"]) != ranks:
        check_device_count(design, ranks)
        notes.append(_make_remark("csv_meshes_replaced", meshes=ranks, before=len(document["meshes"])))
        document["meshes"] = equal_meshes(ranks, {"dp": 1, "tp": 1})
    if document["model"].get("layers", stages) < stages:  # the shape of a U-Net determines its number of layers
        notes.append(_make_remark("csv_layers_added", layers=stages, before=document["model"]["layers"]))
        document["model"]["layers"] = stages
    return notes


def _new_document(name: str, ranks: int, stages: int) -> dict[str, Any]:
    """Return the document of a simple design for a schedule: a few ranks on a laptop, more on DGX nodes."""
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
        "meshes": equal_meshes(ranks, {"dp": 1, "tp": 1}),
        "pipeline": {},
    }
