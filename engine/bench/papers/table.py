"""Tables that compare claims of a paper with computed values, grids of values, and their text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from meshwave.engine.bench.markdown import WIDTH

Form = Literal["%", "number"]


class Row(NamedTuple):
    """Claim of a paper: subject, value in the paper, computed value, and the reason if they differ."""

    what: str
    paper: float | str
    ours: float | str
    why: str = ""
    basis: str = ""
    """Fitted values and assumptions behind the computed value."""


@dataclass(frozen=True)
class Table:
    """Table of claims."""

    title: str
    rows: Sequence[Row]
    form: Form = "number"
    printed: str = "paper"
    """Source of the second column: the paper, or a closed form."""
    tolerance: float = 1e-9
    """Largest difference that is ignored: half a unit of the last digit that the paper states."""
    note: str = ""


class GridRow(NamedTuple):
    """Row of a grid: its label, and a value or None for each column."""

    what: str
    figures: Sequence[float | None]


@dataclass(frozen=True)
class Grid:
    """Grid of computed values, for example of a plot without printed values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[GridRow]
    digits: int = 3
    note: str = ""


def is_different(row: Row, table: Table) -> bool:
    """Return True if the computed value differs from the paper's by more than the tolerance."""
    if isinstance(row.paper, str) or isinstance(row.ours, str):
        return row.paper != row.ours
    return abs(row.ours - row.paper) > table.tolerance


def to_json(table: Table | Grid) -> dict[str, Any]:
    """Return a table or grid as a JSON object for ``--json``; only a grid has ``columns``."""
    if isinstance(table, Grid):
        lines = [{"what": line.what, "figures": list(line.figures)} for line in table.rows]
        columns = list(table.columns)
        return {"title": table.title, "columns": columns, "rows": lines, "digits": table.digits, "note": table.note}
    rows = [{**row._asdict(), "difference": _difference(row, table)} for row in table.rows]
    return {"title": table.title, "printed": table.printed, "unit": table.form, "rows": rows, "note": table.note}


def _difference(row: Row, table: Table) -> float | str:
    if isinstance(row.paper, str) or isinstance(row.ours, str):
        return "differs" if is_different(row, table) else "same"
    return row.ours - row.paper if is_different(row, table) else 0.0


def ranking_text(values: Mapping[str, float], near: float = 0.01) -> str:
    """Return names in ascending order of their values, such as ``GPipe = 1F1B < Chimera``.

    Values whose relative distance is at most ``near`` count as equal, and keep the given order.
    """
    groups: list[list[str]] = []
    for name in sorted(values, key=lambda name: values[name]):
        if groups and values[name] <= values[groups[-1][0]] * (1 + near):
            groups[-1].append(name)
        else:
            groups.append([name])
    given = list(values)
    return " < ".join(" = ".join(sorted(group, key=given.index)) for group in groups)


# ---- as text ----


def to_text(figures: Mapping[str, Any]) -> list[str]:
    """Format the result of :func:`meshwave.engine.bench.papers.papers` as lines for a terminal."""
    lines: list[str] = []
    for table in figures["tables"]:
        lines += ["", table["title"], *(_grid_lines(table) if "columns" in table else _claim_lines(table))]
        if table["note"]:
            lines += textwrap.wrap(table["note"], WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def _grid_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a grid."""
    wide = max(len(row["what"]) for row in table["rows"]) + 2
    widths = [max(len(column), table["digits"] + 3) + 2 for column in table["columns"]]
    yield f"  {'':<{wide}}" + "".join(f"{name:>{width}}" for name, width in zip(table["columns"], widths, strict=True))
    for row in table["rows"]:
        cells = ["-" if figure is None else _format_significant(figure, table["digits"]) for figure in row["figures"]]
        yield f"  {row['what']:<{wide}}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
        )


def _claim_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table, with long texts below each other."""
    rows = table["rows"]
    wide = max(len(row["what"]) for row in rows) + 2
    texts = [row for row in rows if isinstance(row["paper"], str)]
    if len(texts) < len(rows):
        yield f"  {'':<{wide}}{table['printed']:>12}{'computed':>10}{'difference':>13}"
    last_reason = ""
    for row in rows:
        basis = f"   ({row['basis']})" if row["basis"] else ""
        if isinstance(row["paper"], str):
            yield f"  {row['what']:<{wide}}{row['difference']}: {row['paper']}{basis}"
            if row["difference"] == "differs":
                yield f"  {'':<{wide}}{'computed':>7}: {row['ours']}"
        else:
            cells = (
                _format_value(row["paper"], table),
                _format_value(row["ours"], table),
                _format_difference(row["difference"], table),
            )
            yield f"  {row['what']:<{wide}}{cells[0]:>12}{cells[1]:>10}{cells[2]:>13}{basis}"
        if row["difference"] not in (0.0, "same") and row["why"] != last_reason:
            last_reason = row["why"]
            yield from textwrap.wrap(last_reason, WIDTH, initial_indent="      why: ", subsequent_indent="           ")


def _format_significant(value: float, digits: int) -> str:
    """Return a number with the given significant digits, without an exponent if it is short."""
    return f"{float(f'{value:.{digits}g}'):g}"


def _format_value(value: float, table: Mapping[str, Any]) -> str:
    return f"{value:.2f} %" if table["unit"] == "%" else f"{round(value, 6):.5g}"


def _format_difference(value: float, table: Mapping[str, Any]) -> str:
    if not value:
        return "none"
    return f"{value:+.2f} pts" if table["unit"] == "%" else f"{value:+.3g}"
