"""The exported page in a browser: it can be zoomed and panned, and its content security policy refuses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import predict
from tests._strategies import Drawn

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
