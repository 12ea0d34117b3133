"""The gallery and the table of pinned designs in a real browser, by pointer and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from designer.session import Session
from designer.views.comparison import Comparison
from designer.views.gallery import Gallery
from designer.views.numbers import Numbers
from designer.views.topbar import TopBar
from engine import gallery as engine_gallery
from engine.design import load_design
from engine.resources import example

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
SETTLED_MS = 5_000
FEW = ("1f1b", "gpipe", "hanayo", "zb-v", "chimera", "dualpipe", "gems")
GRID = {
    "display": "grid",
    "height": "100vh",
    "width": "100vw",
    "grid-template-rows": "44px 66px minmax(0, 1fr)",
    "grid-template-areas": '"top" "numbers" "rest"',
}


@dataclass
class Shown:
    """The page, and the session behind it."""

    page: Page
    session: Session

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog", name="Gallery of schedules")

    @property
    def table(self) -> Locator:
        return self.page.get_by_role("dialog", name="Side by side")

    def card(self, title: str) -> Locator:
        """The button of a card."""
        return self.dialog.locator(f'.mw-pick[aria-label^="{title}"]').first

    def order(self) -> list[str]:
        return [name.split(":")[0].split(",")[0] for name in self.labels()]

    def labels(self) -> list[str]:
        picks: list[str] = self.dialog.locator(".mw-pick").evaluate_all("all => all.map((each) => each.ariaLabel)")
        return picks

    def open(self) -> None:
        self.page.keyboard.press("g")
        expect(self.dialog).to_be_visible()
        expect(self.dialog.get_by_text("What the numbers say", exact=True)).to_be_visible(timeout=20_000)

    def until(self, holds: Callable[[], Any]) -> None:
        for _ in range(SETTLED_MS // 20):
            if holds():
                return
            self.page.wait_for_timeout(20)
        assert holds()


def expect(locator: Locator) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


@pytest.fixture
def shown(serve: Callable[..., str], visit: Callable[[str], Page], monkeypatch: pytest.MonkeyPatch) -> Shown:
    import panel as pn

    every = engine_gallery.variants
    monkeypatch.setattr(
        engine_gallery, "variants", lambda design: [each for each in every(design) if each.schedule in FEW]
    )
    session = Session(load_design(example("02-two-waves")))

    def app() -> pn.viewable.Viewable:
        fill: dict[str, Any] = {"sizing_mode": "stretch_both"}
        gallery, comparison = Gallery(session), Comparison(session)
        top = TopBar(session, on_gallery=gallery.open, on_compare=comparison.open, **fill)
        numbers = Numbers(session, on_compare=comparison.open, **fill)
        for area, view in {"top": top, "numbers": numbers}.items():
            view.styles = {"grid-area": area, "min-width": "0", "min-height": "0"}
        return pn.Column(top, numbers, gallery, comparison, sizing_mode="stretch_both", styles=GRID)

    page = visit(serve(app))
    page.wait_for_selector(".mw-topbar")
    page.wait_for_selector(".mw-tile")
    return Shown(page, session)


# ---- the gallery ----


def test_a_card_is_chosen_by_a_click_and_taken_back_by_undo(shown: Shown) -> None:
    shown.page.get_by_role("button", name="Gallery of schedules").click()
    expect(shown.card("ZB-V")).to_be_visible(timeout=20_000)
    assert shown.card("Hanayo, 2 waves, what you have").get_attribute("aria-current") == "true"
    expect(shown.dialog.locator(".mw-card .mw-mini").first).to_be_visible()

    shown.card("ZB-V").click()

    shown.until(lambda: shown.session.design.pipeline.schedule == "zb-v")
    expect(shown.dialog).to_be_hidden()
    shown.page.keyboard.press("Control+z")
    shown.until(lambda: shown.session.history == ("", "schedule ZB-V"))


def test_the_keyboard_walks_over_the_cards_as_they_lie(shown: Shown) -> None:
    shown.open()
    focused = "document.activeElement.getRootNode() && (function deep(n){while(n.shadowRoot?.activeElement)n=n.shadowRoot.activeElement;return n})(document.activeElement).ariaLabel"
    shown.until(lambda: "what you have" in (shown.page.evaluate(focused) or ""))

    shown.page.keyboard.press("Home")
    first = shown.page.evaluate(focused)
    assert first == shown.labels()[0]
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.evaluate(focused) == shown.labels()[1]
    shown.page.keyboard.press("ArrowDown")
    assert shown.page.evaluate(focused) not in shown.labels()[:3]
    shown.page.keyboard.press("Home")
    assert shown.session.history == ("", ""), "walking edits nothing"
    shown.page.keyboard.press("Enter")

    expect(shown.dialog).to_be_hidden()
    shown.until(lambda: shown.session.history[0].startswith("schedule "))


def test_escape_closes_and_nothing_was_changed(shown: Shown) -> None:
    shown.open()

    shown.page.keyboard.press("Escape")

    expect(shown.dialog).to_be_hidden()
    shown.open()
    assert shown.session.history == ("", "")


def test_sorting_filtering_and_all_variants(shown: Shown) -> None:
    shown.open()
    best = shown.order()
    assert best[0] == "Chimera"
    assert best[-1] == "DualPipe", "those that refuse come last"

    shown.dialog.get_by_role("button", name="Memory", exact=True).click()
    assert shown.order()[0] == "GEMS"
    shown.dialog.get_by_role("button", name="Weights", exact=True).click()
    assert shown.order()[-2] == "GEMS", "two copies, and the slowest of those"

    shown.dialog.get_by_role("button", name="All variants").click()
    assert len(shown.labels()) > len(best)
    expect(shown.card("Hanayo, 4 waves")).to_contain_text("32 stages need 32 layers")
    shown.dialog.get_by_label("Fits in memory").check()
    expect(shown.card("DualPipe")).to_have_count(0)


def test_a_card_that_refuses_says_why_and_cannot_be_chosen(shown: Shown) -> None:
    shown.open()
    refused = shown.card("DualPipe")
    expect(refused).to_contain_text("use 8")
    expect(refused).to_have_attribute("aria-disabled", "true")

    refused.click(force=True)
    shown.page.wait_for_timeout(100)

    expect(shown.dialog).to_be_visible()
    assert shown.session.history == ("", "")


def test_what_the_numbers_say_is_there_in_words(shown: Shown) -> None:
    shown.open()

    words = shown.dialog.get_by_role("complementary", name="What the numbers say")
    expect(words).to_contain_text("Chimera, 4 replicas, 48 units, 20.0 % shorter")
    expect(words).to_contain_text("the layers set the end")


# ---- side by side ----


def test_cards_are_pinned_and_laid_side_by_side(shown: Shown) -> None:
    page, session = shown.page, shown.session
    page.keyboard.press("p")
    shown.until(lambda: len(session.pinned) == 1)
    shown.open()
    shown.card("ZB-V").hover()
    pin = shown.dialog.get_by_role("button", name="Compare ZB-V")
    pin.click()
    expect(pin).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")

    page.keyboard.press("v")

    expect(shown.table.locator(".mw-column-name")).to_have_text(
        ["Two waves on four meshes", "ZB-V", "Two waves on four meshes"]
    )
    expect(shown.table.locator("tr.mw-differences")).to_contain_text("hanayo, waves 2 → zb-v")
    expect(shown.table.locator('tr[data-key="mfu"]')).to_have_count(0)
    expect(shown.table.locator('tr[data-key="memory"] .mw-change').first).to_be_visible()
    shown.table.get_by_role("button", name="Unpin ZB-V").click()
    shown.until(lambda: len(session.pinned) == 1)
    shown.table.get_by_role("button", name="Add an example").click()
    page.get_by_role("menuitem").nth(3).click()
    shown.until(lambda: len(session.pinned) == 2)
    expect(shown.table.get_by_text("room for 1 more")).to_be_visible()
    shown.table.get_by_role("button", name="End the comparison").click()
    expect(shown.table).to_be_hidden()
    assert session.pinned == []


def test_the_note_under_the_pin_opens_the_table_and_ends_it(shown: Shown) -> None:
    shown.page.keyboard.press("p")
    note = shown.page.get_by_role("button", name="against Two waves")

    note.click()
    expect(shown.table).to_be_visible()
    shown.page.keyboard.press("Escape")
    expect(shown.table).to_be_hidden()
    shown.page.locator(".mw-numbers").get_by_role("button", name="End the comparison").click()

    shown.until(lambda: shown.session.pinned == [])
    expect(note).to_have_count(0)
