"""What the tests of the page share beside a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.drawn import SIZE, Drawn, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from designer.views.timeline import Pin, TimelineChart


@pytest.fixture
def drawn(page: Page, visit: Callable[[str], Page], serve: Callable[..., str]) -> Drawn:
    import panel as pn

    from designer.views.timeline import TimelineChart

    charts: list[TimelineChart] = []
    pins: list[Pin | None] = []

    def app() -> pn.Column:
        chart = TimelineChart(on_pin=pins.append, sizing_mode="stretch_both", min_height=SIZE["height"])
        pn.state.onload(lambda: charts.append(chart))  # what is shown before a page is live may not reach it
        return pn.Column(chart, sizing_mode="stretch_both", margin=0)

    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    url = serve(app)
    for visits in (1, 2):  # what the first session loads, the second must find too
        visit(url)
        page.wait_for_function("window.meshwaveTimeline")
        wait_for(page, lambda visits=visits: len(charts) == visits)  # type: ignore[misc]
    return Drawn(page, charts, pins)
