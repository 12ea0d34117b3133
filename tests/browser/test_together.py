"""Two browsers in one design: links, live edits, marks, values that are offered back, and the read-only link."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from meshwave.designer.server.access import new_token
from meshwave.designer.server.serve import serve_in_thread
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.conftest import IDLE, new_context, watch

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with serve_in_thread(load_design(example("02-two-waves")), new_token()) as link:
        yield link


@pytest.fixture
def visit(browser: Browser, link: str) -> Iterator[Callable[[str], Page]]:
    """Open a link in a browser of its own, which has followed the link of the server."""
    complaints: list[str] = []
    contexts = []

    def visit(url: str) -> Page:
        contexts.append(new_context(browser))
        page = contexts[-1].new_page()
        watch(page, complaints)
        for each in (link, url):
            page.goto(each)
            page.wait_for_function(IDLE)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints, "\n".join(complaints)


def share_panel(page: Page) -> None:
    page.get_by_role("group", name="People who have this design open").get_by_role("button", name="Share").click()


def call_oneself(page: Page, name: str) -> None:
    share_panel(page)
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Change my name").click()
    expect(page.get_by_role("listitem").filter(has_text=f"{name} (you)")).to_be_visible()
    page.keyboard.press("Escape")


def rename(page: Page, name: str) -> None:
    page.get_by_label("Design name").fill(name)
    page.keyboard.press("Enter")


def test_two_people_edit_one_design_and_a_third_one_follows(link: str, visit: Callable[[str], Page]) -> None:
    ada = visit(link)
    share_panel(ada)
    ada.get_by_label("Share", exact=True).get_by_role("button", name="Share").click()
    edit, view = (ada.get_by_label(name, exact=True).input_value() for name in ("link", "read-only link"))
    ada.keyboard.press("Escape")
    call_oneself(ada, "Ada")

    ben = visit(edit)
    call_oneself(ben, "<b>Ben</b>")
    expect(ada.get_by_role("img", name="<b>Ben</b>")).to_be_visible()
    expect(ada.get_by_role("status").filter(has_text="joined.")).to_be_attached()

    # Edits appear on both pages, and the selected mesh is marked with the name.
    ben.locator("[data-device='1']").click()
    expect(ada.locator(".mw-mesh.mw-flagged .mw-flag")).to_have_text("<b>Ben</b>")
    ada.get_by_role("button", name="Increase microbatches").click()
    expect(ben.get_by_label("microbatches", exact=True)).to_have_value("5")
    rename(ben, "by Ben")
    expect(ada.get_by_label("Design name")).to_have_value("by Ben")

    # A comment is text, and is marked on its mesh.
    text = "<img src=x onerror=document.title='hacked'>"
    ben.get_by_role("tab", name="Comments").click()
    ben.get_by_label("Comment on", exact=True).select_option("Mesh B")
    ben.get_by_label("Comment", exact=True).fill(text)
    ben.get_by_role("button", name="Add comment").click()
    expect(ada.locator(".mw-flag").filter(has_text="1 comment")).to_be_visible()
    expect(ada.get_by_role("tab", name="Comments")).to_contain_text("1")
    ada.get_by_role("tab", name="Comments").click()
    expect(ada.get_by_text(text)).to_be_visible()
    ada.get_by_role("button", name="Resolve the comment of <b>Ben</b> on Mesh B").click()
    expect(ada.locator(".mw-flag").filter(has_text="1 comment")).to_be_hidden()
    ben.get_by_role("button", name="Delete the comment of <b>Ben</b> on Mesh B").click()
    expect(ada.get_by_text("No comments yet.")).to_be_visible()

    # A value that somebody else changes is offered back.
    rename(ada, "by Ada")
    expect(ben.get_by_text("Ada changed name from by Ben to by Ada")).to_be_visible()
    ben.get_by_role("button", name="Restore my value").click()
    expect(ada.get_by_label("Design name")).to_have_value("by Ben")
    expect(ben.get_by_text("Ada changed name")).to_be_hidden()
    ada.get_by_role("button", name="Accept the change").click()

    # Undo reverts own edits only, also after a reload.
    ada.reload()
    ada.wait_for_function(IDLE)
    expect(ada.get_by_role("img", name="Ada (you)")).to_be_visible()
    ada.get_by_role("button", name=re.compile("Undo: rename to by Ada")).click()
    expect(ada.get_by_role("alert").filter(has_text="others have changed all of its values")).to_be_visible()
    ada.get_by_role("button", name=re.compile("Undo: .*microbatches")).click()
    expect(ben.get_by_label("microbatches", exact=True)).to_have_value("4")
    expect(ben.get_by_label("Design name")).to_have_value("by Ben")

    # The read-only link follows and changes nothing. What another person types meanwhile stays.
    share_panel(ben)
    ben.get_by_label("Your name").fill("Benja")
    viewer = visit(view)
    expect(ben.get_by_role("listitem").filter(has_text="read-only")).to_be_visible()
    ben.keyboard.type("min")
    expect(ben.get_by_label("Your name")).to_have_value("Benjamin")
    ben.keyboard.press("Escape")
    expect(viewer.get_by_text("Read-only", exact=True)).to_be_visible()
    rename(viewer, "by the viewer")
    expect(viewer.get_by_text("this page is read-only")).to_be_visible()
    viewer.get_by_role("button", name="Dry run").click()
    expect(viewer.get_by_text("this page is read-only").nth(1)).to_be_visible()
    rename(ben, "again by Ben")
    expect(viewer.get_by_label("Design name")).to_have_value("again by Ben")

    ben.close()
    expect(ada.get_by_role("status").filter(has_text="<b>Ben</b> left.")).to_be_attached()
