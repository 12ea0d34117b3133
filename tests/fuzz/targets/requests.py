"""HTTP requests of strangers and of the user to a running designer; each is answered without an error."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random

from meshwave.designer.server.serve import ThreadedServer, read_design
from tests.fuzz.mutate import STRINGS, mutate_bytes, mutate_text
from tests.fuzz.oracle import Act, Complaint, about_exception
from tests.fuzz.target import Target

TOKEN = "token-of-the-fuzzer"
LIFETIME_S = 2.0
"""Time after which the session of a request for a page ends."""
PATIENCE_S = 0.3
"""Time without an answer after which the server is assumed to wait for the rest of a request."""
START_S = 60.0
LARGEST_ANSWER_BYTES = 20_000_000
PATHS = (
    "/", "/?token=TOKEN", "/?example=02-two-waves", "/?lesson=01-why-pipelines", "/?draft=0123456789ab", "/?shared=a",
    "/start", "/transfer", "/transfer?t=e30", "/board", "/admin", "/metrics", "/healthz", "/ws", "/metadata",
    "/autoload.js?bokeh-autoload-element=1&bokeh-app-path=/&bokeh-absolute-url=/", "/docs/", "/docs/../../pyproject.toml",
    "/static/js/bokeh.min.js", "/assets/0/widgets.js", "/favicon.ico", "/refused?next=//evil.example", "/join", "/sign-in", "/sign-out",
)  # fmt: skip
METHODS = ("GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE")
HEADERS = (
    "Origin: http://evil.example", "Content-Type: application/x-www-form-urlencoded", "Content-Length: 5",
    "Transfer-Encoding: chunked", "X-Forwarded-For: 10.0.0.1", "X-Forwarded-Host: evil.example", "Range: bytes=0-9",
    "Bokeh-Session-Id: a", "Authorization: Bearer TOKEN", "If-None-Match: *", "Cookie: a=b", "Expect: 100-continue",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol: bokeh, e30", "Accept-Encoding: gzip", *(f"X-Odd: {text[:90]}" for text in STRINGS),
)  # fmt: skip


class Requests(Target):
    """Each request gets a status below 500, causes no logged exception, and never receives the token."""

    suffix = ".http"
    entrance = 0

    def seeds(self) -> Iterator[bytes]:
        yield from (f"GET {path} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n".encode() for path in PATHS)

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        content = chance.choice(seeds).replace(b"GET", chance.choice(METHODS).encode(), 1)
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            content = content.replace(b"\r\n", f"\r\n{chance.choice(HEADERS)}\r\n".encode("utf-8", "replace"), 1)
        if chance.random() < 0.4:
            content = mutate_text(chance, [content])
        return mutate_bytes(chance, content) if chance.random() < 0.15 else content

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        content = path.read_bytes()
        for asker, cookie in (("stranger", b""), ("user", _cookie())):
            host = f"127.0.0.1:{_server().port}".encode() + (b"\r\nCookie: " + cookie if cookie else b"")
            yield f"request of a {asker}", partial(_answer, content.replace(b"HOST", host).replace(b"TOKEN", b"a"))


def _answer(request: bytes) -> Iterator[Complaint]:
    logged = _log()
    answer = _send(request)
    if found := re.match(rb"HTTP/1.1 (5\d\d)", answer):
        yield Complaint(f"status {found[1].decode()}", answer[:500].decode("latin-1"))
    if TOKEN.encode() in answer:
        yield Complaint("the token is shown", answer[:500].decode("latin-1"))
    while logged:
        record = logged.pop()
        error = record.exc_info and record.exc_info[1]
        yield about_exception(error) if error else Complaint("an error is logged", record.getMessage())


def _send(request: bytes, patience_s: float = PATIENCE_S) -> bytes:
    """Return the response to a request; empty if the server closes the connection or waits for more data."""
    with socket.create_connection(("127.0.0.1", _server().port), patience_s) as connection:
        answer = b""
        try:
            connection.sendall(request)
            while not _is_whole(answer) and (part := connection.recv(1 << 16)) and len(answer) < LARGEST_ANSWER_BYTES:
                answer += part
        except (ConnectionError, TimeoutError):
            pass
        return answer


def _is_whole(answer: bytes) -> bool:
    """Return whether a response has all bytes that its header states."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\nContent-Length: (\d+)", head)
    return bool(end) and (head.startswith(b"HTTP/1.1 101") or (length is not None and len(body) >= int(length[1])))


@cache
def _server() -> ThreadedServer:
    return ThreadedServer(read_design(None), TOKEN, LIFETIME_S)


@cache
def _cookie() -> bytes:
    answer = _send(
        f"GET /transfer?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1:{_server().port}\r\n\r\n".encode(), START_S
    )
    found = re.search(rb"Set-Cookie: ([^;]+)", answer)
    assert found, answer[:500]
    return found[1]


@cache
def _log() -> list[logging.LogRecord]:
    """Collect the errors that are logged from now on."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logging.getLogger().addHandler(Keep(logging.ERROR))
    return records


TARGET = Requests()
