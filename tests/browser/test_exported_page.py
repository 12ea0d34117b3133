"""Exports of the page in a browser: pictures have the rows that the page shows, and the exported page can be zoomed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from meshwave.designer.server.serve import read_design
from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record
from tests._strategies import Drawn
from tests.browser.gestures import wait_for_paint
from tests.browser.runs import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

SHEET = "document.querySelector('#timeline').firstElementChild.getBoundingClientRect()"


def test_an_exported_page_zooms_and_pans(page: Page, complaints: list[str], tmp_path: Path) -> None:
    design = Drawn({"schedule": "1f1b", "microbatches": 8}, 4).design()
    (tmp_path / "page.html").write_bytes(exports["html"].to_bytes(predict(design)))
    page.goto((tmp_path / "page.html").as_uri())
    whole = page.evaluate(f"{SHEET}.width")

    page.mouse.move(600, 200)
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"{SHEET}.width > 2 * {whole}")
    left = page.evaluate(f"{SHEET}.left")
    page.mouse.down()
    page.mouse.move(650, 200)
    page.mouse.up()
    moved = page.evaluate(f"{SHEET}.left")
    page.locator("#timeline").press("0")
    again = page.evaluate(f"{SHEET}.width")

    assert (round(moved - left), again) == (50, whole)
    assert complaints == []


def test_a_picture_exported_from_the_page_follows_its_groups_and_filter(whole_page: Callable[..., Page]) -> None:
    page = whole_page(read_design("10-bert-on-tacc"))
    whole = exported_names(page)
    page.get_by_role("button", name="Links", exact=True).click()
    page.get_by_role("button", name="Group", exact=True).click()
    page.get_by_role("menuitemradio", name="Node").click()
    page.get_by_role("button", name="Lanes of BERT of the Hanayo paper on 8 GPUs, two waves, node 0").click()
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("Filter lanes").fill("rank 0-4")
    page.wait_for_function("window.meshwaveTimeline.groups.map(({ ranks }) => ranks.length).join() === '0,2'")

    found = exported_names(page)

    assert whole == [*"ABCDEFGH", "Memory", *"ABCDEFGH"]
    ports = [f"NIC {node} {way}" for node in (1, 2) for way in ("out", "in")]
    assert found == ["node 0", "node 1", "D", "E", "Links", "node 0", *ports, "Memory", "node 0", "D", "E"]


def test_an_exported_picture_has_the_pinned_design_and_the_run(whole_page: Callable[..., Page], tmp_path: Path) -> None:
    design = read_design("02-two-waves")
    record = Record(tmp_path)
    write_run(record, design, factor=1.5)
    record.close()
    page = whole_page(design, launches=True)
    page.get_by_role("tab", name="Runs").click()
    page.locator(".mw-run-table tbody td").nth(2).click(button="right")
    page.get_by_role("menuitem", name="Show timeline").click()
    page.wait_for_function("window.meshwaveTimeline.layers.length === 2")
    page.get_by_role("button", name=re.compile("^Pin")).first.click()
    page.wait_for_function("window.meshwaveTimeline.layers.length === 3")
    wait_for_paint(page)

    found = exported_names(page)

    titles = [name for name in found if design.name in name]
    assert titles == [f"Pinned: {design.name}", design.name]
    page.get_by_role("tab", name="Run", exact=True).click()
    overlay = page.get_by_role("region", name="Selected run")
    expect(overlay).not_to_contain_text("Hidden while")
    page.locator(".mw-timeline-stage").press("e")
    expect(overlay).to_contain_text("Hidden while “Edit order” is on")


def exported_names(page: Page) -> list[str]:
    """Return the texts left of the rows of an exported SVG, from top to bottom."""
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as awaited:
        page.get_by_role("menuitem", name="Timeline as SVG").click()
    texts = ElementTree.parse(awaited.value.path()).iterfind("{*}text[@x='16.00']")
    named = sorted((float(text.get("y", 0)), text.text or "") for text in texts)
    return [name for _, name in named[1:]]  # below the title
