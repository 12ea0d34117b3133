"""Checks of the WCAG 2.2 AA rules by axe-core on every page in both themes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from meshwave.designer.views.loss import INK
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.browser.runs import write_run
from tests.conftest import IDLE, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from meshwave.designer.state.studio import Studio
    from tests.browser.conftest import Server

AXE = ROOT / "node_modules/axe-core/axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="axe-core is installed by npm ci, which make check-js runs")
pytestmark = [
    pytest.mark.browser,
    needs_axe,
]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
DRAWN = {
    "start": "document.querySelector('.bk-panel-models-layout-Column') !== null",
    "?example=13-zero-bubble": "window.meshwaveTimeline?.layers.length > 0",
    "transfer": "document.querySelector('.bk-panel-models-layout-Column') !== null",
}

FONT = """() => {
    const elements = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each, ...inside(each)]);
    const inside = ({ shadowRoot }) => (shadowRoot ? elements(shadowRoot) : []);
    const canvas = elements(document).find((each) => each.matches(".mw-canvas"));
    return [...[...document.fonts].map(({ status }) => status), parseFloat(getComputedStyle(canvas).fontSize)];
}"""
"""State of the two weights of the bundled font, and the size of body text in CSS pixels."""

TABS = {
    "Loss": "canvas",
    "Error breakdown": ".mw-compare",
    "Slowdowns": ".mw-slow-form",
    "Memory": ".mw-memory-part",
    "Log": ".mw-log",
    "Runs": ".mw-run-table tbody tr",
}
"""The tabs next to the timeline, and a text that each shows for a run."""


@pytest.fixture
def page(served_page: Page, studio: Studio) -> Page:
    studio.library.add(load_design(example("01-first-wave")))
    return served_page


@pytest.fixture
def link(kept_server: Server) -> str:
    return kept_server.link


def broken_rules(page: Page) -> list[object]:
    page.evaluate(AXE.read_text())
    return list(
        page.evaluate(
            """async (rules) => {
                const found = await axe.run(document, { runOnly: rules });
                return found.violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 200))]);
            }""",
            RULES,
        )
    )


@pytest.mark.parametrize("path", DRAWN)
def test_a_page_breaks_no_rule(link: str, visit: Callable[[str], Page], page: Page, path: str) -> None:
    visit(f"{link}{path}")
    page.wait_for_function(f"{IDLE} && {DRAWN[path]}")

    assert page.evaluate(FONT) == ["loaded", "loaded", 13]
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        assert broken_rules(page) == [], theme


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_tabs_of_a_run_break_no_rule(
    link: str, visit: Callable[[str], Page], page: Page, studio: Studio, theme: str
) -> None:
    run = write_run(studio.record, load_design(example("03-gpt-on-two-cores")), factor=2.0)
    visit(f"{link}?run={run}")
    page.wait_for_function(f"{IDLE} && window.meshwaveTimeline?.layers.length > 1")
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]

    for title, drawn in TABS.items():
        page.get_by_role("tab", name=title, exact=True).click()
        page.locator(drawn).first.wait_for()
        assert broken_rules(page) == [], title


def test_a_theme_that_changes_just_before_a_gesture_is_drawn(
    link: str, visit: Callable[[str], Page], page: Page, studio: Studio
) -> None:
    run = write_run(studio.record, load_design(example("03-gpt-on-two-cores")), factor=2.0)
    visit(f"{link}?run={run}")
    page.get_by_role("tab", name="Loss", exact=True).click()
    page.locator(TABS["Loss"]).first.wait_for()

    for tab, theme in (("Log", "dark"), ("Loss", "light")):
        page.get_by_role("tab", name=tab, exact=True).evaluate(
            """(tab, theme) => {
                const models = Bokeh.documents.flatMap((document) => [...document._all_models.values()]);
                models.find(({ type, data }) => type.startsWith("TopBar") && !data).theme = theme;
                tab.click();
            }""",
            theme,
        )
        page.wait_for_function(
            """(ink) => Bokeh.documents.flatMap((document) => [...document._all_models.values()])
                .some(({ type, axis_label_text_color }) => type === "LinearAxis" && axis_label_text_color === ink)""",
            arg=INK[theme][0],
        )
