"""*Use this cluster* puts the cluster that a launch target reports into the design."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from meshwave.designer.canvases.cluster import ClusterCanvas
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches, PersonLaunches
from meshwave.designer.views import target_drawing
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.findings import RunRefusal
from meshwave.engine.people.limits import Limits
from meshwave.engine.people.people_file import Role, User
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers._node_counts import NodeCounts
from meshwave.engine.runs.target_check import TargetCluster
from tests.conftest import wait_until


def report(name: str) -> TargetCluster:
    if name == "broken":
        raise RunRefusal("target_check_failed", {"target": name, "why": "its job ended", "said": "no module torch"})
    cluster = load_design(example("02-two-waves")).cluster
    states = tuple((f"n{number}", number % 2 == 0) for number in range(8))
    return TargetCluster(cluster.model_copy(update={"nodes": 8}), NodeCounts(8, 4, states), "NV18")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(target_drawing, "target_cluster", report)
    return Session(load_design(example("02-two-waves")))


def bar_of(session: Session, place: str) -> LaunchBar:
    def do_nothing(*_: object) -> None:
        pass

    bar = LaunchBar(
        do_nothing,
        do_nothing,
        do_nothing,
        do_nothing,
        lambda: target_drawing.draw_target(session, bar, place),
        place=place,
    )
    return bar


def test_a_drawn_cluster_is_one_edit(session: Session) -> None:
    bar, before = bar_of(session, "cluster"), session.design

    bar._on_draw()

    assert wait_until(lambda: session.design.cluster.nodes == 8)
    assert bar.drawing == ""
    session.undo()
    assert session.design == before


def test_free_nodes_of_a_drawn_cluster_are_shown_and_counted_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = bar_of(session, "cluster")
    bar._on_draw()
    assert wait_until(lambda: session.attached and session.design.cluster.nodes == 8)

    picture = session.attached.picture(session.design.cluster)
    assert (picture["target"], picture["free"], picture["total"]) == ("cluster", 4, 8)
    assert picture["nodes"][:2] == [("n0", True), ("n1", False)]
    canvas = ClusterCanvas()
    canvas.show(session.design.model_dump(mode="json"), picture)
    assert canvas.links["intra"].endswith(" NVLink (NV18)")
    monkeypatch.setattr(target_drawing, "target_nodes", lambda name: NodeCounts(8, 0, (("n0", False),) * 8))
    target_drawing.refresh_nodes(session, bar)
    assert wait_until(lambda: session.attached.picture(session.design.cluster)["free"] == 0)
    session.undo()
    assert session.attached.picture(session.design.cluster) == {}, "the design has its own cluster again"


def test_a_cluster_that_no_longer_fits_is_reported(session: Session) -> None:
    bar = bar_of(session, "cluster")
    bar._on_draw()
    session.read_only = True

    assert wait_until(lambda: bar.notice)
    assert bar.notice.startswith("this page is read-only")
    assert bar.drawing == ""


def test_administrators_alone_measure_a_shared_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_TARGETS", str(tmp_path / "none.toml"))
    with closing(Record(tmp_path)) as record:
        shared = Launches(record)
        roles = [Role.LAUNCHER, Role.ADMIN]
        people = [PersonLaunches(shared, User(str(role), str(role), role), Limits) for role in roles]
        panels = [RunsPanel(Session(load_design(example("02-two-waves"))), each) for each in (shared, *people)]

        assert [panel.bar.places[0]["drawable"] for panel in panels] == [True, False, True]
        panels[1].bar._on_draw()
        assert "does not permit" in panels[1].bar.notice
        shared.close()


def test_a_target_that_fails_is_reported(session: Session) -> None:
    bar = bar_of(session, "broken")

    bar._on_draw()

    assert wait_until(lambda: bar.notice)
    assert bar.notice == "the check of broken failed: its job ended; from its logs: no module torch"
    assert bar.drawing == ""
