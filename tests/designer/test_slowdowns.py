"""The Slowdowns tab: simulations of slow devices, slow links and jitter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.pages.timeline_layers import pinned_prediction, timeline_layers
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.slowdowns import NO_SLOWDOWN, Slowdowns
from meshwave.designer.views.timeline import Pin
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.predict.questions import Slowdown, slow_step
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers import launchers
from tests.browser.runs import write_run
from tests.engine.runs.play import draw
from tests.engine.runs.test_stragglers import STEPS, record


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("03-gpt-on-two-cores")))


@pytest.fixture
def tab(session: Session, tmp_path: Path) -> Slowdowns:
    return Slowdowns(session, FollowedRuns(session, Record(tmp_path), lambda run: None, ""))


def simulate(tab: Slowdowns, **fields: Any) -> str | None:
    """Press *Simulate* with these fields; return the reason for a refusal."""
    answers: list[Any] = []
    tab._send_msg = answers.append  # type: ignore[method-assign]
    tab._handle_msg({"type": "simulate", **{key: str(value) for key, value in {**NO_SLOWDOWN, **fields}.items()}})
    refused: str | None = answers[-1]["refused"]
    return refused


def test_a_slow_device_and_a_slow_link_are_simulated_and_drawn(session: Session, tab: Slowdowns) -> None:
    one, other = (mesh.name for mesh in session.design.meshes[:2])
    slow = Slowdown({1: 2.0}, {(one, other): 3.0})

    assert simulate(tab, device=1, device_factor=2, link="0:1", link_factor=3) is None

    expected = slow_step(session.prediction, slow)
    assert tab.result == expected.description("s")
    assert session.slowed.makespan == pytest.approx(expected.makespan_s)
    assert session.slowed.meshes == session.prediction.timeline.meshes
    labels = [layer.label for layer in timeline_layers(session)]
    assert labels == ["With slowdowns", session.design.name]
    action = session.prediction.timeline.action(0)
    assert pinned_prediction(session, Pin(1, 0, action)) is session.prediction


def test_the_links_are_those_between_meshes_that_exchange_messages(session: Session, tab: Slowdowns) -> None:
    names = [mesh.name for mesh in session.design.meshes]

    assert tab.links == [
        [f"{rank}:{rank + 1}", f"{names[rank]} and {names[rank + 1]}"] for rank in range(len(names) - 1)
    ]


def test_an_edit_of_the_design_ends_the_simulation(session: Session, tab: Slowdowns) -> None:
    simulate(tab, jitter_percent=20)
    assert session.slowed is not None

    session.edit("pipeline.microbatches", session.design.pipeline.microbatches * 2, "more microbatches")

    assert (session.slowed, tab.result) == (None, "")


def test_an_impossible_slowdown_is_refused_and_ends_the_earlier_simulation(session: Session, tab: Slowdowns) -> None:
    simulate(tab, device=1)
    assert session.slowed is not None

    refused = simulate(tab, device=99)

    assert refused is not None
    assert "device 99 belongs to no mesh" in refused
    assert (session.slowed, tab.result) == (None, "")


def test_a_simulation_without_any_slowdown_is_refused(session: Session, tab: Slowdowns) -> None:
    simulate(tab, jitter_percent=20)

    refused = simulate(tab)

    assert refused is not None
    assert "enter a device" in refused
    assert (session.slowed, tab.result) == (None, "")


def test_a_percentile_is_shown_only_with_jitter(tab: Slowdowns) -> None:
    assert simulate(tab, device=1) is None
    assert "percentile" not in tab.result
    assert simulate(tab, jitter_percent=20) is None
    assert "95th percentile" in tab.result


def test_the_stragglers_of_a_run_that_a_link_names_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    design = draw(pp=2, dp=2)
    studio = Studio(design)
    run = write_run(studio.record, design, steps=STEPS)
    for spans in studio.record.folder(run).glob("spans-*.bin"):
        spans.unlink()
    record(studio.record.folder(run), lambda process, step: (1.5 if process == 3 else 1.0, 1.0))

    widgets = Widgets(Session(design), studio, first_run=run)

    message = "compute on mesh M1, process 3 takes 1.5 times as long as on the other processes of the mesh"
    assert widgets.timeline.slow_lanes == {"M1": message}
    assert [*widgets.dock.tabs.badges.values()] == [["1", "warning"]]
    tab = widgets.view("slowdowns").pane
    assert isinstance(tab, Slowdowns)
    assert [(each["code"], each["where"]) for each in tab.stragglers] == [("slow_process", "meshes[1]")]
    assert tab.has_run
    widgets_without_run = Widgets(Session(design), studio)
    assert not widgets_without_run.view("slowdowns").pane.has_run
    widgets_without_run.stop_jobs()
    assert tab.stragglers[0]["fields"] == {**NO_SLOWDOWN, "device": 3, "device_factor": 1.5}
    widgets.stop_jobs()
    studio.close()
