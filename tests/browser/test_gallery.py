"""The gallery and the table of pinned designs in a real browser, by pointer and keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, Page, expect

from meshwave.designer.state import gallery_cards
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import page_callback_scheduler
from meshwave.designer.views.design_comparison import Comparison
from meshwave.designer.views.gallery import Gallery
from meshwave.designer.views.numbers import Numbers
from meshwave.designer.views.topbar import TopBar
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.browser.gestures import eventually, focused
from tests.designer import held

if TYPE_CHECKING:
    from tests.browser.conftest import Stage

pytestmark = pytest.mark.browser
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
    gallery: Gallery
    comparison: Comparison

    @property
    def dialog(self) -> Locator:
        return self.page.get_by_role("dialog", name="Schedule gallery")

    @property
    def table(self) -> Locator:
        return self.page.get_by_role("dialog", name="Design comparison")

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
        expect(self.dialog.get_by_text("Findings", exact=True)).to_be_visible()

    def wait_for_python(self) -> None:
        """Wait until Python has handled all gestures so far."""
        before = len(self.session.pinned)
        self.page.evaluate("window.dispatchEvent(new KeyboardEvent('keydown', { key: 'p' }))")  # pins, or unpins
        eventually(self.page, lambda: len(self.session.pinned) != before)


@pytest.fixture
def shown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    import panel as pn

    monkeypatch.setattr(gallery_cards, "make_cards", held.judge_for_browser)
    parts: list[Any] = []

    def app() -> pn.viewable.Viewable:
        session = Session(load_design(example("02-two-waves")), page_callback_scheduler(pn.state.curdoc))
        fill: dict[str, Any] = {"sizing_mode": "stretch_both"}
        _, gallery, comparison = parts[:] = [session, Gallery(session), Comparison(session)]
        top = TopBar(session, on_gallery=gallery.open, on_compare=comparison.open, **fill)
        numbers = Numbers(session, on_compare=comparison.open, **fill)
        for area, view in {"top": top, "numbers": numbers}.items():
            view.styles = {"grid-area": area, "min-width": "0", "min-height": "0"}
        return pn.Column(top, numbers, gallery, comparison, sizing_mode="stretch_both", styles=GRID)

    page = stage.show(app)
    page.wait_for_selector(".mw-topbar")
    page.wait_for_selector(".mw-tile")
    for title in ("mw-gallery-title", "mw-comparison-title"):
        page.wait_for_selector(f"#{title}", state="attached")
    yield Shown(page, *parts)
    parts[1].stop_jobs()


# ---- the gallery ----


def test_a_click_on_a_card_applies_its_schedule_and_undo_restores_the_previous_one(shown: Shown) -> None:
    shown.page.get_by_role("button", name="Schedule gallery").click()
    expect(shown.card("ZB-V")).to_be_visible()
    expect(shown.card("Hanayo, 2 waves, current")).to_have_attribute("aria-current", "true")
    expect(shown.dialog.locator(".mw-card .mw-mini").first).to_be_visible()

    shown.card("ZB-V").click()

    eventually(shown.page, lambda: shown.session.design.pipeline.schedule == "zb-v")
    expect(shown.dialog).to_be_hidden()
    shown.page.keyboard.press("Control+z")
    eventually(shown.page, lambda: shown.session.history == ("", "schedule ZB-V"))


def test_arrow_keys_move_between_cards_in_their_visual_order(shown: Shown) -> None:
    shown.open()
    eventually(shown.page, lambda: ", current:" in focused(shown.page, "at.ariaLabel"))

    shown.page.keyboard.press("Home")
    assert focused(shown.page, "at.ariaLabel") == shown.labels()[0]
    shown.page.keyboard.press("ArrowRight")
    assert focused(shown.page, "at.ariaLabel") == shown.labels()[1]
    shown.page.keyboard.press("ArrowDown")
    assert focused(shown.page, "at.ariaLabel") not in shown.labels()[:3]
    shown.page.keyboard.press("Home")
    shown.wait_for_python()
    assert shown.session.history == ("", ""), "walking edits nothing"
    shown.page.keyboard.press("Enter")

    expect(shown.dialog).to_be_hidden()
    eventually(shown.page, lambda: shown.session.history[0].startswith("schedule "))


def test_escape_closes_the_gallery_without_a_change(shown: Shown) -> None:
    shown.open()

    shown.page.keyboard.press("Escape")

    expect(shown.dialog).to_be_hidden()
    shown.open()
    assert shown.session.history == ("", "")


AT_ONCE = """([title, closing, key]) => {
    const all = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each, ...(each.shadowRoot ? all(each.shadowRoot) : [])]);
    const dialog = all(document).find((each) => each.id === title).closest("dialog");
    const press = (key, at) => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, composed: true, cancelable: true }));
    if (closing === "Escape") press("Escape", dialog);
    else if (closing === "the button") dialog.querySelector('[aria-label="Close"]').click();
    else dialog.close();
    if (dialog.open) throw new Error(`${closing} left it open`);
    press(key, window);
}"""


@pytest.mark.parametrize("name", ["gallery", "comparison"])
def test_a_key_reopens_the_gallery_immediately_after_it_was_closed(shown: Shown, name: str) -> None:
    """Both keys are handled in one task of the page, before the ``close`` event of the dialog."""
    overlay: Any = getattr(shown, name)
    dialog, key = {"gallery": (shown.dialog, "g"), "comparison": (shown.table, "v")}[name]
    shown.page.keyboard.press(key)
    for closing in ("Escape", "the button", "the browser"):
        expect(dialog).to_be_visible()
        before = overlay.opening

        shown.page.evaluate(AT_ONCE, [f"mw-{name}-title", closing, key])

        shown.wait_for_python()
        assert overlay.shown
        assert overlay.opening == before + 1
    expect(dialog).to_be_visible()
    shown.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    eventually(shown.page, lambda: not overlay.shown)


def test_cards_are_sorted_and_filtered_and_all_variants_can_be_shown(shown: Shown) -> None:
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
    expect(shown.card("Hanayo, 4 waves")).to_contain_text("32 stages need at least 32 layers")
    shown.dialog.get_by_label("Fits in memory").check()
    expect(shown.card("DualPipe")).to_have_count(0)


def test_a_card_of_an_unsupported_schedule_shows_the_reason_and_cannot_be_chosen(shown: Shown) -> None:
    shown.open()
    refused = shown.card("DualPipe")
    expect(refused).to_contain_text("use 8")
    expect(refused).to_have_attribute("aria-disabled", "true")

    refused.click(force=True)

    shown.wait_for_python()
    expect(shown.dialog).to_be_visible()
    assert shown.session.history == ("", "")


def test_findings_of_the_gallery_are_sentences(shown: Shown) -> None:
    shown.open()

    words = shown.dialog.get_by_role("complementary", name="Findings")
    expect(words).to_contain_text("Chimera (4 replicas) takes 48 units: 20.0% shorter")
    expect(words).to_contain_text("as long as there are enough layers")


# ---- side by side ----


def test_pinned_cards_are_compared_side_by_side(shown: Shown) -> None:
    page, session = shown.page, shown.session
    page.keyboard.press("p")
    eventually(shown.page, lambda: len(session.pinned) == 1)
    shown.open()
    shown.card("GPipe").hover()
    pin = shown.dialog.get_by_role("button", name="Compare GPipe")
    pin.click()
    expect(pin).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")

    page.keyboard.press("v")

    expect(shown.table.locator(".mw-column-name")).to_have_text(
        ["Two waves on four meshes", "GPipe", "Two waves on four meshes"]
    )
    expect(shown.table.locator("tr.mw-differences")).to_contain_text("hanayo, waves 2 → gpipe")
    expect(shown.table.locator('tr[data-key="mfu"]')).to_have_count(0)
    expect(shown.table.locator('tr[data-key="memory"] .mw-change').first).to_be_visible()
    shown.table.get_by_role("button", name="Unpin GPipe").press("Enter")
    expect(shown.table.locator(".mw-column-name")).to_have_count(2)
    expect(shown.table.locator("table :focus")).to_have_count(1)  # what had the keyboard is gone, and it is not
    add = shown.table.get_by_role("button", name="Add example")
    add.press("Enter")
    expect(page.get_by_role("menuitem").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(add).to_be_focused()
    add.click()
    page.get_by_role("menuitem").nth(3).click()
    eventually(shown.page, lambda: len(session.pinned) == 2)
    expect(shown.table.get_by_text("1 more can be added")).to_be_visible()
    shown.table.get_by_role("button", name="End comparison").click()
    expect(shown.table).to_be_hidden()
    assert session.pinned == []


def test_the_label_beside_the_pin_opens_and_ends_the_comparison(shown: Shown) -> None:
    shown.page.keyboard.press("p")
    note = shown.page.get_by_role("button", name="vs. Two waves")

    note.click()
    expect(shown.table).to_be_visible()
    shown.page.keyboard.press("Escape")
    expect(shown.table).to_be_hidden()
    shown.page.locator(".mw-numbers").get_by_role("button", name="End comparison").click()

    eventually(shown.page, lambda: shown.session.pinned == [])
    expect(note).to_have_count(0)
    expect(shown.page.get_by_role("button", name="for comparison")).to_be_focused()
