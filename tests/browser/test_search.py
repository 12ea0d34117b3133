"""A search for an order on the whole page: what it says meanwhile, its end, and the order that it offers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from meshwave.engine.document import Design, parse_design
from tests._strategies import document

pytestmark = pytest.mark.browser

FOUND_MS = 120_000


@pytest.fixture
def shown(whole_page: Callable[[Design], Page]) -> Callable[[dict[str, Any], int], Page]:
    def show(pipeline: dict[str, Any], ranks: int) -> Page:
        page = whole_page(parse_design(document(pipeline, ranks, cost={"kind": "roofline"})))
        page.wait_for_function("window.meshwaveTimeline.layers.length === 1")
        return page

    return show


def test_a_long_search_leaves_the_page_alive_and_is_stopped(shown: Callable[[dict[str, Any], int], Page]) -> None:
    page = shown({"schedule": "1f1b", "microbatches": 1500}, 8)
    iteration = page.locator('.mw-tile[data-key="iteration"]')
    before = iteration.inner_text()
    page.get_by_role("combobox", name="Schedule").select_option(label="Auto")
    said = page.locator(".mw-search-words")
    expect(said).to_contain_text(re.compile(r"Searching an order: \d+ %"))
    expect(page.locator(".mw-timeline-stale")).to_contain_text("This is the last good design")
    expect(iteration).to_have_text(before, use_inner_text=True)
    page.get_by_role("tab", name="Problems").click()
    expect(page.get_by_text("the order of this schedule is being searched").first).to_be_visible()

    page.get_by_role("button", name="Stop", exact=True).click()
    expect(said).to_have_text("The search for an order was stopped")
    expect(page.get_by_role("button", name="Search again", exact=True)).to_be_visible()
    page.keyboard.press("Control+z")

    expect(page.locator(".mw-searching")).to_be_hidden()
    expect(iteration).to_have_text(before, use_inner_text=True)


def test_a_better_order_is_offered_and_used(shown: Callable[[dict[str, Any], int], Page]) -> None:
    page = shown({"schedule": "gpipe", "microbatches": 8}, 4)
    page.get_by_role("tab", name="Problems").click()
    better = page.get_by_role("region", name="A better order")
    better.get_by_role("button", name="Search", exact=True).click()
    expect(better).to_contain_text("Auto finds an order of these stages in", timeout=FOUND_MS)
    better.get_by_role("button", name="Use it").click()

    expect(page.get_by_role("region", name="What the search tried")).to_contain_text("Tried", timeout=FOUND_MS)
    expect(better).to_be_hidden()
