"""The lesson pane without a browser: gestures of a learner, saved progress, and safety of lesson text."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.lessons import LessonPane
from meshwave.designer.lessons.text import to_html
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.launches import Launches
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.lessons import find_lesson
from meshwave.engine.runs import Record
from meshwave.engine.runs.launchers import launchers
from tests.conftest import PATIENCE_S

LESSON = "02-bubbles-and-microbatches"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def session() -> Session:
    return Session(load_design(example("02-two-waves")))


@pytest.fixture
def pane(session: Session) -> LessonPane:
    made = LessonPane(session)
    made.open(LESSON)
    return made


def send_gesture(pane: LessonPane, type: str, **gesture: Any) -> None:
    pane._handle_msg({"type": type, **gesture})


def check(pane: LessonPane) -> Mapping[str, Any]:
    return dict(pane.step["check"])


def test_a_right_answer_shows_the_explanation_and_a_wrong_one_does_not(pane: LessonPane) -> None:
    assert pane.hides_numbers
    send_gesture(pane, "answer", given="25 %")
    assert not pane.step["verdict"]["passed"] and not pane.step["explanation"]

    send_gesture(pane, "answer", given="75,0")

    assert pane.step["verdict"] == {"passed": True, "reply": "The simulator says 75%.", "conditions": []}
    assert "divided by" in pane.step["explanation"]
    assert not pane.hides_numbers


def test_hints_come_one_by_one(pane: LessonPane) -> None:
    for count in (1, 2, 3, 3):
        send_gesture(pane, "hint")
        assert len(pane.step["hints"]) == count


def test_an_answer_is_shown_with_the_design_that_has_it(pane: LessonPane, session: Session) -> None:
    send_gesture(pane, "go", step=1)
    assert session.design.pipeline.microbatches == 1
    send_gesture(pane, "show_answer")

    assert pane.step["is_done"]
    assert session.design.pipeline.microbatches == 4


def test_a_task_follows_the_open_design(pane: LessonPane, session: Session) -> None:
    send_gesture(pane, "go", step=3)
    assert not pane.step["verdict"]["passed"]

    session.edit("pipeline.microbatches", 13, "more")

    assert [line["is_met"] for line in pane.step["verdict"]["conditions"]] == [True, True, True]
    assert pane.step["is_done"]
    session.edit("pipeline.microbatches", 2, "fewer")
    assert not pane.step["verdict"]["passed"] and pane.step["is_done"], "what is done stays done"


def test_the_design_that_was_open_before_the_lesson_is_restored(pane: LessonPane, session: Session) -> None:
    send_gesture(pane, "answer", given="75")
    send_gesture(pane, "leave")

    assert session.design == load_design(example("02-two-waves"))
    assert not pane.visible


def test_a_design_can_be_kept(pane: LessonPane, session: Session) -> None:
    send_gesture(pane, "go", step=5)
    send_gesture(pane, "keep")

    assert session.design.name == "Bubbles and microbatches: sixteen"
    session.undo()
    assert session.design.name != "Bubbles and microbatches: sixteen"


def test_a_lesson_continues_at_the_last_open_step(pane: LessonPane, session: Session) -> None:
    send_gesture(pane, "answer", given="75")
    send_gesture(pane, "go", step=2)
    send_gesture(pane, "list")
    entry = next(each for each in pane.lessons if each["name"] == LESSON)
    assert entry["state"] == "1 of 5 done"

    again = LessonPane(session)
    again.open(LESSON)

    assert again.step["number"] == 2
    assert session.design.pipeline.microbatches == 4, "the design of the steps before"
    send_gesture(again, "finish")
    again.open(LESSON)
    assert again.step["number"] == 0


def test_a_reload_keeps_the_lesson_and_both_designs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    first = load_design(example("02-two-waves"))
    studio = Studio(first)
    draft = Draft(studio, "", lambda: True)
    LessonPane(draft.session, on_open=draft.save_shown_lesson).open(LESSON)
    draft.session.edit("pipeline.microbatches", 3, "mine")
    draft.release()

    again = Draft(studio, draft.name, lambda: True)

    assert again.lesson is not None
    assert (again.lesson[0], again.lesson[1]) == (LESSON, first)
    assert again.session.design.pipeline.microbatches == 3
    studio.close()


@pytest.fixture
def measuring(pane: LessonPane) -> LessonPane:
    pane.open("14-design-challenge")
    send_gesture(pane, "go", step=5)
    assert check(pane)["kind"] == "measurement" and not pane.step["is_done"]
    return pane


def test_a_run_that_takes_longer_than_predicted_does_not_pass(measuring: LessonPane, session: Session) -> None:
    predicted = session.prediction.timeline

    session.measured = dataclasses.replace(predicted, source="rehearsed", end=predicted.end * 1.2)

    assert not measuring.step["verdict"]["passed"] and not measuring.step["is_done"]
    assert "20.0% longer than predicted" in measuring.step["verdict"]["reply"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_dry_run_that_the_learner_launches_passes_the_step_that_asks_for_a_measurement(
    measuring: LessonPane, session: Session
) -> None:
    with closing(Record()) as record, closing(Launches(record)) as launches:
        panel = RunsPanel(session, launches)
        panel.bar._handle_msg({"type": "choose", "place": "threads"})
        panel.bar._handle_msg({"type": "rehearse", "key": "once"})
        end = time.monotonic() + 3 * PATIENCE_S
        while not measuring.step["is_done"] and time.monotonic() < end:  # a busy machine may need more than one step
            time.sleep(0.1)
            panel.refresh()

    assert measuring.step["verdict"]["passed"] and "than predicted" in measuring.step["verdict"]["reply"]
    assert session.measured.source == "rehearsed"
    assert session.measured.makespan == pytest.approx(session.prediction.timeline.makespan, rel=0.05)


def test_an_unknown_lesson_is_refused_with_the_list(session: Session) -> None:
    pane = LessonPane(session)
    pane.open("02-bubbles-and-microbatch")

    assert "Did you mean '02-bubbles-and-microbatches'?" in pane.refusal
    assert pane.visible and pane.lessons


def test_a_lesson_that_cannot_be_read_is_listed(session: Session, home: Path) -> None:
    (home / "lessons/mine").mkdir(parents=True)
    (home / "lessons/mine/lesson.md").write_text("no front matter")
    pane = LessonPane(session)
    pane.open()

    [mine] = [entry for entry in pane.lessons if entry["name"] == "mine"]
    assert "front matter" in mine["summary"]


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "![a](http://elsewhere.example/x.png)",
        "[[bubble\"><script>|bubble]]",
        "<http://elsewhere.example/\" onclick=\"alert(1)>",
    ],
)  # fmt: skip
def test_lesson_text_runs_no_scripts_and_loads_nothing(text: str) -> None:
    html = to_html(find_lesson(LESSON), text)

    assert "<script" not in html and "<img src=x" not in html
    assert 'href="javascript' not in html and 'href="data' not in html
    assert 'src="http' not in html
    assert 'onclick="' not in html


def test_terms_have_their_definition_as_a_tooltip() -> None:
    html = to_html(find_lesson(LESSON), "Many [[bubbles|bubble]].", inline=True)

    assert html.startswith('Many <span class="mw-term" tabindex="0" data-tip="Time in which')
    assert html.endswith(">bubbles</span>.")


@pytest.mark.parametrize(
    ("type", "gesture"),
    [("answer", {"given": "many"}), ("answer", {}), ("go", {"step": "x"}), ("start", {}), ("go", {"step": 10**9})],
)
def test_an_invalid_gesture_changes_nothing(
    pane: LessonPane, type: str, gesture: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Mapping[str, Any]] = []
    monkeypatch.setattr(pane, "_send_msg", told.append)

    send_gesture(pane, type, **gesture)

    assert told[-1]["gesture"] == type
    assert "inside Meshwave" not in str(told[-1]["refused"])


def test_gestures_without_a_lesson_are_refused(pane: LessonPane, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Mapping[str, Any]] = []
    monkeypatch.setattr(pane, "_send_msg", told.append)
    send_gesture(pane, "leave")

    for type in ("hint", "show_answer", "finish"):
        send_gesture(pane, type)
        assert told[-1]["refused"] == "no lesson is open; choose one from the list"
