"""A closed tab leaves nothing on the server."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from bokeh.document import Document
from bokeh.server.session import ServerSession
from bokeh.util.token import get_session_id
from tornado.ioloop import PeriodicCallback

from meshwave.designer.bench.page_client import SESSION_TOKEN, PageClient
from meshwave.designer.canvases.transfer import TransferView
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.server import serve as server
from meshwave.designer.state import job_processes
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.job_processes import take_process
from meshwave.designer.state.library import new_id
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.run_data import FollowedRun
from meshwave.designer.views.run_log import RunLog
from meshwave.designer.views.runs import RunsPanel
from meshwave.engine.document import Design
from tests.conftest import wait_until

OF_A_TAB = (Document, ServerSession, Session, Widgets, TransferView, PeriodicCallback, FollowedRun, RunsPanel, RunLog)
LIFETIME_S = 0.5
CONNECTING_S = 3.0
"""Lifetime of a session that has not expired while a slow machine looks for it and connects."""
EDITED, OTHERS = 2, 2


@pytest.fixture
def designer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[str, Studio]]:
    """Return the link and the studio of a designer that discards a session soon after its tab is closed."""
    lifetime_s: float = getattr(request, "param", LIFETIME_S)
    studios: list[Studio] = []

    def studio(design: Design) -> Studio:
        studios.append(Studio(design))
        return studios[0]

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    logging.disable(logging.INFO)  # pytest keeps what is logged, and Panel logs events with their widgets
    monkeypatch.setattr(server, "Studio", studio)
    with server.serve_in_thread(server.read_design(None), "a-token-for-tests", session_lifetime_s=lifetime_s) as link:
        yield link, studios[0]
    logging.disable(logging.NOTSET)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        elsewhere.submit(asyncio.run, coroutine).result()


def kept_counts(studio: Studio) -> dict[str, int]:
    """Count the objects of each kind that a tab has."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return {
        **{kind.__name__: kinds[kind] for kind in OF_A_TAB},
        "listeners": len(studio.calibration._listeners),
        "open drafts": len(studio._open),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }


def runs_are_over(studio: Studio) -> bool:
    return all(entry.state.is_over for entry in studio.record.entries())


async def edit_and_leave(link: str) -> None:
    page = await PageClient.open(link)
    await page.edit(7)
    await page.leave()


async def search_and_leave(link: str) -> None:
    """Close the tab while the gallery is predicted and an order is searched."""
    page = await PageClient.open(link)
    await page.gesture("TopBar", {"type": "gallery"})
    await page.gesture("WaveCanvas", {"type": "schedule", "name": "auto"})
    await page.leave()


async def launch_and_leave(link: str) -> None:
    """Close the tab during a dry run."""
    page = await PageClient.open(link)
    await page.ask("LaunchBar", {"type": "choose", "place": "threads"})
    await page.ask("LaunchBar", {"type": "rehearse", "key": new_id()})
    await page.leave()


async def look_at_a_transfer(link: str) -> None:
    page = await PageClient.open(link.replace("/?", "/transfer?"))
    await page.leave()


async def visit(link: str) -> None:
    for _ in range(EDITED):
        await edit_and_leave(link)
    for _ in range(OTHERS // 2):
        await search_and_leave(link)
        await look_at_a_transfer(link)
        await launch_and_leave(link)


@pytest.mark.slow
@pytest.mark.parametrize("designer", [CONNECTING_S], indirect=True)
def test_a_tab_that_is_closed_while_it_connects_leaves_no_session(designer: tuple[str, Studio]) -> None:
    link = urlsplit(designer[0])
    connection = HTTPConnection(link.netloc)
    connection.request("GET", f"{link.path}?{link.query}")
    answer = connection.getresponse()
    cookie, found = str(answer.headers["Set-Cookie"]).partition(";")[0], SESSION_TOKEN.search(answer.read().decode())
    assert found is not None
    session_id = get_session_id(found[1])

    def is_kept() -> bool:
        return any(type(each) is ServerSession and each.id == session_id for each in gc.get_objects())

    def is_kept_after_collection() -> bool:
        gc.collect()
        return is_kept()

    assert is_kept()
    handshake = [
        f"GET {link.path.rstrip('/')}/ws HTTP/1.1", f"Host: {link.netloc}", f"Origin: http://{link.netloc}",
        f"Cookie: {cookie}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Sec-WebSocket-Protocol: bokeh, {found[1]}",
    ]  # fmt: skip
    closing = bytes([0x88, 0x80, 0, 0, 0, 0])  # a frame with a mask and no reason
    with socket.create_connection((str(link.hostname), link.port)) as browser:
        browser.sendall("\r\n".join([*handshake, "", ""]).encode() + closing)
        assert b"101 Switching Protocols" in browser.recv(4096)
        while browser.recv(4096):
            pass

    assert wait_until(lambda: not is_kept_after_collection())


@pytest.mark.slow
def test_closed_tabs_leave_nothing_behind(designer: tuple[str, Studio], monkeypatch: pytest.MonkeyPatch) -> None:
    link, studio = designer
    monkeypatch.setattr(job_processes, "IDLE_S", 0)
    take_process().end()  # that of another test may wait for the next job
    of_other_tests = [each for each in gc.get_objects() if type(each) in OF_A_TAB]  # held, so that they stay as many
    sessions = sum(isinstance(each, ServerSession) for each in of_other_tests)
    run(edit_and_leave(link))  # loads what a process keeps
    run(search_and_leave(link))  # starts the process that jobs are forked from
    run(launch_and_leave(link))
    assert wait_until(lambda: kept_counts(studio)["ServerSession"] == sessions), kept_counts(studio)
    assert wait_until(lambda: runs_are_over(studio))
    assert wait_until(lambda: "job" not in {thread.name for thread in threading.enumerate()}), "a job goes on"
    before = kept_counts(studio)

    run(visit(link))

    assert wait_until(lambda: runs_are_over(studio))
    assert wait_until(lambda: kept_counts(studio) == before), f"before: {before}, after: {kept_counts(studio)}"
    del of_other_tests
