"""Servers in threads, and requests as a browser or a stranger sends them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from meshwave.designer.server.serve import read_design
from meshwave.designer.state.jobs import running_jobs
from meshwave.designer.state.studio import Studio


@contextmanager
def serve_page(home: Path, start: Callable[[Studio], Any]) -> Iterator[Any]:
    """Run a server in a thread, with a folder of its own, and yield it; ``start`` returns the server of a studio."""
    started: list[Any] = []
    ready = threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        studio = Studio(read_design(None), starts_with_library=True)
        server = start(studio)
        started.append(server)
        server.io_loop.add_callback(ready.set)
        server.io_loop.start()
        studio.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", str(home))
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert ready.wait(60)
        yield started[0]
        started[0].io_loop.add_callback(started[0].io_loop.stop)
        thread.join(10)
        while jobs := running_jobs():  # of its pages, for which jobs of later tests would wait
            for job in jobs:
                job.stop("the server has ended")
                assert job.join(10)


def answer(port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> HTTPResponse:
    """Return the first response to a request, without following a redirect."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, headers)
    return connection.getresponse()


def send_form(port: int, path: str, values: dict[str, str], **headers: str) -> HTTPResponse:
    """Send a form and return the first response."""
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    return answer(port, path, "POST", urlencode(values), **kind, **headers)


def cookie_of(response: HTTPResponse) -> str:
    """Return the cookie that a response sets, in the form in which a browser sends it back."""
    return str(response.headers["Set-Cookie"].partition(";")[0])


def websocket_status(port: int, path: str = "/ws", token: str = "no-session-token", **headers: str) -> int:
    """Return 101 if the websocket opens, else the status of the refusal."""

    async def knock() -> int:
        request = HTTPRequest(f"ws://127.0.0.1:{port}{path}", headers=headers, request_timeout=20)
        try:
            socket = await websocket_connect(request, subprotocols=["bokeh", token])
        except HTTPClientError as error:
            return int(error.code)
        socket.close()
        return 101

    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        return elsewhere.submit(asyncio.run, knock()).result()
