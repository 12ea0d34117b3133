"""Contrast of the texts of a page by WCAG 2: at least 4.5 to 1 in both themes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.gestures import wait_for_paint

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST = 4.5

FAINT = """least => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const dot = canvas.getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const pixel = (colour) => {
        dot.clearRect(0, 0, 1, 1);
        dot.fillStyle = colour;
        dot.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = dot.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const read = (colour) => known.get(colour) ?? known.set(colour, pixel(colour)).get(colour);
    const over = ([r, g, b, a], below) => [r, g, b].map((part, place) => part * a + below[place] * (1 - a));
    const luminance = (colour) => {
        const [r, g, b] = colour.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const above = (element) => element.assignedSlot ?? element.parentElement ?? element.getRootNode().host;
    const lineage = (element) => (element ? [element, ...lineage(above(element))] : []);
    const within = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each, ...inside(each)]);
    const inside = (each) => (each.shadowRoot ? within(each.shadowRoot) : []);
    const isWritten = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const isOff = (each) => each.closest('[aria-disabled="true"], .mw-sr, svg, script, style, option');
    const isSeen = (each) => each.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    const contrast = (element) => {
        const styles = lineage(element).map((each) => getComputedStyle(each));
        const grounds = styles.map((style) => read(style.backgroundColor));
        const ground = grounds.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
        const opacity = styles.reduce((rest, style) => rest * style.opacity, 1);
        const [r, g, b, a] = read(styles[0].color);
        const both = [ground, over([r, g, b, a * opacity], ground)].map(luminance);
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    };
    const written = within(document.body).filter((each) => isWritten(each) && !isOff(each) && isSeen(each));
    const told = written.map((each) => [contrast(each), `${each.className}: ${each.textContent.trim().slice(0, 40)}`]);
    return told.filter(([ratio]) => ratio < least).map(([ratio, words]) => `${ratio.toFixed(2)} ${words}`);
}"""


def faint_texts(page: Page) -> list[str]:
    """Return the texts of controls with too little contrast in the light or the dark theme; the dark theme stays set."""
    found = []
    for theme in ("light", "dark"):
        page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
        wait_for_paint(page)
        found += [f"{theme}: {words}" for words in page.evaluate(FAINT, LEAST)]
    return found
