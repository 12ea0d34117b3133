"""A search for an order on the whole page: what it says meanwhile, its end, and the order that it offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from designer.server import served
from engine.design import parse_design
from tests._strategies import document

pytestmark = pytest.mark.browser

FOUND_MS = 60_000


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visit: Callable[[str], Page]) -> Any:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))

    @contextmanager
    def show(pipeline: dict[str, Any], ranks: int) -> Iterator[Page]:
        with served(parse_design(document(pipeline, ranks, cost={"kind": "roofline"})), "a-token-for-tests") as link:
            page = visit(link)
            page.wait_for_function("window.meshwaveTimeline?.layers.length === 1")
            yield page

    return show


def test_a_long_search_leaves_the_page_alive_and_is_stopped(shown: Any) -> None:
    with shown({"schedule": "1f1b", "microbatches": 1500}, 8) as page:
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


def test_a_better_order_is_offered_and_used(shown: Any) -> None:
    with shown({"schedule": "gpipe", "microbatches": 8}, 4) as page:
        page.get_by_role("tab", name="Problems").click()
        better = page.get_by_role("region", name="A better order")
        better.get_by_role("button", name="Search", exact=True).click()
        expect(better).to_contain_text("Auto finds an order of these stages in", timeout=FOUND_MS)
        better.get_by_role("button", name="Use it").click()

        expect(page.get_by_role("region", name="What the search tried")).to_contain_text("Tried", timeout=FOUND_MS)
        expect(better).to_be_hidden()
