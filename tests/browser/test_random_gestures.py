"""Random clicks, keys, drags and texts on the whole page cause no error in the browser or in the server.

``MESHWAVE_GESTURES=seed:count`` chooses other gestures; a failure prints the last ones.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error

from meshwave.designer.server.serve import serve_in_thread
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from tests.conftest import IDLE, VIEWPORT, failing_on_logged_exceptions, new_context, watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

SEED, COUNT = (int(part) for part in os.environ.get("MESHWAVE_GESTURES", "1:150").split(":"))
TARGETS = (Path(__file__).parent / "random_targets.js").read_text("utf-8").strip().rstrip(";")
READY = f"window.meshwaveTimeline && {IDLE}"
LEFT_OUT = ("Launch", "Measure", "Calibrate", "Choose training", "Open a design")
"""Beginnings of the names of controls that are not clicked: they start runs or open the browser's file chooser."""
KEYS = (
    *("Escape", "Enter", "Tab", "Space", "Delete", "Backspace", "Home", "End", "F6", "Shift+X", "/", "?", "+", "-", "[", "]"),
    *("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Control+z", "Control+y", "Control+k", *"bcefghijkmnoprstuwx012"),
)  # fmt: skip
TEXTS = ("2", "3", "8", "64", "0", "-1", "1e9", "abc", "", "<b>x</b>")


@pytest.mark.parametrize("name", ["02-two-waves", "03-gpt-on-two-cores", "16-gpt2-moe", "18-u-transformer"])
def test_random_gestures_cause_no_error(
    name: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    complaints: list[str] = []
    context = new_context(browser)
    with failing_on_logged_exceptions(), serve_in_thread(load_design(example(name)), "a-token-for-tests") as link:
        page = context.new_page()
        watch(page, complaints)
        page.on("popup", lambda opened: opened.close())
        page.goto(link)
        page.wait_for_function(READY)
        gestures = Gestures(page, random.Random(f"{name} {SEED}"))
        for _ in range(COUNT):
            if urlsplit(page.url).path != "/":  # by a link
                page.goto(link)
                page.wait_for_function(READY)
            try:
                gestures.make()
            except Error as error:  # such as a look at a page that is being left
                if "navigation" not in str(error):
                    complaints.append(str(error))
            assert not complaints, [*complaints, *gestures.made[-20:]]
        page.goto(link)
        page.wait_for_function(READY)
        assert not complaints, complaints
        page.goto("about:blank")
    context.close()


class Gestures:
    """Random gestures on a page, and a list of those made."""

    def __init__(self, page: Page, choices: random.Random) -> None:
        self._page, self._choices = page, choices
        self.made: list[str] = []

    def make(self) -> None:
        """Make a gesture."""
        kind = self._choices.choices([self.click, self.press_key, self.drag], [5, 2, 3])[0]
        kind()

    def click(self) -> None:
        """Click a control, and type a text if it is a field."""
        targets = [target for target in self._targets() if not target[1].startswith(LEFT_OUT)]
        if not targets:  # a page that is being opened
            return
        tag, name, x, y = self._choices.choice(targets)
        button = self._choices.choices(["left", "right"], [9, 1])[0]
        self.made.append(f"{button} click on {tag} {name!r}")
        self._page.mouse.click(x, y, button=button, click_count=self._choices.choice([1, 1, 1, 2]))  # type: ignore[arg-type]
        if tag == "input":
            text = self._choices.choice(TEXTS)
            self.made.append(f"type {text!r}")
            self._page.keyboard.press("Control+a")
            self._page.keyboard.type(text)
            self._page.keyboard.press(self._choices.choice(["Enter", "Tab", "Escape"]))

    def press_key(self) -> None:
        """Press a key."""
        self.made.append(f"press {self._choices.choice(KEYS)}")
        self._page.keyboard.press(self.made[-1].removeprefix("press "))

    def drag(self) -> None:
        """Drag between two places, and press Escape now and then."""
        start, end = self._place(), self._place()
        self.made.append(f"drag from {start} to {end}")
        self._page.mouse.move(*start)
        self._page.mouse.down()
        self._page.mouse.move(*end, steps=4)
        if self._choices.random() < 0.2:
            self._page.keyboard.press("Escape")
        self._page.mouse.up()

    def _place(self) -> tuple[float, float]:
        """Return the centre of something that can be dragged, or any place."""
        drawn = [(x, y) for tag, _, x, y in self._targets() if tag not in ("button", "input", "select", "summary")]
        if drawn and self._choices.random() < 0.6:
            return self._choices.choice(drawn)
        return self._choices.uniform(0, VIEWPORT["width"]), self._choices.uniform(50, VIEWPORT["height"])

    def _targets(self) -> list[tuple[str, str, float, float]]:
        found: list[Any] = self._page.evaluate(TARGETS)
        return [(tag, name, x, y) for tag, name, x, y in found]
