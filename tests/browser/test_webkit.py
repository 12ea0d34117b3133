"""The main workflow in WebKitGTK: open the page, edit a number, draw on a canvas, and see the timeline change.

Debian's ``WebKitWebDriver`` controls its ``MiniBrowser``, which needs a display; Xvfb provides one.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.server.serve import serve_in_thread
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from tests.browser.test_firefox import FIND
from tests.conftest import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.nightly]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""Key of an element in the answers of WebDriver."""
TIMELINE = """const chart = window.meshwaveTimeline?.chart, [layer] = chart?.stats.paints ? chart.data.layers : [];
    return layer ? { ranks: layer.ranks, count: layer.count } : null;"""
COMMAND_TIMEOUT_S = 60


class WebDriver:
    """A session of WebDriver (W3C) over HTTP."""

    def __init__(self, link: str, options: dict[str, Any]) -> None:
        self._link = f"{link}/session"
        answer = self.send("", {"capabilities": {"alwaysMatch": options}})
        self._link = f"{link}/session/{answer['sessionId']}"

    def send(self, path: str, data: dict[str, Any] | None = None, method: str = "POST") -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self._link + path, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=COMMAND_TIMEOUT_S) as answer:
            return json.load(answer)["value"]

    def run(self, script: str, *args: Any) -> Any:
        return self.send("/execute/sync", {"script": script, "args": list(args)})


@pytest.fixture
def webkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebDriver]:
    """A WebKitGTK browser with a display of its own."""
    driver, display = shutil.which("WebKitWebDriver"), shutil.which("Xvfb")
    browsers = sorted(Path("/usr/lib").glob("*/webkit2gtk-4.*/MiniBrowser"))
    if driver is None or display is None or not browsers:
        pytest.skip("WebKitGTK is not installed (on Debian: apt-get install webkit2gtk-driver xvfb)")
    monkeypatch.setenv("HOME", str(tmp_path))
    with ExitStack() as stack, (tmp_path / "webkit.log").open("w") as log:

        def start(*command: str, **options: Any) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(command, stderr=log, **options))
            stack.callback(process.terminate)
            return process

        screen = start(display, "-displayfd", "1", "-screen", "0", "1600x1000x24", stdout=subprocess.PIPE)
        assert screen.stdout is not None
        monkeypatch.setenv("DISPLAY", f":{screen.stdout.readline().decode().strip()}")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        start(driver, f"--port={port}", "--host=127.0.0.1")
        assert wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        browser = {"binary": str(browsers[-1]), "args": ["--automation"]}
        session = WebDriver(f"http://127.0.0.1:{port}", {"webkitgtk:browserOptions": browser})
        yield session
        session.send("", method="DELETE")


def find(webkit: WebDriver, selector: str) -> str:
    found: dict[str, str] = wait_until(lambda: webkit.run(FIND, selector))
    return found[ELEMENT]


def timeline(webkit: WebDriver) -> dict[str, Any]:
    """Return the first layer of the timeline once it is painted."""
    layer: dict[str, Any] = wait_until(lambda: webkit.run(TIMELINE))
    return layer


def test_webkit_edits_a_design_and_shows_its_timeline(
    webkit: WebDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    document = load_design(example("03-gpt-on-two-cores")).model_dump(mode="json")
    document["cluster"]["devices_per_node"] = 5
    with serve_in_thread(parse_design(document), "token") as link:
        webkit.send("/window/rect", {"x": 0, "y": 0, "width": 1440, "height": 900})
        webkit.send("/url", {"url": link})
        before = timeline(webkit)
        assert before["ranks"] == 4

        microbatches = find(webkit, "input[aria-label=microbatches]")
        webkit.send(f"/element/{microbatches}/clear", {})
        webkit.send(f"/element/{microbatches}/value", {"text": "16\ue007"})
        assert wait_until(lambda: timeline(webkit)["count"] > before["count"])

        free = {ELEMENT: find(webkit, '.mw-device[data-device="4"]')}
        here = {"type": "pointerMove", "origin": free, "x": 0, "y": 0}
        press, release = ({"type": f"pointer{what}", "button": 0} for what in ("Down", "Up"))
        moves = [here, press, here | {"x": 8, "y": 4, "duration": 100}, release]
        webkit.send("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]})
        assert wait_until(lambda: timeline(webkit)["ranks"] == 5)
