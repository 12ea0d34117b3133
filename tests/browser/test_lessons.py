"""Lessons in a real browser: lessons of the course from their first step to their last, by pointer and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.lessons import (
    Choice,
    Lesson,
    Measurement,
    NumberQuestion,
    Step,
    Task,
    find_lesson,
    lesson_folders,
    right_answer,
)
from tests.conftest import IDLE, new_context, open_server, watch

pytestmark = pytest.mark.browser
COURSE = [name for name, folder in lesson_folders().items() if folder.parent.name == "course"]
DAILY = ["00-tour", "05-waves", "11-parm", "13-transfers-between-meshes", "14-design-challenge"]
"""Lessons that have every kind of step and every canvas between them."""
WALK = Path(__file__).with_name("lesson_walk.js").read_text()
SECOND = "02-bubbles-and-microbatches"


@pytest.fixture
def page(whole_page: Callable[..., Page]) -> Page:
    return whole_page(load_design(example("02-two-waves")))


@pytest.fixture
def pane(page: Page) -> Locator:
    """The pane with the list of lessons, opened from the menu."""
    page.get_by_role("button", name="Help").click()
    page.get_by_role("menuitem", name="Lessons").click()
    pane = page.locator(".mw-lesson")
    expect(pane.get_by_role("heading", name="Lessons")).to_be_focused()
    return pane


@pytest.mark.slow
@pytest.mark.parametrize("names", [DAILY, pytest.param(COURSE, marks=pytest.mark.nightly, id="all")])
def test_lessons_from_their_first_step_to_their_last(page: Page, pane: Locator, names: list[str]) -> None:
    """One page for all of them: opening a page takes longer than most lessons."""
    upload = page.locator('input[type="file"][accept*=".json"]').first.element_handle()
    for name in names:
        lesson = find_lesson(name)
        pane.locator(f'[data-lesson="{name}"]').click()
        steps = [{**shown(step), **answers(lesson, step)} for step in lesson.steps]
        page.evaluate(WALK, [pane.element_handle(), upload, steps])
    expect(page.get_by_label("Design name")).to_have_value("Two waves on four meshes")


def shown(step: Step) -> dict[str, object]:
    return {"title": step.title, "isExplained": bool(step.explanation), "highlight": step.data.highlight}


def answers(lesson: Lesson, step: Step) -> dict[str, str]:
    """Return the kind of a step's question, and an incorrect and a correct answer as text or as a design document."""
    match step.data.check:
        case NumberQuestion() as check:
            return {"kind": "number", "wrong": f"{check.wrong:g}", "right": f"{right_answer(lesson, check):.6g}"}
        case Choice() as check:
            right = int(right_answer(lesson, check))
            return {"kind": "choice", "wrong": str((right + 1) % len(check.options)), "right": str(right)}
        case Task() as check:
            return {"kind": "task", "right": lesson.designs[check.solution].to_json()}
        case Measurement():
            return {"kind": "measurement"}
    return {}


def test_hints_the_answer_and_the_highlighted_control(page: Page, pane: Locator) -> None:
    pane.locator(f'[data-lesson="{SECOND}"]').click()
    pane.get_by_role("button", name="Next").click()
    expect(pane.locator(".mw-lesson-ring")).to_be_visible()
    ring, control = (
        page.locator(selector).bounding_box() for selector in (".mw-lesson-ring", '[aria-label="microbatches"]')
    )
    assert ring and control and ring["x"] < control["x"] < ring["x"] + ring["width"]

    for count in (3, 2, 1):
        pane.get_by_role("button", name=f"Hint ({count})").press("Enter")
    expect(pane.locator(".mw-lesson-hint")).to_have_count(3)
    pane.get_by_role("button", name="Show the answer").press("Enter")

    expect(pane.locator(".mw-lesson-verdict")).to_contain_text("42.9%")
    expect(page.get_by_label("Design name")).to_have_value("Bubbles and microbatches: four")


def test_terms_have_tooltips_for_the_keyboard_and_text_can_be_enlarged(page: Page, pane: Locator) -> None:
    pane.locator(f'[data-lesson="{SECOND}"]').click()
    term = pane.locator(".mw-term", has_text="bubble").first
    before = term.bounding_box()
    page.keyboard.press("Tab")  # from the heading to the first term
    expect(term).to_be_focused()
    expect(pane.locator(".mw-tip")).to_contain_text("Time in which a mesh does not compute.")

    pane.get_by_role("button", name="Larger text").click()
    after = term.bounding_box()
    assert before and after and after["width"] == pytest.approx(1.25 * before["width"], rel=0.01)


def test_a_link_opens_a_lesson_that_continues_after_a_reload(
    browser: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshwave.designer.pages.design_page import page as make_page
    from meshwave.designer.state.studio import Studio
    from meshwave.engine.runs.launchers import launchers

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    studio = Studio(load_design(example("02-two-waves")))
    complaints: list[str] = []
    with open_server() as serve:
        context = new_context(browser)  # type: ignore[arg-type]
        page = context.new_page()
        watch(page, complaints)
        page.goto(f"{serve(lambda: make_page(studio))}?lesson={SECOND}")
        page.wait_for_function(IDLE)
        page.get_by_role("heading", name="One batch, one mesh at a time").wait_for()
        page.get_by_role("button", name="Next").click()
        page.get_by_role("heading", name="Cut the batch into four").wait_for()
        page.wait_for_function("location.search.includes('draft=')")

        page.reload()
        page.get_by_role("heading", name="Cut the batch into four").wait_for()
        page.get_by_role("button", name="Close the lesson").click()

        expect(page.get_by_label("Design name")).to_have_value("Two waves on four meshes")
        context.close()
    studio.close()
    assert not complaints, "\n".join(complaints)
