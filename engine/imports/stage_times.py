"""Tables of the times of each stage: a CSV of measured seconds, or what a person types or copies from a spreadsheet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from meshwave.engine.findings import Refusal
from meshwave.engine.imports._traces import StageSeconds, Trace, TraceFormat, traces
from meshwave.engine.program.action import Op

COLUMNS: Mapping[str, Op] = {"forward": Op.F, "backward": Op.B, "input": Op.I, "weight": Op.W}
UNITS_S: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
HEADER = re.compile(r"\W*stage\W.*(forward|backward)_(s|ms|us)\b", re.IGNORECASE)
NAME = re.compile(r"(stage|forward|backward|input|weight)(?: gradient)?(?:[_ (]+(s|ms|us)\)?)?", re.IGNORECASE)
DEFAULT_NAMES: Mapping[int, Sequence[str]] = {
    2: ("forward", "backward"),
    3: ("forward", "input", "weight"),
    4: ("stage", "forward", "input", "weight"),
}
"""Columns of a table without a header, by their number."""
MOST_SECONDS = 1e9  # as in a design


@traces.register("stage-times")
class StageTimes(TraceFormat):
    """One row per stage, with columns `stage`, `forward_s` and `backward_s`, or `input_s` and `weight_s`.

    The times are per microbatch, in seconds; the suffixes `_ms` and `_us` denote milliseconds and microseconds.
    """

    title: ClassVar = "times of stages (CSV)"
    note: ClassVar = "a spreadsheet or a script"
    suffixes: ClassVar = (".csv",)

    @staticmethod
    def recognizes(text: str) -> bool:
        return HEADER.match(text) is not None

    @staticmethod
    def read(texts: Sequence[str]) -> Trace:
        return Trace(stage_seconds={key: seconds for text in texts for key, seconds in read_stage_times(text).items()})


def read_stage_times(text: str) -> StageSeconds:
    """Return the times of a table with a row per stage.

    Columns are separated by tabs, semicolons, commas or spaces, and named by a header. Without a header they are
    ``DEFAULT_NAMES``. Without a column of stages, rows are numbered from 0.

    Raises:
        Refusal: a row is not a stage, or a stage has several rows.
    """
    rows = list(_read_rows(text))
    columns = _find_columns(rows[0].cells) if rows else []
    if any(column is not None for column in columns):
        del rows[0]
    else:
        columns = _find_columns(DEFAULT_NAMES.get(len(rows[0].cells), ()) if rows else ())
    found: dict[tuple[Op, int], float] = {}
    for number, row in enumerate(rows):
        try:
            cells = [(*column, cell) for column, cell in zip(columns, row.cells, strict=True) if column]
            stage = next((_parse_stage(cell) for name, _, cell in cells if name == "stage"), number)
            times = {
                (COLUMNS[name], stage): _check_seconds(float(cell) * unit_s)
                for name, unit_s, cell in cells
                if name != "stage"
            }
        except ValueError:
            raise Refusal("unreadable_stage_times", {"line": row.line}) from None
        if found.keys() & times.keys():
            raise Refusal("repeated_stage_times", {"line": row.line, "stage": stage})
        found.update(times)
    return found


def read_stage_costs(text: str) -> dict[str, list[float]]:
    """Return the columns of ``cost.stage_costs`` from a table that :func:`read_stage_times` reads.

    If a table has only a column for the full backward, each gradient takes half of it, as in unit costs.

    Raises:
        Refusal: a row is not a stage, a stage has several rows, or a computation or a stage is missing.
    """
    times = dict(read_stage_times(text))
    for (op, stage), seconds in tuple(times.items()):
        if op == Op.B:
            times.setdefault((Op.I, stage), seconds / 2)
            times.setdefault((Op.W, stage), seconds / 2)
    stages = range(1 + max((stage for _, stage in times), default=0))
    columns = {"forward": Op.F, "input": Op.I, "weight": Op.W}
    try:
        return {name: [times[op, stage] for stage in stages] for name, op in columns.items()}
    except KeyError as error:
        op, stage = error.args[0]
        raise Refusal("incomplete_stage_costs", {"stage": stage, "column": COLUMN_TITLES[op]}) from None


COLUMN_TITLES: Mapping[Op, str] = {Op.F: "forward", Op.I: "input gradient", Op.W: "weight gradient"}


class _Row(NamedTuple):
    line: int
    cells: list[str]


def _read_rows(text: str) -> Iterator[_Row]:
    """Yield the cells of each line that is not empty; a comma is a decimal point between other separators."""
    for number, line in enumerate(text.splitlines(), 1):
        separator = next((each for each in "\t;," if each in line), None)
        cells = [cell.strip().strip('"') for cell in line.split(separator)]
        if any(cells):
            yield _Row(number, cells if separator == "," else [cell.replace(",", ".") for cell in cells])


def _find_columns(names: Sequence[str]) -> list[tuple[str, float] | None]:
    """Return the name and the unit in seconds of each column; None for a column of another name."""
    matches = [NAME.fullmatch(name) for name in names]
    return [(found[1].lower(), UNITS_S[(found[2] or "s").lower()]) if found else None for found in matches]


def _parse_stage(cell: str) -> int:
    stage = int(cell)
    if stage < 0:
        raise ValueError
    return stage


def _check_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 <= seconds <= MOST_SECONDS):
        raise ValueError
    return seconds
