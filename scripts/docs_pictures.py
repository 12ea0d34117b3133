"""Take the pictures of the documentation from the page: ``python scripts/docs_pictures.py [NAME ...]``.

Each function below takes the picture of the same name. The script needs Chromium and takes a minute; the pictures are
stored in ``docs/images``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from meshwave.designer.server.serve import read_design, serve_in_thread  # noqa: E402  # needs the path above
from meshwave.engine.cli.doctor import CHROMIUM_REMEDY, find_chromium  # noqa: E402
from meshwave.engine.resharding import orderings, strategies  # noqa: E402

IMAGES = ROOT / "docs" / "images"
VIEWPORT = {"width": 1440, "height": 900}
COLOURS = 256  # number of colours of a picture: enough for lines, text and fills
RUN_MS = 120_000
SETTLED_MS = 2000

Picture = Callable[[Page], "Locator | Page"]
PICTURES: dict[str, tuple[str, Picture]] = {}


def picture(design: str, name: str = "") -> Callable[[Picture], Picture]:
    """Register a function that brings a page with ``design`` into a state, and returns what to capture."""

    def add(function: Picture) -> Picture:
        PICTURES[name or function.__name__.replace("_", "-")] = (design, function)
        return function

    return add


@picture("01-first-wave")
def first_page(page: Page) -> Page:
    """Return the page with a first design."""
    return page


@picture("01-first-wave")
def cluster(page: Page) -> Locator:
    """Return the cluster canvas."""
    return page.locator(".mw-cluster").first


@picture("02-two-waves")
def wave(page: Page) -> Locator:
    """Return the wave canvas."""
    return page.locator(".mw-wave").first


@picture("02-two-waves", "page")
def dry_run(page: Page) -> Page:
    """Return the page after a dry run."""
    launch(page, number=1)
    page.mouse.move(0, 0)
    return page


@picture("03-gpt-on-two-cores")
def measured_run(page: Page) -> Page:
    """Return the page after a training run."""
    launch(page, number=0)
    page.mouse.move(0, 0)
    return page


@picture("17-experts-on-two-cores")
def experts(page: Page) -> Locator:
    """Return the expert canvas."""
    page.keyboard.press("x")
    board = page.locator(".mw-experts").first
    board.wait_for()
    return board


@picture("16-gpt2-moe")
def gallery(page: Page) -> Locator:
    """Return the gallery of schedules."""
    page.keyboard.press("g")
    page.mouse.move(0, 0)
    wait_until(page, lambda: "…" not in (page.locator(".mw-gallery-state").text_content() or "…"))
    return page.locator(".mw-gallery-dialog")


@picture("20-unequal-meshes")
def transfer_lab(page: Page) -> Page:
    """Return the transfer lab with all plans."""
    page.goto(page.url.partition("?")[0] + "transfer")
    wait_until(page, lambda: page.locator(".mw-tr-plans td button").count() >= len(strategies) * len(orderings))
    return page


def launch(page: Page, number: int) -> None:
    """Press a button of the launch bar, and wait for the end of the run."""
    page.locator(".mw-launchbar button").nth(number).click()
    page.locator(".mw-run .mw-state[data-state=SUCCEEDED]").wait_for(timeout=RUN_MS)
    page.wait_for_timeout(SETTLED_MS)  # the overlay is drawn


def wait_until(page: Page, is_done: Callable[[], bool]) -> None:
    """Wait until the page shows its computed results."""
    while not is_done():
        page.wait_for_timeout(SETTLED_MS)
    page.wait_for_timeout(SETTLED_MS)


def main(names: list[str]) -> None:
    """Take the named pictures; by default all of them."""
    IMAGES.mkdir(exist_ok=True)
    chromium = find_chromium()
    if chromium is None:
        sys.exit(CHROMIUM_REMEDY)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        os.environ["MESHWAVE_HOME"] = home
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name in names or PICTURES:
            design, function = PICTURES[name]
            with serve_in_thread(read_design(design), "pictures") as link:
                page = browser.new_page(viewport=VIEWPORT, color_scheme="light", reduced_motion="reduce")
                page.goto(link)
                page.wait_for_function("window.meshwaveTimeline && Bokeh.documents[0].is_idle")
                page.wait_for_timeout(1000)
                size = save(function(page).screenshot(), IMAGES / f"{name}.png")
                page.close()
            print(f"{name}: {size / 1e3:.0f} kB")
        browser.close()


def save(content: bytes, path: Path) -> int:
    """Write a picture with a reduced number of colours, and return its size in bytes."""
    reduced = Image.open(BytesIO(content)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)
    return path.stat().st_size


if __name__ == "__main__":
    main(sys.argv[1:])
