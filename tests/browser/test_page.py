"""The whole loop in a real browser: draw, see, launch, compare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from designer.server import read_design, served

pytestmark = [pytest.mark.browser, pytest.mark.torch]

TOKEN = "a-token-for-tests"
RUN_MS = 60_000


@pytest.fixture
def designer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Start the designer as ``meshwave serve`` does, on a design; returns its link."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with ExitStack() as stack:
        yield lambda design: stack.enter_context(served(read_design(design), TOKEN))


def iteration(page: Page) -> str:
    return page.locator('.mw-tile[data-key="iteration"]').inner_text()


def changes(page: Page, before: str) -> None:
    expect(page.locator('.mw-tile[data-key="iteration"]')).not_to_have_text(before, use_inner_text=True)


def test_nothing_scrolls_and_everything_is_on_one_screen(
    designer: Callable[[str], str], visit: Callable[[str], Page]
) -> None:
    page = visit(designer("01-first-wave"))

    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == [1440, 900]
    for view in (".mw-cluster", ".mw-wave", ".mw-numbers"):
        box = page.locator(view).bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 1440 and box["y"] + box["height"] <= 900
    assert page.evaluate("window.meshwaveTimeline.layers.length") == 1


def test_a_second_visit_finds_everything_too(designer: Callable[[str], str], visit: Callable[[str], Page]) -> None:
    link = designer("01-first-wave")
    visit(link)
    page = visit(link)

    expect(page.locator('.mw-tile[data-key="iteration"]')).to_contain_text("36")


def test_draw_a_mesh_add_a_wave_and_undo(designer: Callable[[str], str], visit: Callable[[str], Page]) -> None:
    page = visit(designer("01-first-wave"))
    page.get_by_role("button", name="one device a node more").click()  # an unused device to draw on
    expect(page.locator(".mw-device")).to_have_count(5)
    before = iteration(page)

    free = page.locator('.mw-device[data-device="4"]').bounding_box()
    assert free
    page.mouse.move(free["x"] + 6, free["y"] + 6)
    page.mouse.down()
    page.mouse.move(free["x"] + free["width"] - 6, free["y"] + free["height"] - 6, steps=4)
    page.mouse.up()
    changes(page, before)
    assert page.evaluate("window.meshwaveTimeline.layers[0].ranks") == 5

    drawn = iteration(page)
    page.keyboard.press("Control+z")
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(before, use_inner_text=True)
    page.keyboard.press("Control+Shift+Z")
    expect(page.locator('.mw-tile[data-key="iteration"]')).to_have_text(drawn, use_inner_text=True)
    page.keyboard.press("Control+z")

    page.get_by_role("button", name=re.compile("one wave(s)? more")).click()
    changes(page, before)
    expect(page.locator('.mw-tile[data-key="bubble"]')).to_contain_text("20")


def test_pinning_shows_both_timelines_and_the_change(
    designer: Callable[[str], str], visit: Callable[[str], Page]
) -> None:
    page = visit(designer("01-first-wave"))
    page.get_by_role("button", name=re.compile("^Pin")).first.click()
    page.get_by_role("button", name=re.compile("one wave(s)? more")).click()

    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    expect(page.locator('.mw-tile[data-key="bubble"]')).to_contain_text("better")


def test_wrong_input_is_told_at_its_field_and_the_last_good_timeline_stays(
    designer: Callable[[str], str], visit: Callable[[str], Page]
) -> None:
    page = visit(designer("01-first-wave"))
    field = page.get_by_label("Layers", exact=True)
    field.fill("3")
    field.press("Enter")

    expect(page.get_by_text(re.compile("8 stages need at least 8 layers")).first).to_be_visible()
    assert page.evaluate("window.meshwaveTimeline.layers.length") == 1
    field.fill("-3")
    field.press("Enter")
    assert field.get_attribute("aria-invalid") == "true"


def test_launch_follow_and_overlay(designer: Callable[[str], str], visit: Callable[[str], Page]) -> None:
    page = visit(designer("05-hanayo-as-chimera"))
    page.get_by_role("button", name="Launch").first.click()
    expect(page.locator(".mw-run .mw-state")).to_have_text("done", timeout=RUN_MS)

    losses = page.evaluate("window.meshwaveRuns.model.losses")
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    assert page.evaluate("window.meshwaveTimeline.layers[1].source") == "measured"
    expect(page.locator(".mw-compare")).to_contain_text("iteration")


def test_cancel_and_reload(designer: Callable[[str], str], visit: Callable[[str], Page]) -> None:
    page = visit(designer("01-first-wave"))
    steps = page.get_by_label("Steps", exact=True)
    steps.fill("100000")
    steps.press("Enter")
    page.get_by_role("button", name="Launch").first.click()
    page.wait_for_function("window.meshwaveRuns.model.losses.length > 2", timeout=RUN_MS)

    page.wait_for_url("**/?draft=*")
    page.reload()
    page.wait_for_function("window.meshwaveRuns?.model.losses.length > 2", timeout=RUN_MS)
    page.wait_for_function("document.querySelector('body') && window.meshwaveRuns.model.run.total === 100000")
    page.get_by_role("tab", name="Run").or_(page.get_by_text("Run", exact=True)).first.click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".mw-run .mw-state")).to_have_text("cancelled", timeout=5000)


def test_without_the_token_nothing_is_shown(designer: Callable[[str], str], page: Page, complaints: list[str]) -> None:
    link = designer("01-first-wave")
    response = page.goto(link.split("?")[0])
    assert response and response.status == 403
    expect(page.get_by_text("Open the designer by the link")).to_be_visible()

    wrong = page.goto(link + "x")
    assert wrong and wrong.status == 403
    foreign = page.request.get(link, headers={"Host": "example.org"})
    assert foreign.status == 403
    complaints.clear()  # the browser logs each refusal as an error
