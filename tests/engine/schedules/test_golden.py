"""Golden programs: each text in tests/golden is one program as drawn in its paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program import format_program
from tests._strategies import Drawn

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.txt"))


def read(path: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the ``# key: value`` lines of a golden text, and the actions of each rank."""
    lines = path.read_text("utf-8").splitlines()
    pairs = (line[2:].split(": ") for line in lines if line.startswith("# "))
    head = {
        pair[0]: int(pair[1]) if pair[1].isdecimal() else pair[1]
        for pair in pairs
        if len(pair) == 2 and pair[0].isidentifier()
    }
    return head, [line.split() for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_orders_equal_the_figures(path: Path) -> None:
    head, orders = read(path)
    ranks, dp = head.pop("ranks"), head.pop("dp", None)
    if head["schedule"] == "custom":
        head["actions"] = orders

    program = lower(Drawn(head, ranks).design(dp or 1))

    assert format_program(program, compute_only=dp is None) == orders
