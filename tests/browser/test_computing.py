"""A prediction by a job: the messages of the page meanwhile, its end, and the order that a search finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from meshwave.designer.state import predictions
from meshwave.engine.document import Design, parse_design
from tests._strategies import document
from tests.designer import held

pytestmark = pytest.mark.browser

FOUND_MS = 120_000


@pytest.fixture
def shown(whole_page: Callable[[Design], Page]) -> Callable[[dict[str, Any], int], Page]:
    def show(pipeline: dict[str, Any], ranks: int) -> Page:
        page = whole_page(parse_design(document(pipeline, ranks, cost={"kind": "roofline"})))
        page.wait_for_function("window.meshwaveTimeline.layers.length === 1")
        return page

    return show


def test_the_page_stays_responsive_during_a_large_edit_that_can_be_stopped(
    shown: Callable[[dict[str, Any], int], Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shown({"schedule": "1f1b", "microbatches": 16}, 4)
    monkeypatch.setattr(predictions, "SMALL_WORK", 0)
    monkeypatch.setattr(predictions, "compute_prediction", held.compute_after_release)
    iteration = page.locator('.mw-tile[data-key="iteration"]')
    before = iteration.inner_text()
    page.get_by_role("button", name="Increase microbatches").click()
    words = page.locator(".mw-progress-words")
    expect(words).to_have_text("Computing: 50%, waiting for the test", timeout=FOUND_MS)
    expect(page.locator(".mw-timeline-stale")).to_contain_text("Showing the last valid design")
    expect(iteration).to_have_text(before, use_inner_text=True)
    page.get_by_role("tab", name="Problems").click()
    expect(page.get_by_text("the step is being computed").first).to_be_visible()

    page.get_by_role("button", name="Stop", exact=True).click()
    expect(words).to_have_text("The computation was stopped")
    expect(iteration).to_have_text(before, use_inner_text=True)
    held.let_go()
    page.get_by_role("button", name="Compute again", exact=True).click()

    expect(page.locator(".mw-computing")).to_be_hidden(timeout=FOUND_MS)
    expect(page.locator(".mw-timeline-stale")).to_be_hidden()
    expect(iteration).not_to_have_text(before, use_inner_text=True)
    page.keyboard.press("Control+z")
    expect(iteration).to_have_text(before, use_inner_text=True)


def test_a_better_order_is_offered_and_applied(shown: Callable[[dict[str, Any], int], Page]) -> None:
    page = shown({"schedule": "gpipe", "microbatches": 8}, 4)
    page.get_by_role("tab", name="Problems").click()
    better = page.get_by_role("region", name="Order search")
    better.get_by_role("button", name="Search", exact=True).click()
    expect(better).to_contain_text("The search found an order of these stages that takes", timeout=FOUND_MS)
    better.get_by_role("button", name="Apply").click()

    expect(page.get_by_role("region", name="Search results")).to_contain_text("Simulated", timeout=FOUND_MS)
    expect(better).to_be_hidden()
