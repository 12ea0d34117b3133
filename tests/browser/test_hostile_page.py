"""A page of another server on this machine, in the browser that has the designer open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page

from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.engine.runs.launchers._base import launchers

pytestmark = pytest.mark.browser

TOKEN = "a-token-for-tests"
TRIES = """async (designer) => {
    const happens = (target, good, bad) => new Promise((told) => {
        target[`on${good}`] = () => told(good);
        target[`on${bad}`] = () => told(bad);
    });
    const framed = Object.assign(document.createElement("iframe"), { src: designer });
    const loaded = happens(framed, "load", "error");
    document.body.append(framed);
    await loaded;
    const script = Object.assign(document.createElement("script"), { src: `${designer}static/js/bokeh.min.js` });
    const ran = happens(script, "load", "error");
    document.body.append(script);
    return {
        script: await ran,
        socket: await happens(new WebSocket(`${designer.replace("http", "ws")}ws`, ["bokeh", "x"]), "open", "error"),
        page: await fetch(designer, { credentials: "include" }).then(() => "read", () => "refused"),
    };
}"""


@pytest.fixture
def designer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The link of a designer without launches."""
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    with serve_in_thread(read_design(None), TOKEN) as link:
        yield link


@pytest.fixture
def hostile_texts() -> Iterator[tuple[str, list[str]]]:
    """The address of another server on this machine, and the cookies that it receives."""
    cookies: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel='icon' href='data:,'><body>")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", cookies
    server.shutdown()
    server.server_close()


def test_another_site_can_neither_frame_the_designer_nor_read_the_token_nor_open_the_websocket(
    designer: str, hostile_texts: tuple[str, list[str]], visit: Callable[[str], Page], complaints: list[str]
) -> None:
    address, cookies = hostile_texts
    page = visit(designer)

    page.goto(address)
    found = page.evaluate(TRIES, designer.partition("?")[0])

    assert found == {"script": "error", "socket": "error", "page": "refused"}
    [_, frame] = page.frames
    assert frame.url.startswith("chrome-error:")
    assert cookies and not any(TOKEN in each for each in cookies)
    page.goto("about:blank")
    complaints.clear()  # the browser says what it refused
