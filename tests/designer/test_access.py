"""Access control: only holders of the link, on this machine and under its own host name, are admitted."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from bokeh.protocol import Protocol
from bokeh.util.token import get_token_payload
from tornado.websocket import WebSocketClosedError

from meshwave.designer.bench.page_client import PageClient
from meshwave.designer.kit.assets import HEAD
from meshwave.designer.server import sockets
from meshwave.designer.server.access import METRICS_TOKEN, MOST_SIGN_INS, SIGN_IN_DAYS, TokenAccess, new_token
from meshwave.designer.server.serve import start_user_pages
from meshwave.designer.server.site import Place
from meshwave.engine.errors import RunError
from tests.designer.web import answer, cookie_of, serve_page, websocket_status

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A designer that is served like ``meshwave serve`` does."""
    with serve_page(tmp_path_factory.mktemp("home"), lambda studio: start_user_pages(studio, TOKEN)[0]) as server:
        yield server


@pytest.fixture(scope="module")
def port(server: Any) -> int:
    return int(server.port)


def status(port: int, path: str, **headers: str) -> int:
    request = Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def sign_in(port: int) -> str:
    """Return the cookie that a browser receives for the link."""
    return cookie_of(answer(port, f"/?token={TOKEN}"))


def test_messages_beyond_the_rate_wait_and_none_is_lost(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MESSAGES_PER_S", 100)
    monkeypatch.setattr(sockets, "BURST", 10)

    async def send_requests(count: int) -> float:
        page = await PageClient.open(f"http://127.0.0.1:{port}/?token={TOKEN}")
        began = time.monotonic()
        for _ in range(count):
            await page._send(Protocol().create("SERVER-INFO-REQ"))
        for _ in range(count):
            await page.receive(lambda message: message.msgtype == "SERVER-INFO-REPLY")
        took = time.monotonic() - began
        page._socket.close()
        return took

    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        assert elsewhere.submit(asyncio.run, send_requests(60)).result() > 0.4


def test_the_last_messages_of_a_closed_page_are_handled_although_pings_fail(
    server: Any, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str | bytes] = []
    left: list[int] = []
    handle = sockets.RateLimitedSocket.on_message

    async def handle_and_count(self: sockets.RateLimitedSocket, frame: str | bytes) -> None:
        await handle(self, frame)
        if "SERVER-INFO-REQ" in str(frame):  # in the header of a message
            handled.append(frame)

    monkeypatch.setattr(sockets, "MESSAGES_PER_S", 10)
    monkeypatch.setattr(sockets, "BURST", 5)
    monkeypatch.setattr(sockets.RateLimitedSocket, "on_message", handle_and_count)
    monkeypatch.setattr(server._tornado, "client_lost", lambda connection: left.append(len(handled)))

    async def leave_at_once() -> None:
        page = await PageClient.open(f"http://127.0.0.1:{port}/?token={TOKEN}")
        await send_together(page, 20)
        while not handled:  # then the server has read the others too
            await asyncio.sleep(0.01)
        page._socket.protocol.stream.close()
        for _ in range(3):
            pinged = Future[None]()
            server.io_loop.add_callback(lambda done=pinged: (server._tornado._keep_alive(), done.set_result(None)))
            await asyncio.wrap_future(pinged)
        while not left:
            await asyncio.sleep(0.05)

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, asyncio.wait_for(leave_at_once(), 20)).result()
    assert left == [20], "the page is left after its last message only"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def send_together(page: PageClient, count: int) -> None:
    """Send messages in one piece, which the server reads as a whole: the system drops what is unread at an error."""
    stream, parts = page._socket.protocol.stream, list[bytes]()

    def collect(part: bytes) -> Future[None]:
        parts.append(bytes(part))
        written = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    stream.write, write = collect, stream.write
    for _ in range(count):
        await page._send(Protocol().create("SERVER-INFO-REQ"))
    await write(b"".join(parts))


def test_a_page_with_a_slash_is_redirected_to_the_page(port: int) -> None:
    found = answer(port, "/transfer/?design=example")

    assert (found.status, found.headers["Location"]) == (302, "/transfer?design=example")


def test_modules_are_served_to_any_client_and_nothing_else_is(port: int) -> None:
    url = re.search(r'href="(assets/\w+/widgets.js)"', HEAD)
    assert url is not None
    with urlopen(f"http://127.0.0.1:{port}/{url[1]}", timeout=20) as answer:
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Content-Type"].startswith("text/javascript")
        assert b"export" in answer.read()
    version = url[1].split("/")[1]
    for path in (
        "/assets/0123456789abcdef/widgets.js",
        f"/assets/{version}/nothing.js",
        f"/assets/{version}/kit/page.css",
        f"/assets/{version}/../designer/assets.py",
    ):
        assert status(port, path) in (403, 404)


def test_the_link_with_the_token_grants_access(port: int) -> None:
    assert status(port, f"/?token={TOKEN}") == 200


def test_the_cookie_set_by_the_link_grants_access(port: int) -> None:
    assert status(port, "/", Cookie=sign_in(port)) == 200


def test_the_cookie_does_not_contain_the_token_and_scripts_cannot_read_it(port: int) -> None:
    """Browsers send the cookie to every port of this machine."""
    cookie = answer(port, f"/?token={TOKEN}").headers["Set-Cookie"]

    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert sign_in(port) != sign_in(port)
    assert status(port, "/", Cookie=f"meshwave-{port}={TOKEN}") == 403


@pytest.mark.slow
def test_a_page_contains_neither_the_token_nor_the_cookie(port: int) -> None:
    """Bokeh writes headers and cookies of a request into the page, where scripts can read them."""
    cookie = sign_in(port)
    page = answer(port, f"/?token={TOKEN}&draft=0123456789ab", Cookie=f"{cookie}x").read().decode()
    payload = re.search(r'"token":"([^".]+)', page)
    assert payload is not None

    written = base64.urlsafe_b64decode(payload[1] + "==").decode("latin-1")

    assert "0123456789ab" in get_token_payload(payload[1])["arguments"]["draft"][0].decode()
    assert TOKEN not in page + written
    assert cookie.partition("=")[2] not in page + written


class FakeHandler:
    """The parts of a request handler that the access control uses."""

    def __init__(self, port: int, cookie: str = "", token: str = "") -> None:
        host = f"127.0.0.1:{port}"
        self.request = SimpleNamespace(host=host, path="/", headers={}, arguments={"token": token} if token else {})
        self.cookie, self.token = cookie, token

    def get_cookie(self, name: str, default: str) -> str:
        return self.cookie or default

    def set_cookie(self, name: str, value: str, **options: Any) -> None:
        self.cookie = value

    def get_argument(self, name: str, default: str) -> str:
        return self.token or default


def test_cookies_expire_on_the_server_and_the_oldest_expires_when_there_are_too_many() -> None:
    now = 0.0
    access = TokenAccess(TOKEN, Place(port=5006), clock=lambda: now)

    def cookie() -> str:
        handler = FakeHandler(5006, token=TOKEN)
        access.get_user(handler)
        return handler.cookie

    def is_admitted(cookie: str) -> bool:
        return access.get_user(FakeHandler(5006, cookie)) is not None

    first = cookie()
    assert is_admitted(first)
    now = SIGN_IN_DAYS * 24 * 3600
    assert not is_admitted(first)

    second, *_, last = [cookie() for _ in range(MOST_SIGN_INS + 1)]
    assert is_admitted(last) and not is_admitted(second)


@pytest.mark.parametrize(
    "path", [f"/?token={TOKEN}", "/", "/healthz", "/nowhere", "/favicon.ico", "/static/js/bokeh.min.js"]
)
def test_responses_cannot_be_framed_or_loaded_by_another_site(port: int, path: str) -> None:
    headers = answer(port, path).headers

    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/static/%00", "/static/extensions/panel/%00", "/components/%00/a/b/c", "/components/./a/b/c"]
)
def test_an_invalid_path_is_not_found(port: int, path: str) -> None:
    assert status(port, path) == 404


def test_no_request_makes_the_server_import_a_module(port: int) -> None:
    status(port, "/components/this/a/b/c")

    assert "this" not in sys.modules


def test_a_refusal_redirects_without_the_token(port: int) -> None:
    refused = answer(port, f"/transfer?token={TOKEN}&x=1", Host="example.org")

    assert refused.status == 302
    assert refused.headers["Location"].removeprefix(".") == "/refused?next=/transfer"


DRAFT = "0123456789ab"


def arguments_of_page(port: int, path: str, cookie: str) -> dict[str, Any]:
    """Return the arguments of the page that a browser opens."""
    payload = re.search(r'"token":"([^".]+)', answer(port, path, Cookie=cookie).read().decode())
    assert payload is not None
    arguments: dict[str, Any] = get_token_payload(payload[1])["arguments"]
    return arguments


@pytest.mark.slow
def test_the_link_with_the_token_opens_the_design_that_was_refused_before(port: int) -> None:
    """A page is refused when it is reloaded after a restart of the server, which forgets its cookies."""
    refused = answer(port, f"/?draft={DRAFT}&token=outdated")
    path = refused.headers["Location"].removeprefix(".")
    assert path == f"/refused?next=/%3Fdraft%3D{DRAFT}"
    kept = cookie_of(answer(port, path))

    assert arguments_of_page(port, f"/?token={TOKEN}", kept)["draft"] == [DRAFT.encode()]
    assert "draft" not in arguments_of_page(port, f"/?token={TOKEN}&example=02-two-waves", kept)
    assert "draft" not in arguments_of_page(port, f"/?token={TOKEN}", kept.replace(DRAFT, "elsewhere"))
    assert status(port, "/", Cookie=kept) == 403


def test_only_the_own_page_makes_a_browser_keep_a_design(port: int) -> None:
    path = f"/refused?next=/%3Fdraft%3D{DRAFT}"

    assert answer(port, path, **{"Sec-Fetch-Site": "cross-site"}).headers["Set-Cookie"] is None
    assert answer(port, "/refused?next=/%3Fdraft%3Delsewhere").headers["Set-Cookie"] is None


def test_a_refused_page_is_opened_when_it_is_reloaded_by_an_admitted_browser(port: int) -> None:
    found = answer(port, f"/refused?next=/%3Fdraft%3D{DRAFT}", Cookie=sign_in(port))

    assert (found.status, found.headers["Location"]) == (302, f"/?draft={DRAFT}")


def test_a_request_with_a_large_body_is_rejected_without_reading_it(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("POST", f"/?token={TOKEN}")
    connection.putheader("Content-Length", "10000000")
    connection.endheaders()

    assert connection.getresponse().status == 400


@pytest.mark.slow
def test_a_message_that_is_too_large_closes_the_websocket(port: int) -> None:
    async def send() -> None:
        page = await PageClient.open(f"http://127.0.0.1:{port}/?example=02-two-waves&token={TOKEN}")
        await page.ask("TopBar", {"type": "rename", "name": "x" * 21_000_000})

    with (
        pytest.raises((RunError, WebSocketClosedError)),
        ThreadPoolExecutor(1) as elsewhere,
    ):  # this thread may have the loop of a browser
        elsewhere.submit(asyncio.run, send()).result()


@pytest.mark.parametrize(
    ("header", "content", "rest"),
    [
        (
            '{"msgid": "1", "msgtype": "PATCH-DOC", "num_buffers": 9}',
            '{"events": []}',
            ['{"id": "a"}', bytes(6000)] * 2,
        ),
        (
            '{"msgid": "1", "msgtype": "PATCH-DOC"}',
            json.dumps(
                {"events": [{"x": {"type": "bytes", "data": base64.b64encode(gzip.compress(bytes(20_000))).decode()}}]}
            ),
            [],
        ),
    ],
    ids=["buffers", "compressed"],
)
def test_a_message_does_not_fill_the_memory(
    port: int, monkeypatch: pytest.MonkeyPatch, header: str, content: str, rest: list[str | bytes]
) -> None:
    monkeypatch.setattr(sockets, "LARGEST_MESSAGE_BYTES", 10_000)

    async def send() -> str:
        page = await PageClient.open(f"http://127.0.0.1:{port}/?token={TOKEN}", shows=False)
        for frame in (header, "{}", content, *rest):
            await page._socket.write_message(frame, binary=isinstance(frame, bytes))
        try:
            message = await page.receive(lambda message: message.msgtype == "ERROR")
            return str(message.content["text"])
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(1) as elsewhere:
        assert "the message is too large" in elsewhere.submit(asyncio.run, asyncio.wait_for(send(), 20)).result()


def test_health_needs_no_authentication(port: int) -> None:
    health = answer(port, "/healthz")

    assert (health.status, health.read()) == (200, b"ok\n")


def test_metrics_are_sent_to_holders_of_a_token(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS_TOKEN, "for-metrics")

    assert status(port, "/metrics", Authorization="Bearer for-metrics") == 200
    assert status(port, "/metrics", Authorization=f"Bearer {TOKEN}") == 200
    assert status(port, "/metrics", Cookie=sign_in(port)) == 200
    assert status(port, "/", Authorization="Bearer for-metrics") == 403
    for wrong in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}):
        assert status(port, "/metrics", **wrong) == 403


def test_an_empty_token_does_not_read_metrics_when_none_is_configured(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METRICS_TOKEN, "")

    assert status(port, "/metrics", Authorization="Bearer ") == 403


@pytest.mark.parametrize(
    "path", ["/", "/transfer", "/?token=", "/?token=a-token-for-test", f"/?token={TOKEN}x", "/?token=%C3%A9"]
)
def test_an_incomplete_token_shows_nothing(port: int, path: str) -> None:
    assert status(port, path) == 403


def test_a_link_from_another_site_offers_to_open_the_same_page_again(port: int) -> None:
    """Browsers send the cookie when a link on the refusal page is followed, because that page belongs to the
    designer.
    """
    for path, offered in (("/transfer", True), ("/", True), ("/elsewhere", False)):
        request = Request(f"http://127.0.0.1:{port}{path}", headers={"Sec-Fetch-Site": "cross-site"})
        with pytest.raises(HTTPError) as refused:
            urlopen(request, timeout=20)
        assert (f"href='.{path}'" in refused.value.read().decode()) is offered
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{port}/refused?next=https%3A%2F%2Felsewhere.example%2F", timeout=20)
    assert b"elsewhere.example" not in refused.value.read()


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org"])
def test_another_host_is_refused(port: int, host: str) -> None:
    """A foreign host name that resolves to this machine gives no access."""
    assert status(port, f"/?token={TOKEN}", Host=host) == 403


def test_the_websocket_of_the_page_is_accepted(port: int) -> None:
    assert websocket_status(port, Origin=f"http://127.0.0.1:{port}", Cookie=sign_in(port)) == 101


@pytest.mark.parametrize("origin", ["http://example.org", "http://127.0.0.1:1", "null"])
def test_a_websocket_of_another_site_is_refused(port: int, origin: str) -> None:
    """Also with the cookie, which a browser may send along."""
    assert websocket_status(port, Origin=origin, Cookie=sign_in(port)) == 403


@pytest.mark.parametrize("cookie", ["", "another=1", "meshwave-{port}=wrong", f"meshwave-{{port}}={TOKEN}"])
def test_a_websocket_without_the_token_is_refused(port: int, cookie: str) -> None:
    cookie = cookie.format(port=port)

    assert websocket_status(port, Origin=f"http://127.0.0.1:{port}", Cookie=cookie) == 403


def test_tokens_are_long_and_unique() -> None:
    tokens = {new_token() for _ in range(100)}

    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 256 bits in base64


def test_a_token_is_compared_completely() -> None:
    access = TokenAccess(TOKEN, Place(port=5006))

    assert access._is_token(TOKEN)
    assert not any(map(access._is_token, ["", TOKEN[:-1], f"{TOKEN} ", TOKEN.upper(), "é"]))
