"""The seam of views: each view is registered by its file, has a tab, and is hidden while another tab is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import panel as pn
import pytest

from meshwave.designer.kit.shortcuts import SHORTCUTS
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.designer.views import Place, View, views
from meshwave.designer.views.tabs import TabbedPages
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.runs.launchers import launchers


@pytest.fixture
def widgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Widgets]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    design = load_design(example("02-two-waves"))
    studio = Studio(design)
    widgets = Widgets(Session(design), studio)
    yield widgets
    widgets.stop_jobs()
    studio.close()


@pytest.mark.parametrize("name", views)
def test_a_view_has_a_unique_title_place_and_key(name: str) -> None:
    view, taken = views[name], {shortcut.keys.lower() for shortcut in SHORTCUTS if shortcut.group == "Design"}

    assert issubclass(view, View)
    assert view.title
    assert view.place in get_args(Place)
    assert not view.key or (len(view.key) == 1 and view.key.islower() and view.key not in taken)
    assert [each.key for each in views.values() if view.key].count(view.key) <= 1


def test_the_page_shows_all_views_in_their_order(widgets: Widgets) -> None:
    assert widgets.side.tabs.titles[:3] == ["Design", "Run", "Problems"]
    assert set(widgets.side.tabs.titles) == {view.title for view in views.values() if view.place == "side"}
    assert widgets.dock.tabs.titles == ["Timeline", "Loss", "Error breakdown", "Slowdowns", "Memory", "Log", "Runs"]
    for name in views:
        assert widgets.view(name) is widgets.view(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", views)
def test_a_view_is_shown_by_name(widgets: Widgets, name: str) -> None:
    tabs = widgets.side if views[name].place == "side" else widgets.dock
    widgets.show_view(name)

    assert tabs.tabs.titles[tabs.tabs.active] == views[name].title


def test_a_pane_of_panel_has_the_colours_of_the_page_and_can_be_hidden() -> None:
    pages = {name: (name.title(), lambda name=name: pn.pane.HTML(name)) for name in ("plain", "other")}
    tabs = TabbedPages("both", pages)
    _, plain = tabs

    assert plain.styles["color"] == "var(--mw-text)"
    tabs.show_view("other")
    _, plain, other = tabs
    assert plain.styles["content-visibility"] == "hidden"
    assert other.styles["content-visibility"] == "visible"


def test_experts_cover_the_wave_only_in_a_design_with_experts(widgets: Widgets) -> None:
    def shown() -> list[bool]:
        panes = [pane.visible for pane in (widgets.experts, widgets.cluster)]
        return [*panes, "mw-wide" not in widgets.experts.css_classes]

    widgets.show_experts()
    assert shown() == [True, False, True], "the pane offers to add experts beside the wave"
    widgets.session.open(load_design(example("16-gpt2-moe")), "an example")
    assert shown() == [True, False, False]
    widgets.session.open(load_design(example("02-two-waves")), "an example")
    assert shown() == [False, True, True]
