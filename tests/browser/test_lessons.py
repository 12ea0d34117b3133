"""Lessons in a real browser: lessons of the course from their first step to their last, by pointer and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.engine.document import Design, load_design
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
from tests.conftest import IDLE, new_context, serving, watch

pytestmark = pytest.mark.browser
COURSE = [name for name, folder in lesson_folders().items() if folder.parent.name == "course"]
SECOND = "02-bubbles-and-microbatches"
WALKED = ("00-tour", "07-zero-bubble", "14-design-challenge")
"""Lessons that together have every kind of check; the others are walked in the nightly tests."""


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
@pytest.mark.parametrize(
    "name", [name if name in WALKED else pytest.param(name, marks=pytest.mark.nightly) for name in COURSE]
)
def test_a_lesson_from_its_first_step_to_its_last(page: Page, pane: Locator, name: str) -> None:
    lesson = find_lesson(name)
    pane.locator(f'[data-lesson="{name}"]').click()
    for number, step in enumerate(lesson.steps):
        expect(pane.get_by_role("heading", level=2)).to_have_text(step.title)
        expect(pane.get_by_text(f"Step {number + 1} of {len(lesson.steps)}")).to_be_visible()
        take_step(page, pane, lesson, step)
        assert "{{" not in pane.inner_text() and "[[" not in pane.inner_text()
        pane.get_by_role("button", name="Next" if number < len(lesson.steps) - 1 else "Finish").click()

    expect(pane.get_by_role("heading", name="Lessons")).to_be_visible()
    expect(page.get_by_label("Design name")).to_have_value("Two waves on four meshes")


def take_step(page: Page, pane: Locator, lesson: Lesson, step: Step) -> None:
    """Answer a step first wrongly, then correctly."""
    explanation = pane.locator(".mw-lesson-explanation")
    passed, failed = (pane.locator(f'.mw-lesson-verdict[data-passed="{each}"]') for each in ("true", "false"))
    match step.data.check:
        case NumberQuestion() as check:
            right = right_answer(lesson, check)
            answers = [f"{check.wrong:g}", f"{right:.6g}"]
            field = pane.locator(".mw-lesson-number")
        case Choice() as check:
            place = int(right_answer(lesson, check))
            answers, field = [str((place + 1) % len(check.options)), str(place)], None
        case Task() as check:
            expect(failed).to_be_visible()
            open_file(page, lesson.designs[check.solution])
            expect(passed).to_be_visible()
            return
        case Measurement():
            pane.get_by_role("button", name="Show the answer").click()
            expect(explanation).to_be_visible()
            return
        case _:
            return
    for answer, verdict in zip(answers, (failed, passed), strict=True):
        assert not explanation.is_visible()
        if field is not None:
            field.fill(answer)
            field.press("Enter")
        else:
            pane.locator(f'input[type="radio"][value="{answer}"]').check()
            pane.get_by_role("button", name="Answer", exact=True).click()
        expect(verdict).to_be_visible()
    expect(explanation).to_be_visible()


def open_file(page: Page, design: Design) -> None:
    """Open a design from a file, as a learner would."""
    file = {"name": "solution.json", "mimeType": "application/json", "buffer": design.to_json().encode()}
    page.locator('input[type="file"][accept*=".json"]').first.set_input_files(file)


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
    with serving() as serve:
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
