"""Clicks on a control that is drawn again between press and release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from meshwave.designer.lessons.board import Board
from meshwave.engine.lessons.classroom import Classroom
from meshwave.engine.lessons.workshop import read_workshop
from tests.browser.gestures import centre

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser
PLAN = Path(__file__).parents[2] / "docs/examples/workshop.toml"


TWINS = """() => {
    const list = Object.assign(document.createElement("div"), { id: "twins", style: "position: fixed; inset: 0" });
    const twin = () => {
        const button = Object.assign(document.createElement("button"), { textContent: "Accept" });
        button.onclick = () => (list.title += "clicked ");
        return button;
    };
    list.draw = () => list.replaceChildren(twin(), twin());
    list.draw();
    document.body.append(list);
}"""
"""Script that adds two buttons of the same name, and records clicks on them in the title of their list."""


@pytest.fixture
def classroom(tmp_path: Path) -> Iterator[Classroom]:
    classroom = Classroom(tmp_path, read_workshop(PLAN))
    classroom.join(classroom.code, "Ada")
    yield classroom
    classroom.close()


@pytest.fixture
def change(stage: Stage, classroom: Classroom) -> Callable[[Callable[[], Any]], None]:
    """Show the teacher's board, and return a function that changes the workshop and draws the board again."""
    boards: list[Board] = []

    def show() -> Board:
        boards.append(Board(classroom, "http://localhost", lambda *_: "", lambda _: pytest.fail("shared"), width=1000))
        return boards[0]

    stage.show(show)

    def change(call: Callable[[], Any]) -> None:
        call()
        stage.run(boards[0].refresh)

    return change


@pytest.fixture
def page(stage: Stage, change: Any) -> Page:
    return stage.page


def press(page: Page, name: str) -> None:
    page.mouse.move(*centre(page.get_by_role("button", name=name, exact=True)))
    page.mouse.down()


def test_a_click_counts_once_if_its_button_is_drawn_again(page: Page, classroom: Classroom, change: Any) -> None:
    [ada], lesson = classroom.people(), next(iter(classroom.workshop.lessons))
    press(page, "Remove Ada")
    change(lambda: classroom.record_open_step(ada.id, lesson, 0, ""))
    expect(page.get_by_role("row", name="Ada")).not_to_contain_text("no lesson open")
    page.mouse.up()

    expect(page.get_by_role("button", name="Remove Ada and the scores")).to_be_visible()
    assert classroom.people()


def test_a_click_is_dropped_if_another_control_has_taken_the_place(
    page: Page, classroom: Classroom, change: Any
) -> None:
    press(page, "Remove Ada")
    change(lambda: (classroom.remove(classroom.people()[0].id), classroom.join(classroom.code, "Bob")))
    expect(page.get_by_role("button", name="Remove Bob")).to_be_visible()
    page.mouse.up()
    page.get_by_role("button", name="Remove Bob").hover()

    expect(page.get_by_role("button", name="Remove Bob and the scores")).to_have_count(0)


def test_a_click_is_dropped_if_its_successor_is_not_the_only_one_of_its_name(page: Page) -> None:
    page.evaluate(TWINS)
    twins = page.locator("#twins")
    page.mouse.move(*centre(twins.get_by_role("button").first))
    page.mouse.down()
    twins.evaluate("list => list.draw()")
    page.mouse.up()
    page.get_by_role("button", name="Accept").last.click()

    expect(twins).to_have_attribute("title", "clicked ")  # the click of the last line
    twins.evaluate("list => list.remove()")
