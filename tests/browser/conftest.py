"""What the tests of the page share beside a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.drawn import SIZE, Drawn, wait_for
from tests.conftest import new_context, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from designer.views.timeline import Pin, TimelineChart


@pytest.fixture(scope="module")
def charts() -> Iterator[Charts]:
    """A page with nothing but a timeline, served once a module; a browser keeps what it has loaded of it."""
    with serving() as serve:
        yield Charts(serve)


class Charts:
    """Where the charts are, and those of this test."""

    def __init__(self, serve: Callable[..., str]) -> None:
        self.made: list[TimelineChart] = []
        self.pins: list[Pin | None] = []
        self.url = serve(self._app)

    def forget(self) -> None:
        self.made, self.pins = [], []

    def _app(self) -> Any:
        import panel as pn

        from designer.views.timeline import TimelineChart

        made, pins = self.made, self.pins
        chart = TimelineChart(on_pin=pins.append, sizing_mode="stretch_both", min_height=SIZE["height"])
        pn.state.onload(lambda: made.append(chart))  # what is shown before a page is live may not reach it
        return pn.Column(chart, sizing_mode="stretch_both", margin=0)


@pytest.fixture(scope="module")
def kept_context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all tests of a module that takes it as its ``context``."""
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture
def drawn(page: Page, visit: Callable[[str], Page], charts: Charts) -> Drawn:
    charts.forget()
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    visit(charts.url)
    page.wait_for_function("window.meshwaveTimeline")
    wait_for(page, lambda: len(charts.made) == 1)
    return Drawn(page, charts.made, charts.pins)
