"""Tabs in a real browser: a duplicated tab has its own draft, a reloaded tab keeps its draft, and no tab flashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshwave.designer.pages.design_page import page
from meshwave.designer.state.studio import IsShown, Studio
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.runs.launchers import launchers
from tests.browser.gestures import eventually
from tests.conftest import IDLE, open_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
LINK = "**/?draft=*"


@pytest.fixture
def claimed_drafts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drafts of the tabs in their order; a page claims its draft last."""
    found: list[str] = []
    claim = Studio.claim_draft

    def wait_for_messages(studio: Studio, draft: str, is_shown: IsShown) -> str:
        found.append(claim(studio, draft, is_shown))
        return found[-1]

    monkeypatch.setattr(Studio, "claim_draft", wait_for_messages)
    return found


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)  # nothing is launched here
    studio = Studio(load_design(example("01-first-wave")))
    with open_server() as serve:
        yield serve(lambda: page(studio))
    studio.close()  # when no page looks at its runs any more


def rename(tab: Page, name: str) -> None:
    field = tab.get_by_label("Design name")
    field.fill(name)
    field.press("Enter")
    expect(tab).to_have_title(f"• {name} · Meshwave")


def reload(tab: Page, claimed_drafts: list[str]) -> None:
    """Reload the page and wait until it has its draft again."""
    address, before = tab.url, len(claimed_drafts)
    tab.reload()
    tab.wait_for_function(IDLE)
    eventually(tab, lambda: len(claimed_drafts) > before)
    assert claimed_drafts[-1] == address.rpartition("draft=")[2]
    expect(tab).to_have_url(address)


def test_a_reloaded_tab_keeps_its_draft_and_a_duplicated_one_gets_its_own(
    link: str, visit: Callable[[str], Page], claimed_drafts: list[str]
) -> None:
    first = visit(link)
    first.wait_for_url(LINK)
    rename(first, "one")
    address = first.url

    second = first.context.new_page()
    second.goto(address)
    second.wait_for_url(lambda url: url != address)
    expect(second.get_by_label("Design name")).to_have_value("one")
    rename(second, "two")
    reload(first, claimed_drafts)
    reload(second, claimed_drafts)

    expect(first.get_by_label("Design name")).to_have_value("one")
    expect(second.get_by_label("Design name")).to_have_value("two")


@pytest.mark.parametrize(("kept", "colour"), [("dark", "rgb(14, 15, 18)"), ("light", "rgb(236, 238, 242)")])
def test_the_stored_theme_is_set_before_the_first_paint(
    link: str, page: Page, complaints: list[str], kept: str, colour: str
) -> None:
    page.route("**/static/**", lambda route: route.abort())  # nothing is drawn for lack of libraries
    page.add_init_script(
        f"""localStorage.setItem("meshwave.theme", "{kept}");
        document.addEventListener("DOMContentLoaded", () => {{
          window.atFirst = [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor];
        }});"""
    )
    page.goto(link, wait_until="domcontentloaded")

    assert page.evaluate("window.atFirst") == [kept, colour]
    page.unroute_all()
    page.goto("about:blank")
    complaints.clear()  # what is missing is logged as an error
