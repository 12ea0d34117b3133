"""The start page in a real browser: new designs, the library, examples, lessons, files and links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshwave.engine.document import load_design
from meshwave.engine.document.links import design_link
from meshwave.engine.files import example
from meshwave.engine.predict.similar_runs import predicted_published_runs
from tests.browser.gestures import eventually
from tests.conftest import IDLE

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from meshwave.designer.state.studio import Studio
    from tests.browser.conftest import Server

pytestmark = pytest.mark.browser
FIRST = load_design(example("01-first-wave"))


@pytest.fixture
def page(served_page: Page) -> Page:
    return served_page


@pytest.fixture
def link(kept_server: Server) -> str:
    return kept_server.link


@pytest.fixture
def start(link: str, visit: Callable[[str], Page]) -> Page:
    return visit(link)


def card(page: Page, name: str) -> Locator:
    return page.locator("[data-design]").filter(has=page.get_by_text(name, exact=True))


def choose_action(page: Page, name: str, action: str) -> None:
    page.get_by_role("button", name=f"Actions on {name}", exact=True).click()
    page.get_by_role("menuitem", name=action).click()


@contextmanager
def on_designer(page: Page) -> Iterator[None]:
    """Run an action that opens the designer in this tab."""
    yield
    page.wait_for_function(f"window.meshwaveTimeline && {IDLE}")


def test_a_new_pipeline_is_saved_automatically_and_listed_with_its_picture(start: Page, link: str) -> None:
    with on_designer(start):
        start.get_by_role("link", name="Pipeline Draw").click()
    start.get_by_role("button", name="Increase microbatches").click()
    expect(start.get_by_role("button", name="Undo: ")).to_be_visible()

    start.get_by_role("link", name="Start page").click()

    mine = card(start, "New pipeline design")
    expect(mine).to_contain_text("1F1B · 4 meshes")
    expect(mine.locator("svg path").first).to_be_attached()
    with on_designer(start):
        mine.get_by_role("link").click()
    start.get_by_role("button", name="Undo: ").click()  # the history survived
    expect(start.get_by_role("button", name="Redo: ")).to_be_visible()
    start.get_by_role("link", name="Start page").click()
    recent = start.get_by_role("region", name="Recent").get_by_role("link")
    expect(recent.first).to_contain_text("New pipeline designDesign")


@pytest.mark.nightly
def test_a_new_design_opens_the_experts_or_the_transfer_lab(start: Page, link: str) -> None:
    with on_designer(start):
        start.get_by_role("link", name="Experts Place").click()
    expect(start.locator(".mw-experts").first).to_be_visible()
    start.goto(link)
    start.get_by_role("link", name="Transfer lab").click()
    start.locator(".mw-tr-task").first.wait_for()


@pytest.mark.nightly
def test_published_runs_show_published_and_predicted_step_time(start: Page) -> None:
    published = start.get_by_role("region", name="Published runs").locator('a[href="./?example=gpt-530b"]')
    error = next(run.error for run in predicted_published_runs() if run.id == "korthikanti22-530B-seqsel")
    compared = f"published 37.8 s, predicted {error:+.1%}".replace("-", "−")

    expect(published).to_contain_text(compared)
    expect(published).to_contain_text("arXiv:2205.05198, table 5")
    with on_designer(start):
        published.click()
    expect(start.get_by_text(compared).first).to_be_visible()


def test_back_leaves_the_designer_at_once(start: Page) -> None:
    entries = start.evaluate("history.length")
    with on_designer(start):
        start.get_by_role("region", name="Examples").locator('a[href="./?example=04-chimera"]').click()
    start.wait_for_url("**/?example=04-chimera&draft=*")

    assert start.evaluate("history.length") == entries + 1
    start.go_back()
    expect(start.get_by_role("heading", name="Examples")).to_be_visible()


def test_examples_have_pictures_and_open_as_new_designs(start: Page, studio: Studio, link: str) -> None:
    mine = studio.library.add(FIRST.model_copy(update={"name": "mine"}))
    chimera = start.get_by_role("region", name="Examples").locator('a[href="./?example=04-chimera"]')
    expect(chimera.locator("svg path").first).to_be_attached()
    with on_designer(start):
        chimera.click()
    start.wait_for_url("**&draft=*")
    address = start.url
    start.reload()
    start.wait_for_function(IDLE)
    expect(start.get_by_label("Design name")).to_have_value("Chimera: two replicas on four meshes")
    assert start.url == address

    start.goto(f"{link}?draft={mine}")
    start.wait_for_function(f"window.meshwaveTimeline && {IDLE}")
    start.get_by_role("button", name="Examples").click()
    start.get_by_role("menuitem", name="Chimera: two").click()
    expect(start.get_by_label("Design name")).to_have_value("Chimera: two replicas on four meshes")
    eventually(start, lambda: mine not in start.url)
    assert studio.library.read(mine).name == "mine"


def test_designs_are_renamed_tagged_searched_compared_deleted_and_restored(start: Page, studio: Studio) -> None:
    studio.library.add(FIRST.model_copy(update={"name": "one"}))
    studio.library.add(load_design(example("02-two-waves")).model_copy(update={"name": "two"}))
    start.reload()
    choose_action(start, "one", "Rename")
    start.get_by_label("Name", exact=True).fill("uno")
    start.keyboard.press("Enter")
    expect(card(start, "uno")).to_be_visible()
    choose_action(start, "uno", "Tags")
    start.get_by_label("Tags, separated by commas").fill("no")
    start.keyboard.press("Escape")
    choose_action(start, "uno", "Tags")
    start.get_by_label("Tags, separated by commas").fill("slides")
    start.get_by_role("heading", name="Examples").click()
    start.get_by_role("button", name="slides").click()
    expect(start.locator("[data-design]")).to_have_count(1)
    start.get_by_role("button", name="slides").click()
    start.get_by_label("Search designs").fill("tw")
    expect(start.locator("[data-design]")).to_have_count(1)
    start.get_by_label("Search designs").fill("")

    choose_action(start, "uno", "Compare with")
    card(start, "two").get_by_role("link").click()
    expect(start.get_by_role("dialog")).to_contain_text("waves 1 → 2")
    start.keyboard.press("Escape")

    choose_action(start, "two", "Delete")
    expect(card(start, "two")).to_have_count(0)
    start.get_by_role("button", name="Undo").click()
    expect(card(start, "two")).to_be_visible()
    choose_action(start, "two", "Duplicate")
    expect(card(start, "two (copy)")).to_be_visible()


@pytest.mark.parametrize("path", ["", pytest.param("start", marks=pytest.mark.nightly)])
def test_a_link_that_contains_a_design_opens_the_design(link: str, path: str, page: Page, studio: Studio) -> None:
    page.goto(f"{link}{path}#{design_link(FIRST.model_copy(update={'name': 'from a link'}))}")
    page.wait_for_url("**/?draft=*")
    expect(page.get_by_label("Design name")).to_have_value("from a link")


@pytest.mark.nightly
def test_the_designer_copies_a_link_that_contains_the_design(link: str, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with on_designer(page):
        page.goto(f"{link}?example=02-two-waves")
    page.get_by_role("button", name="Export").click()
    page.get_by_role("menuitem", name="Copy link").click()
    expect(page.get_by_text("Link copied")).to_be_visible()

    page.goto(str(page.evaluate("navigator.clipboard.readText()")))

    page.wait_for_url("**/?draft=*")
    expect(page.get_by_label("Design name")).to_have_value("Two waves on four meshes")


def test_a_file_is_opened_and_an_invalid_file_is_refused(start: Page, tmp_path: Path) -> None:
    broken, sound = tmp_path / "broken.json", tmp_path / "sound.json"
    broken.write_text("{")
    sound.write_text(json.dumps(FIRST.model_dump(mode="json") | {"name": "from a file"}))
    chooser = start.get_by_label("Design file")
    chooser.set_input_files(broken)
    expect(start.get_by_text("broken.json was not opened")).to_be_visible()

    with on_designer(start):
        chooser.set_input_files(sound)
    expect(start.get_by_label("Design name")).to_have_value("from a file")


def test_a_named_version_is_saved_and_restored(link: str, page: Page) -> None:
    with on_designer(page):
        page.goto(f"{link}?example=02-two-waves")
    page.get_by_role("button", name="Versions").click()
    page.get_by_label("Version name").fill("before")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Same as the open design")).to_be_visible()
    name = page.get_by_label("Version name")
    expect(name).to_have_value("")
    name.fill("x" * 1000)
    page.keyboard.press("Enter")
    expect(page.locator(".mw-trouble-head")).to_be_visible()
    expect(name).to_have_value("x" * 1000)  # refused, to be shortened
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Increase microbatches").click()
    page.get_by_role("button", name="Versions").click()
    expect(page.get_by_text("Differs: microbatches")).to_be_visible()

    page.get_by_role("button", name="Restore before").click()

    expect(page.get_by_role("button", name="Undo: restore version before")).to_be_visible()


@pytest.mark.nightly
def test_a_first_visit_offers_the_guided_tour_and_a_later_one_the_lessons(start: Page) -> None:
    with on_designer(start):
        start.get_by_role("link", name="Guided tour").click()
    expect(start.locator(".mw-lesson")).to_contain_text("A tour of the page")
    start.get_by_role("button", name="Next").click()
    start.get_by_role("heading", name="The stages").wait_for()

    start.get_by_role("link", name="Start page").click()

    expect(start.get_by_role("link", name="A tour of the page started")).to_be_visible()
    expect(start.get_by_role("link", name="Guided tour")).to_have_count(0)
    with on_designer(start):
        start.get_by_role("link", name="Why pipelines").click()
    expect(start.locator(".mw-lesson")).to_contain_text("Why pipelines")


@pytest.mark.parametrize("width", [390, *(pytest.param(wide, marks=pytest.mark.nightly) for wide in (820, 1920))])
def test_the_start_page_fits_every_width(start: Page, studio: Studio, width: int) -> None:
    studio.library.add(FIRST)
    start.reload()
    start.set_viewport_size({"width": width, "height": 800})
    card(start, FIRST.name).wait_for()

    assert start.evaluate("document.documentElement.scrollWidth") == width
    body = start.locator(".mw-start")
    assert body.evaluate("(element) => element.scrollWidth <= element.clientWidth")
