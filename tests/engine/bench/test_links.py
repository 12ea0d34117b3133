"""The bench of links: what it measures is a step whose NICs are as full as it says."""

from __future__ import annotations

import pytest

from meshwave.engine.bench import links as links_bench
from meshwave.engine.bench.links import BANDWIDTHS, figures, on_four_nodes


def test_one_design_is_limited_by_its_nics_and_one_is_not() -> None:
    full, idle = (on_four_nodes(bandwidth).bounds for bandwidth in BANDWIDTHS.values())

    assert full is not None
    assert idle is not None
    assert full.binding == "network"
    assert full.share > 0.8
    assert idle.network_s is not None
    assert idle.network_s < 0.1 * idle.makespan_s


def test_every_figure_is_a_time_or_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_bench, "REPEATS", 1)

    found = figures()

    assert len(found) == 3 * len(BANDWIDTHS)
    assert all(value >= 0 and name.endswith(("_s", "_share")) for name, value in found.items())
