"""What the papers print beside what is simulated here, table by table: ``meshwave bench papers``.

Every table is played anew: orders by the schedules, costs as the paper has them. Where the two
differ, the row says why. One file a paper, or several named by it; in each ``tables()`` tells them in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwave.engine.bench.papers import (
    controllable_memory,
    dualpipe,
    hanayo,
    parm,
    ppmoe,
    resharding,
    resharding_training,
    zero_bubble,
)
from meshwave.engine.bench.papers.table import Grid, Line, Row, Table, differs, ranked, to_json, to_text

__all__ = ["Grid", "Line", "Row", "Table", "differs", "papers", "ranked", "tables", "to_json", "to_text"]

TOLD = (hanayo, zero_bubble, controllable_memory, dualpipe, parm, ppmoe, resharding, resharding_training)
"""The papers, in the order in which they are told."""


def papers() -> dict[str, Any]:
    """what the papers print beside what is simulated here, with the reason where the two differ"""
    return {"tables": [to_json(table) for table in tables()]}


def tables() -> Iterator[Table | Grid]:
    """Every table, in the order in which they are told."""
    for paper in TOLD:
        yield from paper.tables()
