"""Fixtures for all tests: Chromium, a page that must not report errors, a served app, and a temporary home folder."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

    from tests.engine.runtime.crew_client import Crew

PATIENCE_S = 20.0
"""Time in seconds that a test waits for an immediate event, since a busy machine may be slow for seconds."""
ROOT = Path(__file__).resolve().parents[1]
CHART_STATE = ROOT / "tests" / "browser" / "chart_state.js"
VIEWPORT = {"width": 1440, "height": 900}

CHROMIUM_FLAGS = (
    "--no-sandbox",  # containers and root have none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The popups of the address bar, which nobody sees, cost a process of 0.6 s for each context, and so does the spare
    # process for the next page. This list replaces Playwright's own, of which the first line is what matters here.
    "--disable-features=AimEnabled,HttpsUpgrades,MediaRouter,OptimizationHints,PaintHolding,PreconnectToSearch,"
    "SpareRendererForSitePerProcess,WebUIOmniboxAimPopup,WebUIOmniboxPopup",
)
UNHEARD = "not connected so cannot send"
"""Text that Bokeh logs for a message from a page whose socket has just been closed; tests ignore it."""
IDLE = "window.Bokeh?.documents?.length > 0 && window.Bokeh.documents[0].is_idle"

EXAMPLES = 40  # of a property, where it asks for no other number
settings.register_profile("default", deadline=None, max_examples=EXAMPLES)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", deadline=None, max_examples=EXAMPLES // 8)
settings.register_profile("nightly", deadline=None, max_examples=25 * EXAMPLES, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the tests that are marked nightly too")


def wait_until(found: Callable[[], Any]) -> Any:
    """Return the first true result of ``found``, which is called until the patience of a test ends; else its last
    result.
    """
    end = time.monotonic() + PATIENCE_S
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.1)
    return result


def pytest_sessionstart() -> None:
    """Disable garbage collection while modules are imported, since imports create millions of permanent objects."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from later garbage collections, which then take half the time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # others mark their items first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, and deselect those for the night and for a GPU.

    Only a missing GPU or accelerator skips a test, because ``make test`` installs everything else. Slow files come
    first, so that no worker is left with one of them at the end.
    """
    if not config.getoption("--nightly"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: [bool(item.get_closest_marker(mark)) for mark in ("torch", "browser")], reverse=True)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_gpu():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    on_accelerator = [item for item in items if item.get_closest_marker("accelerator")]
    if on_accelerator and not _has_accelerator():
        for item in on_accelerator:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator, or torch_openreg, which simulates one"))


def _has_gpu() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def _has_accelerator() -> bool:
    from meshwave.engine.runtime.device.accelerator import accelerator_type

    return accelerator_type() is not None


@pytest.fixture(scope="session", autouse=True)
def meshwave_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A temporary folder for drafts and runs, which replaces the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("meshwave-home"))
        patch.setenv("MESHWAVE_HOME", folder)
        yield folder


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """The warm process from which all tests fork processes that have imported torch."""
    from tests.engine.runtime.crew_client import Crew

    crew = Crew()
    yield crew
    crew.end()


@pytest.fixture(scope="session")
def warm_processes() -> Iterator[None]:
    """Warm processes that all launchers on this machine share, which import torch only once for all tests."""
    from tests.warm_processes import shared_warm_processes

    with shared_warm_processes():
        yield


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium that starts; a missing one fails the test, so that the page is never left untested.

    Chromium without windows (Debian's ``chromium-headless-shell``) opens a page in two thirds of the processor time.
    """
    from meshwave.engine.cli.doctor import CHROMIUM_REMEDY, find_chromium

    is_chosen = "CHROME_BIN" in os.environ
    found = (None if is_chosen else shutil.which("chromium-headless-shell")) or find_chromium()
    if found is None:
        pytest.fail(f"no Chromium was found; {CHROMIUM_REMEDY}", pytrace=False)
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """A headless Chromium for all tests, with its own profile."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


def watch(page: Page, complaints: list[str]) -> None:
    """Record violations of a page: requests to other servers, logged errors and exceptions."""

    def address(url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", "localhost"):
            complaints.append(f"fetched from elsewhere: {url}")

    leaving = False

    def turn_to(now: bool) -> None:
        nonlocal leaving
        leaving = now

    def console(message: ConsoleMessage) -> None:
        if message.type == "error" and not (leaving and UNHEARD in message.text):
            complaints.append(f"console error: {message.text} ({message.location.get('url', '')})")

    page.on("request", lambda request: address(request.url))
    page.on("request", lambda request: request.is_navigation_request() and turn_to(True))
    page.on("domcontentloaded", lambda _: turn_to(False))
    page.on("websocket", lambda socket: address(socket.url))
    page.on("console", console)
    page.on("pageerror", lambda error: complaints.append(f"thrown in the page: {error}"))


@pytest.fixture
def complaints() -> list[str]:
    """The violations of the page so far; a test that causes an error on purpose clears them."""
    return []


def new_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")  # type: ignore[arg-type]
    context.add_init_script(path=CHART_STATE)
    return context


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser context without any history."""
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, complaints: list[str]) -> Iterator[Page]:
    """A new page of 1440 x 900 pixels; the test fails at its end if there are complaints about it."""
    yield from clean_page(context.new_page(), complaints)


def clean_page(page: Page, complaints: list[str]) -> Iterator[Page]:
    """Watch a page during a test, then close it and fail if there are complaints about it."""
    watch(page, complaints)
    yield page
    before = len(complaints)
    page.close()
    complaints[before:] = [words for words in complaints[before:] if UNHEARD not in words]
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def visit(page: Page) -> Callable[[str], Page]:
    """Open a link and wait until Bokeh has drawn everything and is idle."""

    def open_and_settle(url: str) -> Page:
        page.goto(url)
        page.wait_for_function(IDLE)
        return page

    return open_and_settle


@pytest.fixture(scope="session")
def documents_taken_back() -> Iterator[None]:
    """Remove documents that Bokeh still lists as current.

    Bokeh removes a document only if the callback did not raise. A view that is created without a document would use a
    remaining one, in any later test.
    """
    import weakref

    from bokeh.io import doc
    from panel.io import handlers

    @contextmanager
    def patch_curdoc(document: Any) -> Iterator[None]:
        doc._PATCHED_CURDOCS.append(weakref.ref(document))
        del document
        try:
            yield
        finally:
            doc._PATCHED_CURDOCS.pop()

    with pytest.MonkeyPatch.context() as patch:
        for module in (doc, handlers):
            patch.setattr(module, "patch_curdoc", patch_curdoc)
        yield


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serve an app (an object, a function that makes one, or a mapping of them) in this process; return its link.

    It runs in this process so that tests can inspect its Python objects, on a free loopback port, and stops when the
    test ends. Keyword arguments are passed to ``pn.serve``.
    """
    with open_server() as start:
        yield start


@contextmanager
def open_server() -> Iterator[Callable[..., str]]:
    """Serve an app inside a context, like :func:`serve`; fail at the end if a session logged an exception."""
    with (
        open_server_with_errors() as start,
        failing_on_logged_exceptions(),
    ):  # a server that stops may cut off what it does
        yield start


@contextmanager
def failing_on_logged_exceptions() -> Iterator[None]:
    """Fail at the end if a callback of a session raised in our code, which is visible only in the server's log."""
    raised = _Raised()
    logging.getLogger().addHandler(raised)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(raised)
    assert not raised.messages, "\n".join(raised.messages)


@contextmanager
def open_server_with_errors() -> Iterator[Callable[..., str]]:
    """Serve an app like :func:`open_server`, but ignore logged exceptions."""
    servers: list[Any] = []

    def start(app: Any, **options: Any) -> str:
        import panel as pn

        port = free_port()
        standing = {"port": port, "address": "127.0.0.1", "threaded": True, "show": False, "verbose": False}
        servers.append(pn.serve(app, **{**standing, **options}))
        _wait_for(port)
        return f"http://127.0.0.1:{port}/"

    try:
        yield start
    finally:
        for server in servers:
            server.stop()
            server.join(PATIENCE_S)


class _Raised(logging.Handler):
    """Logged exceptions in our own code, except those of a socket whose page is closed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        from tornado.websocket import WebSocketClosedError

        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, WebSocketClosedError) and _is_ours(error):
            self.messages.append(logging.Formatter().format(record))


def _is_ours(error: BaseException) -> bool:
    files = (frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return any(file.startswith(str(ROOT)) and "site-packages" not in file for file in files)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _wait_for(port: int) -> None:
    import socket

    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
