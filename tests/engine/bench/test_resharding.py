"""The benchmark of resharding: every strategy runs in real processes and is compared with its prediction."""

from __future__ import annotations

import pytest

from meshwave.engine.resharding import strategies
from meshwave.engine.runtime.benchmarks.resharding import CASES, TINY, _emulated_links, benchmark_resharding, to_text
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
def test_every_strategy_is_measured_and_reported() -> None:
    found = benchmark_resharding(TINY, ProcessCluster(3, 2), turns=1)

    (row,) = found["cases"]
    assert set(row["measured_s"]) == set(row["predicted_s"]) == set(strategies)
    assert all(seconds > 0 for seconds in row["measured_s"].values())
    assert row["choice"] == min(row["predicted_s"], key=row["predicted_s"].__getitem__)
    lines = to_text(found)
    assert any(line.startswith("  one to 2 x 2, 4 kB") for line in lines) and "of 1 cases" in lines[-1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cases_fit_the_cluster(case: object) -> None:
    assert case in CASES
    links = _emulated_links(ProcessCluster(3, 2, 250e6, 50e6), (1e-4, 2e-4))
    planned = case.plan(links, "broadcast")  # type: ignore[attr-defined]
    assert planned.moves and set(planned.ranks) <= set(links.host)
    assert str(round(planned.tensor.bytes / 1e6)) in case.name or "kB" in case.name  # type: ignore[attr-defined]
