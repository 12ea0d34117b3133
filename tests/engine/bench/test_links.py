"""Tests of the benchmark of links."""

from __future__ import annotations

import pytest

from meshwave.engine.bench import links as links_bench
from meshwave.engine.bench.links import BANDWIDTHS, measure_links, predict_on_four_nodes


def test_the_network_limits_one_design_and_not_the_other() -> None:
    full, idle = (predict_on_four_nodes(bandwidth).lower_bounds for bandwidth in BANDWIDTHS.values())

    assert full is not None
    assert idle is not None
    assert full.binding == "network"
    assert full.share > 0.8
    assert idle.network_s is not None
    assert idle.network_s < 0.1 * idle.makespan_s


@pytest.mark.slow
def test_every_figure_is_a_time_or_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_bench, "REPEATS", 1)

    found = measure_links()

    assert len(found) == 3 * len(BANDWIDTHS)
    assert all(value >= 0 and name.endswith(("_s", "_share")) for name, value in found.items())
