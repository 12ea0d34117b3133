"""The page in another language than English, in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.conftest import IDLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.browser.conftest import Server

pytestmark = pytest.mark.browser
GERMAN: dict[str, str] = json.loads((Path(__file__).resolve().parents[2] / "static" / "locale" / "de.json").read_text())
ENGLISH = re.compile(r"\b(the|of|and|with|are|for|this|which|by)\b")
QUERY = "B of stage 2"  # an example of the query language, which is English
SHOWN_TEXTS = """() => {
    const texts = [];
    const read = (node) => {
        if (node instanceof Text) return node.data.trim() && texts.push(node.data.trim());
        if (!(node instanceof Element)) return;
        if (!node.checkVisibility() && getComputedStyle(node).display !== "contents") return;
        if (node.matches("[translate='no'], code, kbd, pre, script, style, textarea")) return;
        for (const name of ["aria-label", "title", "data-tip", "placeholder"])
            if (node.getAttribute(name)) texts.push(node.getAttribute(name));
        [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes].forEach(read);
    };
    read(document.body);
    return [...new Set(texts)];
}"""
CUT_OFF = """() => {
    const all = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each, ...(each.shadowRoot ? all(each.shadowRoot) : [])]);
    const isCut = (each) => each.matches("button, [role=tab]") && each.checkVisibility() && each.innerText.trim()
        && getComputedStyle(each).textOverflow !== "ellipsis" && each.scrollWidth > each.clientWidth + 1;
    const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
    return [...wide, ...all(document).filter(isCut).map((each) => each.textContent)];
}"""
RECORD_DRAWN_TEXTS = """() => {
    window.drawnTexts = new Set();
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        drawnTexts.add(text);
        return fillText.call(this, text, ...rest);
    };
}"""


@pytest.fixture
def page(served_page: Page) -> Page:
    return served_page


def expect_german_texts(page: Page) -> None:
    texts = [text.replace(QUERY, "") for text in page.evaluate(SHOWN_TEXTS)]
    assert len(texts) > 20
    assert [text for text in texts if ENGLISH.search(text) or GERMAN.get(text, text) != text] == []
    assert page.evaluate(CUT_OFF) == []


def open_designer(page: Page) -> None:
    page.get_by_role("link", name="Pipeline Meshes zeichnen").click()
    page.wait_for_function(f"window.meshwaveTimeline && {IDLE}")


def test_start_page_and_designer_are_german_and_can_be_switched_back(
    visit: Callable[[str], Page], kept_server: Server
) -> None:
    page = visit(f"{kept_server.link}?lang=de")
    expect(page.get_by_role("heading", name="Meine Entwürfe")).to_be_visible()
    assert page.locator("html").get_attribute("lang") == "de"
    expect_german_texts(page)

    open_designer(page)
    expect_german_texts(page)

    page.get_by_label("Heads", exact=True).fill("3")
    page.keyboard.press("Tab")
    expect(page.get_by_text("3 Heads teilen eine Hidden-Breite von 128 nicht").first).to_be_visible()
    expect_german_texts(page)
    page.get_by_label("Heads", exact=True).fill("4")
    page.keyboard.press("Tab")

    page.get_by_role("button", name="Galerie").click()
    expect(page.get_by_text("Beste Varianten")).to_be_visible()
    expect_german_texts(page)
    page.keyboard.press("Escape")

    page.get_by_role("button", name="Design, Textgröße und Sprache").click()
    page.get_by_role("menuitemradio", name="English").click()
    expect(page.get_by_role("button", name="Gallery")).to_be_visible()
    assert page.locator("html").get_attribute("lang") != "de"
    assert "lang=" not in page.url


def test_the_transfer_lab_and_its_menus_are_german(visit: Callable[[str], Page], kept_server: Server) -> None:
    page = visit(f"{kept_server.link}transfer?lang=de")
    expect(page.get_by_role("heading", name="Teilaufgaben")).to_be_visible()
    expect_german_texts(page)


@pytest.mark.nightly
def test_the_experts_and_their_schedules_are_german(visit: Callable[[str], Page], kept_server: Server) -> None:
    page = visit(f"{kept_server.link}?lang=de&example=16-gpt2-moe")
    page.wait_for_function(f"window.meshwaveTimeline && {IDLE}")
    name = page.get_by_label("Name des Entwurfs")
    name.fill("Probe")
    name.press("Enter")
    page.get_by_role("button", name="Experten", exact=True).click()
    page.get_by_role("button", name="Schedules vergleichen").click()
    expect(page.get_by_text("Token am Ende sammeln.")).to_be_visible()
    expect(page.get_by_role("option", name="Dieser Rechner", exact=True)).to_be_attached()

    expect_german_texts(page)


@pytest.mark.nightly
def test_names_are_not_translated(visit: Callable[[str], Page], kept_server: Server) -> None:
    page = visit(f"{kept_server.link}?lang=de")
    open_designer(page)

    page.evaluate(RECORD_DRAWN_TEXTS)
    for typed in ("Runs on two devices", "Runs"):
        name = page.get_by_label("Name des Entwurfs")
        name.fill(typed)
        name.press("Enter")
        page.wait_for_function("(name) => document.title.endsWith(`${name} · Meshwave`)", arg=typed)
        page.wait_for_function("(name) => drawnTexts.has(name)", arg=typed)
    page.get_by_role("link", name="Startseite von Meshwave").click()

    expect(page.locator("[data-design]").get_by_text("Runs", exact=True)).to_be_visible()


@pytest.mark.nightly
def test_a_narrow_page_is_german_and_cuts_nothing_off(visit: Callable[[str], Page], kept_server: Server) -> None:
    page = visit(f"{kept_server.link}?lang=de")
    page.set_viewport_size({"width": 390, "height": 800})
    expect_german_texts(page)

    open_designer(page)
    expect_german_texts(page)
