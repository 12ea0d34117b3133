"""The bench of runtimes: torch's own runtime computes the same, and figures come of it."""

from __future__ import annotations

import pytest

from meshwave.engine.bench.speed import PAIRS, _pair, side_by_side
from meshwave.engine.errors import RunError

TINY = {"hidden": 16, "sequence": 8}
FIGURES = ("a step_s", "overhead of an action_s")


def test_torchs_runtime_and_ours_agree_before_they_are_timed() -> None:
    names = ("zb-v", "hanayo, two waves")  # a split backward, and an order from a CSV file

    found = side_by_side({name: _pair(2, TINY, *PAIRS[name]) for name in names}, ranks=2, turns=2)

    assert found.pop("ranks") == 2
    found.pop("GPUs")
    expected = {f"{name}: {whose}: {figure}" for name in names for whose in ("meshwave", "torch") for figure in FIGURES}
    assert set(found) == expected | {f"{name}: torch / meshwave" for name in names}
    assert all(value > 0 for value in found.values())


def test_another_order_than_torchs_is_no_comparison() -> None:
    pair = _pair(2, TINY, {"schedule": "interleaved-1f1b", "chunks": 2}, "ScheduleLoopedBFS")

    with pytest.raises(RunError, match="torch's ScheduleLoopedBFS orders its computations otherwise"):
        side_by_side({"mixed up": pair}, ranks=2, turns=1)
