"""The layout of the page in a real browser: splitters, the drawer of narrow windows, and one pane in small ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.browser.gestures import eventually, wait_for_paint

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
FORGET = "document.documentElement.removeAttribute('style')"


@pytest.fixture
def page(whole_page: Callable[..., Page]) -> Page:
    page = whole_page(load_design(example("01-first-wave")))
    page.evaluate(FORGET)
    return page


def resize(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    wait_for_paint(page)


def size(found: Locator) -> tuple[float, float]:
    box = found.bounding_box()
    assert box is not None
    return box["width"], box["height"]


def test_the_reason_why_memory_does_not_fit_is_above_its_bar(whole_page: Callable[..., Page]) -> None:
    design = load_design(example("10-bert-on-tacc"))
    small = design.cluster.device.model_copy(update={"memory_bytes": 4e9})
    cluster = design.cluster.model_copy(update={"device": small})
    page = whole_page(design.model_copy(update={"cluster": cluster}))
    tile = page.locator('.mw-tile[data-key="memory"]')
    expect(tile).to_contain_text("does not fit")

    for width in (820, 1280, 1440, 1920):
        resize(page, width)
        parts = (".mw-name-of", ".mw-small", ".mw-bar-track")
        name, reason, track = (tile.locator(part).bounding_box() for part in parts)
        whole = tile.bounding_box()
        assert name and reason and track and whole
        assert whole["y"] <= name["y"]
        assert reason["y"] + reason["height"] <= track["y"] + 1


def test_the_reason_why_a_launch_is_not_possible_has_room_on_a_narrow_page(page: Page) -> None:
    for width in (720, 820, 1090):
        resize(page, width)
        assert size(page.locator(".mw-launchbar-words"))[0] >= 150, width
        for name in (re.compile("^Launch "), "Dry run", "Use this cluster"):
            expect_inside(page, page.get_by_role("button", name=name))


def test_the_name_of_a_pinned_design_leaves_room_for_the_end_of_the_comparison(page: Page) -> None:
    page.get_by_role("button", name="Pin this design").click()
    end = page.get_by_role("button", name="End comparison")
    for width in (820, 1280):
        resize(page, width)
        expect_inside(page, end)


def test_splitters_are_dragged_moved_by_keys_and_reset(page: Page) -> None:
    wave, side = page.locator(".mw-area-wave"), page.locator(".mw-area-side")
    lower = page.get_by_role("separator", name="Height of the canvases")
    at = lower.bounding_box()
    assert at is not None
    page.mouse.move(at["x"] + 50, at["y"] + 3)
    page.mouse.down()
    page.mouse.move(at["x"] + 50, at["y"] + 83, steps=3)
    page.mouse.up()
    assert size(wave)[1] == pytest.approx(380, abs=2)
    lower.dblclick()
    assert size(wave)[1] == pytest.approx(300, abs=1)
    lower.dblclick()
    assert size(wave)[1] == pytest.approx(0, abs=1)  # the timeline is maximized
    lower.dblclick()

    page.get_by_role("separator", name="Width of the side panel").press("ArrowLeft")
    assert size(side)[0] == pytest.approx(336, abs=1)

    inner, (before, _) = page.get_by_role("separator", name="Width of the cluster"), size(wave)
    at = inner.bounding_box()
    assert at is not None
    page.mouse.move(at["x"] + 3, at["y"] + 50)
    page.mouse.down()
    page.mouse.move(at["x"] + 53, at["y"] + 50, steps=3)
    page.mouse.up()
    assert size(wave)[0] == pytest.approx(before - 50, abs=7)
    inner.dblclick()
    assert size(wave)[0] == pytest.approx(before, abs=2)
    page.evaluate(FORGET)


def test_large_text_zooms_the_page_and_the_pointer_hits_what_it_points_at(page: Page) -> None:
    resize(page, 1280)
    side, picker = page.locator(".mw-area-side"), page.get_by_role("button", name="Theme, text size and language")
    expect(side).to_be_visible()

    picker.click()
    page.get_by_role("menuitemradio", name="Large text, for a projector").click()
    wait_for_paint(page)
    expect(side).not_to_be_visible()  # 1280 window pixels are 1024 page pixels
    assert page.evaluate("localStorage.getItem('meshwave.text-size')") == "large"

    wave, at = (
        page.locator(".mw-area-wave"),
        page.get_by_role("separator", name="Height of the canvases").bounding_box(),
    )
    assert at is not None
    assert size(wave)[1] == pytest.approx(1.25 * 240, abs=2)
    page.mouse.move(at["x"] + 50, at["y"] + 3)
    page.mouse.down()
    page.mouse.move(at["x"] + 50, at["y"] - 47, steps=3)
    page.mouse.up()
    assert size(wave)[1] == pytest.approx(1.25 * 240 - 50, abs=2)

    picker.click()
    menu, button = page.get_by_role("menu", name="Theme, text size and language").bounding_box(), picker.bounding_box()
    assert menu is not None and button is not None
    assert menu["y"] == pytest.approx(button["y"] + button["height"] + 5, abs=2)
    page.get_by_role("menuitemradio", name="Normal text").click()
    expect(side).to_be_visible()
    page.evaluate(FORGET)


def test_the_side_panel_of_a_narrow_window_is_a_drawer(page: Page) -> None:
    resize(page, 820)
    form = page.get_by_label("Layers", exact=True)
    expect(form).not_to_be_visible()
    page.get_by_role("button", name="Side panel").click()
    expect(form).to_be_visible()
    page.get_by_role("button", name="Side panel").click()
    expect(form).not_to_be_visible()
    page.evaluate(FORGET)


def test_f6_moves_the_focus_from_pane_to_pane(page: Page) -> None:
    resize(page, 1280)
    areas = ["top", "numbers", "launch", "cluster", "wave", "timeline", "side", "top"]
    page.get_by_role("link", name="Meshwave start page").focus()
    for key, visited in (("F6", areas), ("Shift+F6", areas[::-1])):
        for area in visited[1:]:
            page.keyboard.press(key)
            assert page.locator(f".mw-area-{area}").evaluate("pane => pane.matches(':focus-within')"), (key, area)


def test_a_small_window_shows_one_pane_at_a_time(page: Page) -> None:
    resize(page, 390)
    stage = page.locator(".mw-timeline-stage")
    expect(stage).to_be_visible()
    for pane, shown in (("Pipeline", ".mw-wave"), ("Cluster", ".mw-cluster"), ("Timeline", ".mw-timeline-stage")):
        page.get_by_role("navigation", name="Pane").get_by_role("button", name=pane).click()
        expect(page.locator(shown).first).to_be_visible()
        assert size(page.locator(shown).first)[0] > 280
    page.get_by_role("button", name="Cluster", exact=True).first.click()
    expect(stage).not_to_be_visible()
    page.evaluate(FORGET)


def test_the_selected_tab_of_the_dock_is_in_view(page: Page) -> None:
    runs = page.get_by_role("tab", name="Runs")
    resize(page, 1280)
    runs.click()
    resize(page, 390)
    expect_inside(page, runs)
    page.get_by_role("tab", name="Timeline").click()
    expect_inside(page, page.get_by_role("tab", name="Timeline"))
    page.evaluate(FORGET)


def test_a_panel_of_the_timeline_is_below_the_lanes_of_a_small_window(page: Page) -> None:
    resize(page, 390)
    page.locator(".mw-timeline-stage").press("c")
    panel = page.locator(".mw-timeline-panel")
    expect(panel).to_be_visible()
    assert size(panel)[0] == pytest.approx(390, abs=2)
    assert size(page.locator(".mw-timeline-stage"))[0] == pytest.approx(390, abs=2)
    page.locator(".mw-timeline-stage").press("c")
    page.evaluate(FORGET)


def test_keys_in_the_command_palette_and_items_of_menus_fit_into_a_small_window(page: Page) -> None:
    resize(page, 390)
    page.keyboard.press("Control+k")
    for key in page.locator(".mw-command kbd").all()[:12]:
        expect_inside_of(key, page.locator(".mw-command-palette"))
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Help", exact=True).click()
    item = page.get_by_role("menuitem", name="Keyboard shortcuts").locator(".mw-item-text")
    assert size(item)[1] < 25  # one line
    page.keyboard.press("Escape")
    page.evaluate(FORGET)


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_the_top_bar_and_its_panels_fit_into_the_window(page: Page, width: int) -> None:
    resize(page, width)
    for name in ("Open a design", "Examples", "Save as", "Export", "Undo", "Help", "Theme, text size and language"):
        expect_inside(page, page.get_by_role("button", name=name, exact=True))
    for name in ("Examples", "Save as", "Export"):
        page.get_by_role("button", name=name, exact=True).click()
        expect_inside(page, page.locator(".mw-drop:popover-open"))
        page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_long_refusal_and_all_tools_are_reachable_in_a_narrow_window(page: Page) -> None:
    resize(page, 820)
    for bar in (".mw-timeline-bar", ".mw-wave .mw-bar"):
        for button in page.locator(f"{bar} button").filter(visible=True).all():
            expect_inside(page, button)
    refusal, tip = page.locator(".mw-launchbar-words"), page.locator(".mw-launchbar .mw-tip")
    page.evaluate(
        """(notice) => Bokeh.documents.flatMap((document) => [...document._all_models.values()])
             .filter(({ data }) => data?.launchable).forEach(({ data }) => data.setv({ notice }))""",
        "The last of many words. " * 20,
    )
    expect(refusal).to_contain_text("The last of many words.")
    refusal.click()
    expect(tip).to_contain_text("The last of many words.")
    page.keyboard.press("Tab")
    expect(tip).to_be_hidden()
    page.keyboard.press("Shift+Tab")
    expect(tip).to_be_visible()
    page.evaluate(FORGET)


def expect_inside_of(found: Locator, outer: Locator) -> None:
    box, around = found.bounding_box(), outer.bounding_box()
    assert box is not None and around is not None
    assert around["x"] <= box["x"] and box["x"] + box["width"] <= around["x"] + around["width"] + 0.5


def expect_inside(page: Page, found: Locator) -> None:
    def is_inside() -> bool:
        box = found.bounding_box()
        assert box is not None and page.viewport_size is not None
        return box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"] + 0.5

    eventually(page, is_inside)


def test_experts_fit_into_a_small_window(whole_page: Callable[..., Page]) -> None:
    page = whole_page(load_design(example("16-gpt2-moe")))
    resize(page, 390)
    page.get_by_role("navigation", name="Pane").get_by_role("button", name="Cluster").click()
    page.get_by_role("button", name="Experts", exact=True).first.click()
    for name in ("Traffic", "Compare schedules"):
        expect_inside(page, page.get_by_role("button", name=name, exact=True))
    page.get_by_role("button", name="Traffic", exact=True).click()
    expect_inside(page, page.get_by_role("dialog", name="Traffic"))
    page.evaluate(FORGET)
