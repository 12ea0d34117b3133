"""Gestures on the page, and waits for their effects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.conftest import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Point = tuple[float, float]


def eventually(page: Page, holds: Callable[[], Any]) -> None:
    """Wait until a condition is true while the page continues to work."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        page.wait_for_timeout(10)


def wait_for_paint(page: Page) -> None:
    """Wait until the requested state is painted."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def centre(locator: Locator) -> Point:
    end = time.monotonic() + PATIENCE_S
    while (box := locator.bounding_box()) is None and time.monotonic() < end:  # drawn anew between two looks
        time.sleep(0.01)
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def press_and_drag(page: Page, start: Point, end: Point) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=3)
    page.mouse.move(*end, steps=3)


def drag(page: Page, start: Point, end: Point) -> None:
    press_and_drag(page, start, end)
    page.mouse.up()


def focused(page: Page, what: str) -> str:
    """Evaluate an expression on the focused element ``at`` inside all shadow roots."""
    code = """what => {
        let at = document.activeElement;
        while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
        return new Function("at", `return ${what}`)(at) ?? "";
    }"""
    return str(page.evaluate(code, what))
