"""The comparison with torch.distributed.pipelining: equal results, and figures of both runtimes."""

from __future__ import annotations

import pytest

from meshwave.engine.bench.speed import PAIRS, compare_runtimes, schedule_pair
from meshwave.engine.errors import RunError

TINY = {"hidden": 16, "sequence": 8}
FIGURES = ("a step_s", "overhead of an action_s")


@pytest.mark.nightly
def test_both_runtimes_agree_and_have_figures() -> None:
    names = ("zb-v", "hanayo, two waves")  # a split backward, and an order from a CSV file

    found = compare_runtimes({name: schedule_pair(2, TINY, *PAIRS[name]) for name in names}, ranks=2, turns=2)

    assert found.pop("ranks") == 2
    found.pop("GPUs")
    expected = {
        f"{name}: {runtime}: {figure}" for name in names for runtime in ("meshwave", "torch") for figure in FIGURES
    }
    assert set(found) == expected | {f"{name}: torch / meshwave" for name in names}
    assert all(value > 0 for value in found.values())


@pytest.mark.nightly
def test_another_order_than_that_of_torch_is_rejected() -> None:
    pair = schedule_pair(2, TINY, {"schedule": "interleaved-1f1b", "chunks": 2}, "ScheduleLoopedBFS")

    with pytest.raises(RunError, match="differs from that of torch's ScheduleLoopedBFS"):
        compare_runtimes({"different orders": pair}, ranks=2, turns=1)
