"""Fixtures for the tests of the page in a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.drawn import SIZE, Drawn
from tests.conftest import (
    IDLE,
    PATIENCE_S,
    VIEWPORT,
    clean_page,
    failing_on_logged_exceptions,
    new_context,
    open_server_with_errors,
    watch,
)

if TYPE_CHECKING:
    from panel import Column
    from panel.viewable import Viewable
    from playwright.sync_api import Browser, BrowserContext, Page

    from meshwave.designer.state.jobs import Later
    from meshwave.designer.state.studio import Studio
    from meshwave.engine.document import Design

FAILED = pytest.StashKey[bool]()
KNOWN = "() => { Bokeh.documents[0]._new_models.add = () => {} }"
"""Errors of Bokeh that tests ignore: it sends copies of models that were added after the page was loaded, some of which
cannot be parsed.
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Give the next test a new page after a failed test, which may leave the page in any state."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


RENDERED = """() => {
    const all = (view) => [view, ...view.child_views.flatMap(all)];
    const [column] = Bokeh.index.roots;
    return column.child_views.length > 0 && all(column).every((view) => view._rendered ?? true);
}"""


class Stage:
    """A page that stays open for all tests with a browser, each of which shows new widgets on it. The libraries of the
    page are thus loaded only once, which takes many times longer than a test.
    """

    def __init__(self, browser: Browser, serve: Callable[..., str]) -> None:
        import meshwave.designer.pages.design_page  # a server knows the routes, and a page the widgets, that were there when it was made
        import meshwave.designer.pages.transfer_page  # noqa: F401
        from meshwave.designer.views import views

        # Panel defines a widget on all later pages, but on one page only if that is connected during the import.
        assert list(views), "no view was imported"
        self.complaints: list[str] = []
        self.context = new_context(browser)
        self._url = serve(self._app)
        self._page: Page | None = None
        self._parts: tuple[Column, Later] | None = None
        self._live = threading.Event()  # what is shown before that may not reach the page

    @property
    def page(self) -> Page:
        if self._page is None:
            self._page = self.context.new_page()
            watch(self._page, self.complaints)
            self._page.goto(self._url)
            self._page.wait_for_function(IDLE)
            self._page.evaluate(KNOWN)
            assert self._live.wait(PATIENCE_S), "Python never heard that the page stands"
        return self._page

    def show(self, make: Callable[[], Viewable], size: dict[str, int] = VIEWPORT) -> Page:
        """Show the widget that ``make`` returns; ``make`` is called like the app of a page."""
        self.page.set_viewport_size(size)  # type: ignore[arg-type]
        self._put(lambda: [make()])
        self.page.wait_for_function(RENDERED)
        return self.page

    def clear(self) -> None:
        """Remove the widget and its traces in the window, in the link and in the browser's storage."""
        if self._page is None:
            return
        self._put(list)
        self._page.wait_for_function("Bokeh.index.roots[0].child_views.length === 0")
        self._page.evaluate(
            """() => {
                history.replaceState(null, "", location.pathname);
                localStorage.clear();
                delete document.documentElement.dataset.theme;
                delete document.documentElement.dataset.textSize;
                window.meshwaveTimeline = undefined;
                delete window.meshwaveRuns;
            }"""
        )
        self._page.mouse.move(-9, -9)  # over nothing

    def leave(self) -> None:
        if self._page is not None:
            self._page.close()
        self._page = None

    def _app(self) -> Viewable:
        import panel as pn

        from meshwave.designer.kit.assets import read_static
        from meshwave.designer.state.jobs import page_callback_scheduler

        pn.config.raw_css = [read_static("kit/page.css")]
        column = pn.Column(sizing_mode="stretch_both", margin=0)
        assert pn.state.curdoc is not None
        self._parts = column, page_callback_scheduler(pn.state.curdoc)
        self._live.clear()
        pn.state.onload(self._live.set)
        return column

    def run(self, change: Callable[[], object]) -> None:
        """Call a function in the thread and document of the page, as gestures are handled, and wait until the result
        was sent.
        """
        assert self._parts is not None
        _, later = self._parts
        done, failures = threading.Event(), []

        def call() -> None:
            try:
                change()
            except Exception as error:
                failures.append(error)
            finally:
                done.set()

        later(call)
        assert done.wait(PATIENCE_S), "the page's own thread never came to it"
        if failures:
            raise failures[0]

    def _put(self, make: Callable[[], list[Viewable]]) -> None:
        assert self._parts is not None
        column, _ = self._parts

        def put() -> None:
            column.objects = make()
            if not column.objects:  # Panel keeps the size of the widgets that were removed
                for model, _ in column._models.values():
                    model.update(min_width=None, min_height=None)

        self.run(put)


class Look:
    """A callback that can be stopped from any thread; after ``end`` no call is in progress."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look, self._lock, self._is_over = look, threading.Lock(), False

    def __call__(self) -> None:
        with self._lock:
            if not self._is_over:
                self._look()

    def end(self) -> None:
        with self._lock:
            self._is_over = True


@pytest.fixture(autouse=True, scope="session")
def clean(documents_taken_back: None, warm_processes: None) -> None:
    """Clear the state of sessions after each test, and share the warm processes of launches."""


@pytest.fixture(scope="package")
def kept_stage(browser: Browser) -> Iterator[Stage]:
    with open_server_with_errors() as serve:
        stage = Stage(browser, serve)
        yield stage
        stage.leave()
        stage.context.close()


@pytest.fixture
def stage(kept_stage: Stage, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """The empty page that stays open; a test fails at its end if the page reported errors."""
    kept_stage.complaints.clear()
    with failing_on_logged_exceptions():
        yield kept_stage
    if request.node.stash.get(FAILED, False):
        kept_stage.leave()
    else:
        kept_stage.clear()
    assert not kept_stage.complaints, "\n".join(kept_stage.complaints)


@pytest.fixture
def whole_page(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Page]]:
    """Show the whole designer on a design, without a draft in the link. Launches are prepared and followed only if
    the test ``launches`` something.
    """
    import panel as pn

    from meshwave.designer.pages.design_widgets import Widgets
    from meshwave.designer.state.design_session import Session
    from meshwave.designer.state.jobs import page_callback_scheduler
    from meshwave.designer.state.studio import Studio
    from meshwave.designer.views.runs import REFRESH_INTERVAL_S
    from meshwave.engine.runs.launchers import launchers

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))

    with ExitStack() as stack:

        def show(design: Design, launches: bool = False) -> Page:
            def app() -> Viewable:
                assert pn.state.curdoc is not None
                widgets = Widgets(Session(design, page_callback_scheduler(pn.state.curdoc)), studio)
                for end in (widgets.session.close, widgets.problems.stop_jobs, widgets.gallery.stop_jobs):
                    stack.callback(end)
                if launches:
                    look = Look(widgets.runs.refresh)
                    looking = pn.state.add_periodic_callback(look, period=int(1000 * REFRESH_INTERVAL_S))
                    stack.callback(look.end)
                    stack.callback(looking.stop)
                return widgets.layout()

            if not launches:
                monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
            studio = Studio(design)
            stack.callback(studio.close)
            page = stage.show(app)
            page.wait_for_function("window.meshwaveTimeline")
            return page

        yield show


class Server:
    """The start page, the designer and the transfer lab on one port for all tests, with the studio of the running
    test. The browser thus loads and compiles the libraries of the page only once.
    """

    def __init__(self, serve: Callable[..., str]) -> None:
        from meshwave.designer.pages.start_page import front_page, start_page
        from meshwave.designer.pages.transfer_page import lab_page

        self.studios: list[Studio] = []  # which stay open, since pages that are closed look at theirs for seconds
        self.link = serve(
            {
                "/": lambda: front_page(self.studios[-1]),
                "/start": lambda: start_page(self.studios[-1]),
                "/transfer": lambda: lab_page(),
            }
        )


@pytest.fixture(scope="package")
def kept_server() -> Iterator[Server]:
    with open_server_with_errors() as serve:
        server = Server(serve)
        yield server
    for studio in server.studios:
        studio.close()


@pytest.fixture(scope="package")
def kept_context(browser: Browser) -> Iterator[BrowserContext]:
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture
def studio(kept_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Studio:
    """A studio with an empty library for the server that stays, without launches."""
    from meshwave.designer.state.studio import Studio
    from meshwave.engine.document import load_design
    from meshwave.engine.files import example
    from meshwave.engine.runs.launchers import launchers

    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers["local"], "warm", lambda launcher: None)
    kept_server.studios.append(Studio(load_design(example("01-first-wave")), starts_with_library=True))
    return kept_server.studios[-1]


@pytest.fixture
def served_page(
    kept_server: Server, kept_context: BrowserContext, studio: Studio, complaints: list[str]
) -> Iterator[Page]:
    """A page in the browser that stays open, which keeps only its cache between tests."""
    page = kept_context.new_page()
    origin = {"origin": kept_server.link.rstrip("/"), "storageTypes": "local_storage"}
    kept_context.new_cdp_session(page).send("Storage.clearDataForOrigin", origin)
    kept_context.clear_cookies()
    kept_context.clear_permissions()
    with failing_on_logged_exceptions():
        yield from clean_page(page, complaints)


@pytest.fixture
def drawn(stage: Stage) -> Drawn:
    """A page with a timeline only."""
    made: list[Any] = []
    pins: list[Any] = []

    def chart() -> Any:
        from meshwave.designer.views.timeline import TimelineChart

        made.append(TimelineChart(on_pin=pins.append, sizing_mode="stretch_both", min_height=SIZE["height"]))
        return made[-1]

    page = stage.show(chart, SIZE)
    page.wait_for_function("window.meshwaveTimeline")
    return Drawn(page, made, pins, stage.run)
