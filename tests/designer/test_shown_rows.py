"""Rows that a page reports are read only if they fit the predicted step."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.views.shown_rows import read_shown_rows
from meshwave.engine.errors import InputError
from meshwave.engine.exports.pictures.rows import Row
from tests.designer.timelines import one_f_one_b

STEP = one_f_one_b(4, 8)


def test_rows_of_the_step_are_read() -> None:
    rows = [{"kind": "lanes", "ranks": [3, 0]}, {"kind": "title", "name": "Memory", "note": "peak 2 GB"}]

    assert read_shown_rows({"digest": STEP.digest, "rows": rows}, STEP) == (
        Row("lanes", ranks=(3, 0)),
        Row("title", "Memory", "peak 2 GB"),
    )


def test_rows_of_another_timeline_are_not_used() -> None:
    assert read_shown_rows({}, STEP) == ()
    assert read_shown_rows({"digest": "of a block", "rows": [{"kind": "lanes", "ranks": [9]}]}, STEP) == ()


@pytest.mark.parametrize(
    "row", [{"kind": "lanes", "ranks": [4]}, {"kind": "memory"}, {"kind": "links", "ports": []}, {"kind": "x"}, None]
)
def test_invalid_rows_are_refused(row: Any) -> None:
    with pytest.raises(InputError, match="rows"):
        read_shown_rows({"digest": STEP.digest, "rows": [row]}, STEP)
