"""Reproduction of tables of the papers: ``meshwave bench papers``.

Every table is computed from the schedules with the costs of the paper. A row whose values differ states the reason.
Each paper has one module, or several with a common prefix; ``tables()`` yields its tables.
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
from meshwave.engine.bench.papers.table import Grid, GridRow, Row, Table, is_different, ranking_text, to_json, to_text

PAPERS = (hanayo, zero_bubble, controllable_memory, dualpipe, parm, ppmoe, resharding, resharding_training)
"""Modules of the papers, in the order of the report."""


def papers() -> dict[str, Any]:
    """Compare values of the papers with computed values, with the reason for each difference."""
    return {"tables": [to_json(table) for table in tables()]}


def tables() -> Iterator[Table | Grid]:
    """Yield all tables in the order of the report."""
    for paper in PAPERS:
        yield from paper.tables()
