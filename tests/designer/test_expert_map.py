"""The map of expert layers: a cell per layer, for the selected links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwave.designer.state import expert_map
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.expert_map import make_expert_map
from meshwave.designer.state.job_processes import Failed
from meshwave.designer.views import expert_schedules
from meshwave.designer.views.expert_schedules import ExpertSchedules
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.expert_map import CLUSTERS, OWN_CLUSTER, design_cluster, price_grid
from tests.designer import held

pytestmark = pytest.mark.slow

PRICED_S = 60.0


@pytest.mark.nightly
def test_the_map_has_a_cell_for_every_layer_of_the_grid() -> None:
    found, of = make_expert_map(), price_grid(CLUSTERS["pcie"])

    alike, fitting = found["rankings"]["alike"], found["rankings"]["fitting"]
    assert len(alike["best"]) == len(fitting["best"]) == 1296 == len(found["deepspeed"])
    names = [*found["down"], *found["across"]]
    sizes = [len(found["axes"][name]["values"]) for name in names]
    for cell in (0, 80, 81, 700, 1295):
        at = dict(zip(names, np.unravel_index(cell, sizes), strict=True))
        point = {name: found["axes"][name]["values"][place] for name, place in at.items()}
        row = np.flatnonzero(np.all([of.axes[name] == value for name, value in point.items()], axis=0))
        assert len(row) == 1
        assert alike["best"][cell] == of.winner[row[0]]
        assert fitting["schedules"][fitting["best"][cell]]["name"] == of.names[of.fastest[row[0]]]
        assert found["deepspeed"][cell] == pytest.approx(of.speedup()[row[0]], abs=1e-4)
    assert min(alike["lead"]) >= 1 <= min(fitting["lead"])
    for ranking in (alike, fitting):
        wins = [each["wins"] for each in ranking["schedules"]]
        assert wins == [ranking["best"].count(number) for number in range(len(wins))]


def test_the_notes_of_the_map_include_the_range_of_the_paper() -> None:
    notes = " ".join(make_expert_map()["notes"])
    assert "The Parm paper measured 1.13× to 5.77×" in notes and "Meshwave chose this grid" in notes
    assert all(f"{axis['word']}: " in notes and axis["help"] for axis in make_expert_map()["axes"].values())


def test_the_map_uses_the_selected_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_schedules, "make_expert_map", held.map_of_layers)
    monkeypatch.setattr(expert_schedules, "_maps", {})
    opened = load_design(example("16-gpt2-moe"))
    view = ExpertSchedules(Session(opened))
    answers: list[dict[str, Any]] = []
    view._send_msg = answers.append  # type: ignore[method-assign, assignment]

    def ask(links: str) -> None:
        view._handle_msg({"type": "map", "links": links})
        assert view._job is None or view._job.job.join(PRICED_S)

    assert [each["key"] for each in view.links] == [OWN_CLUSTER, *CLUSTERS]
    for links in (*CLUSTERS, OWN_CLUSTER, OWN_CLUSTER):
        ask(links)
    assert [*expert_schedules._maps] == [*CLUSTERS.values(), design_cluster(opened)]
    assert view.map == {"notes": [design_cluster(opened).description]}
    ask("nvlnk")
    assert "Did you mean 'nvlink'?" in answers[-1]["refused"]
    assert view.map == {"notes": [design_cluster(opened).description]}


def test_a_map_that_fails_is_reported_in_its_place_and_can_be_requested_again() -> None:
    view = ExpertSchedules(Session(load_design(example("16-gpt2-moe"))))

    view._receive_map(CLUSTERS["pcie"], Failed("the process ended"))

    assert view.map == {"problem": "The map could not be computed: the process ended."}
    assert view._mapped is None


def test_the_map_describes_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = price_grid(CLUSTERS["pcie"])
    monkeypatch.setattr(expert_map, "price_grid", lambda cluster: quick._replace(cluster=cluster))
    for cluster in (CLUSTERS["server"], CLUSTERS["nvlink"]):
        notes = " ".join(make_expert_map(cluster)["notes"])
        assert (
            cluster.description in notes
            and f"on {cluster.devices} devices with {cluster.devices_per_node} per node" in notes
        )
