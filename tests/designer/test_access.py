"""Who gets in: the page starts processes, so only the holder of the link, on this machine, under its own name."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from meshwave.designer.kit.assets import HEAD
from meshwave.designer.pages.studio import Studio
from meshwave.designer.server.access import TokenAccess, new_token
from meshwave.designer.server.serve import read_design, start_somewhere

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A designer that is served as ``meshwave serve`` does; its port."""
    ports, stops = [], []
    ready = threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        studio = Studio(read_design(None))
        server, port = start_somewhere(studio, None, TOKEN)
        ports.append(port)
        stops.append(lambda: server.io_loop.add_callback(server.io_loop.stop))
        server.io_loop.add_callback(ready.set)
        server.io_loop.start()
        studio.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", str(tmp_path_factory.mktemp("home")))
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert ready.wait(60)
        yield ports[0]
        stops[0]()
        thread.join(10)


def status(port: int, path: str, **headers: str) -> int:
    request = Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def websocket_status(port: int, **headers: str) -> int:
    """101 where the websocket opens, else the refusal."""

    async def knock() -> int:
        request = HTTPRequest(f"ws://127.0.0.1:{port}/ws", headers=headers, request_timeout=20)
        try:
            socket = await websocket_connect(request, subprotocols=["bokeh", "no-session-token"])
        except HTTPClientError as error:
            return int(error.code)
        socket.close()
        return 101

    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        return elsewhere.submit(asyncio.run, knock()).result()


def test_modules_go_to_whoever_asks_for_those_of_this_version_and_nothing_else_does(port: int) -> None:
    url = re.search(r'href="(/assets/\w+/widgets.js)"', HEAD)
    assert url is not None
    with urlopen(f"http://127.0.0.1:{port}{url[1]}", timeout=20) as answer:
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Content-Type"].startswith("text/javascript")
        assert b"export" in answer.read()
    version = url[1].split("/")[2]
    for path in (
        "/assets/0123456789abcdef/widgets.js",
        f"/assets/{version}/nothing.js",
        f"/assets/{version}/kit/page.css",
        f"/assets/{version}/../designer/assets.py",
    ):
        assert status(port, path) in (403, 404)


def test_the_link_lets_in(port: int) -> None:
    assert status(port, f"/?token={TOKEN}") == 200


def test_the_cookie_that_the_link_left_lets_in(port: int) -> None:
    assert status(port, "/", Cookie=f"meshwave-{port}={TOKEN}") == 200


@pytest.mark.parametrize(
    "path", ["/", "/transfer", "/?token=", "/?token=a-token-for-test", f"/?token={TOKEN}x", "/?token=%C3%A9"]
)
def test_without_the_whole_token_nothing_is_shown(port: int, path: str) -> None:
    assert status(port, path) == 403


def test_who_follows_a_link_of_another_page_is_offered_the_same_page_once_more(port: int) -> None:
    """Browsers send our cookie where a link of ours is followed, which the one on the refusal is."""
    for path, offered in (("/transfer", True), ("/", True), ("/elsewhere", False)):
        request = Request(f"http://127.0.0.1:{port}{path}", headers={"Sec-Fetch-Site": "cross-site"})
        with pytest.raises(HTTPError) as refused:
            urlopen(request, timeout=20)
        assert (f"href='{path}'" in refused.value.read().decode()) is offered
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{port}/refused?next=https%3A%2F%2Felsewhere.example%2F", timeout=20)
    assert b"elsewhere.example" not in refused.value.read()


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org"])
def test_another_host_is_refused(port: int, host: str) -> None:
    """A name of somebody else's that resolves to this machine is no way in."""
    assert status(port, f"/?token={TOKEN}", Host=host) == 403


def test_the_page_s_own_websocket_is_not_refused(port: int) -> None:
    cookie = f"meshwave-{port}={TOKEN}"

    assert websocket_status(port, Origin=f"http://127.0.0.1:{port}", Cookie=cookie) == 101


@pytest.mark.parametrize("origin", ["http://example.org", "http://127.0.0.1:1", "null"])
def test_a_websocket_of_another_page_is_refused(port: int, origin: str) -> None:
    """Also with the cookie, which a browser may send along."""
    assert websocket_status(port, Origin=origin, Cookie=f"meshwave-{port}={TOKEN}") == 403


@pytest.mark.parametrize("cookie", ["", "another=1", "meshwave-{port}=wrong"])
def test_a_websocket_without_the_token_is_refused(port: int, cookie: str) -> None:
    cookie = cookie.format(port=port)

    assert websocket_status(port, Origin=f"http://127.0.0.1:{port}", Cookie=cookie) == 403


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}

    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 256 bits in base64


def test_a_token_is_compared_whole() -> None:
    access = TokenAccess(TOKEN, 5006)

    assert access._is_token(TOKEN)
    assert not any(map(access._is_token, ["", TOKEN[:-1], f"{TOKEN} ", TOKEN.upper(), "é"]))
