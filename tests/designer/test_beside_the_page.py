"""Jobs of a page end with the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from meshwave.designer.canvases import transfer
from meshwave.designer.pages import design_page
from meshwave.designer.pages.transfer_page import lab_page
from meshwave.designer.state import gallery_cards
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Job
from meshwave.designer.state.studio import Studio
from meshwave.designer.views import expert_schedules, gallery
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.conftest import PATIENCE_S
from tests.designer import held

Begin = Callable[[], Any]


def transfer_lab() -> Job:
    (view,) = lab_page().objects
    view.begin()
    assert view._job is not None
    return view._job.job


def expert_map() -> Job:
    column = design_page.page(Studio(load_design(example("01-first-wave"))))
    (view,) = (each for each in column.objects if isinstance(each, expert_schedules.ExpertSchedules))
    view._handle_msg({"type": "map", "links": "pcie"})
    assert view._job is not None
    return view._job.job


@pytest.mark.slow
@pytest.mark.parametrize("begin", [transfer_lab, expert_map])
def test_a_job_is_stopped_when_its_page_closes(
    begin: Callable[[], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(transfer, "compare_rows", held.endless_results)
    monkeypatch.setattr(expert_schedules, "make_expert_map", held.endless_results)
    monkeypatch.setattr(expert_schedules, "_maps", {})
    document = Document()
    with set_curdoc(document):
        job = begin()

    for callback in document.session_destroyed_callbacks:  # as the server does where nobody looks any more
        callback(None)  # type: ignore[arg-type]

    assert job.join(PATIENCE_S)


@pytest.mark.slow
def test_closing_the_gallery_stops_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(gallery_cards, "make_cards", held.hold_cards)
    shown = gallery.Gallery(Session(load_design(example("01-first-wave"))))
    shown.open()
    assert shown._job is not None
    job = shown._job.job

    shown._handle_msg({"type": "close"})

    assert job.join(PATIENCE_S)
