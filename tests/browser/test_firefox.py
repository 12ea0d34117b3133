"""The main workflow in Firefox: open the page, edit a number, draw on a canvas, and see the timeline change.

Playwright supports only its own build of Firefox; the driver of Mozilla controls the Firefox of the system.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.server.serve import serve_in_thread
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from tests.conftest import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.nightly]
FIND = """
const [selector] = arguments;
const find = (root) => {
  for (const node of root.querySelectorAll("*")) {
    if (node.matches(selector)) return node;
    const inner = node.shadowRoot && find(node.shadowRoot);
    if (inner) return inner;
  }
  return null;
};
return find(document);
"""
"""Script that finds an element in the document or in a shadow root."""


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Any]:
    """A headless Firefox with a profile of its own."""
    driver = pytest.importorskip("marionette_driver.marionette", reason="marionette-driver is not installed")
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("Firefox is not installed (on Debian: apt-get install firefox-esr)")
    found = driver.Marionette(bin=program, headless=True, startup_timeout=120, gecko_log=str(tmp_path / "gecko.log"))
    found.start_session()
    yield found
    found.quit()
    found.cleanup()


def find(firefox: Any, selector: str) -> Any:
    return wait_until(lambda: firefox.execute_script(FIND, [selector]))


def timeline(firefox: Any) -> dict[str, Any]:
    """Return the first layer of the timeline once it is painted."""
    code = """const chart = window.meshwaveTimeline?.chart, [layer] = chart?.stats.paints ? chart.data.layers : [];
    return layer ? { ranks: layer.ranks, makespan: layer.makespan, count: layer.count } : null;"""
    layer: dict[str, Any] = wait_until(lambda: firefox.execute_script(code, sandbox=None))
    return layer


def test_firefox_edits_a_design_and_shows_its_timeline(
    firefox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marionette_driver.keys import Keys

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["cluster"]["devices_per_node"] = 5
    with serve_in_thread(parse_design(document), "token") as link:
        firefox.navigate(link)
        before = timeline(firefox)
        assert before["ranks"] == 4

        microbatches = find(firefox, "input[aria-label=microbatches]")
        microbatches.clear()
        microbatches.send_keys("16", Keys.ENTER)
        assert wait_until(lambda: timeline(firefox)["count"] > before["count"])

        free = find(firefox, '.mw-device[data-device="4"]')
        box = free.rect
        x, y = round(box["x"] + box["width"] / 2), round(box["y"] + box["height"] / 2)
        pointer = firefox.actions.sequence("pointer", "mouse", {"pointerType": "mouse"})
        pointer.pointer_move(x, y).pointer_down().pointer_move(x + 8, y + 4, duration=100).pointer_up().perform()
        assert wait_until(lambda: timeline(firefox)["ranks"] == 5)
        assert firefox.find_elements("css selector", ".mw-connection") == []
