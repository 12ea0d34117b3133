"""Start the designer: one process, one port on this machine, one printed link."""

from __future__ import annotations

import os
import signal
import socket
import threading
from asyncio import new_event_loop, set_event_loop
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from errno import EADDRINUSE
from pathlib import Path
from types import FrameType

import panel as pn

from meshwave.designer.pages.design_page import page, warm_up
from meshwave.designer.pages.transfer_page import lab_page
from meshwave.designer.server import documentation
from meshwave.designer.server.access import SecurityHeaders, TokenAccess, new_token
from meshwave.designer.server.browser import has_screen, open_browser
from meshwave.designer.server.logs import log_to_terminal
from meshwave.designer.server.metrics import routes
from meshwave.designer.state import jobs
from meshwave.designer.state.studio import Studio
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import find_design
from meshwave.engine.program.shared_links_simulation import compile_in_background

ADDRESS = "127.0.0.1"
FIRST_PORT, PORTS = 5006, 100
TRIES = 20
STARTS_WITHIN_S = 120.0
SESSION_LIFETIME_S = 300.0
"""A page in a background tab, or on a machine that slept, finds its session again within this time."""
LARGEST_BODY_BYTES = 64 * 1024
"""No request needs a body; what a page sends goes through its websocket, whose messages have at most 20 MB."""
CHECKS_PER_LIFETIME = 10
FIRST_EXAMPLE = "01-first-wave"


def serve(design: str | None = None, *, port: int | None = None, home: str | None = None, show: bool = True) -> int:
    """Serve the designer until Ctrl-C; returns the exit status.

    Raises:
        InputError: the design cannot be read, or the port is taken.
        RunError: the folder of drafts and runs cannot be used.
    """
    if home:
        os.environ["MESHWAVE_HOME"] = str(Path(home).expanduser().absolute())
    first = read_design(design)
    free_port(port)  # said before anything else takes time
    token = new_token()
    log_to_terminal(token)
    studio = Studio(first)
    server, port = start_somewhere(studio, port, token)
    link = f"http://{ADDRESS}:{port}/?token={token}"
    print(
        f"Meshwave is ready. Open\n\n    {link}\n\nCtrl-C ends it, and the runs that were started here with it.",
        flush=True,
    )
    if show and has_screen():
        followed = access_of(server).link_followed
        threading.Thread(target=open_browser, args=(link, followed), daemon=True).start()
    _end_on_signals(server)
    server.io_loop.add_callback(warm_up, studio, read_design(None))  # while the browser starts
    compile_in_background(then=jobs.warm_up)
    try:
        server.io_loop.start()
    finally:
        server.stop()
        studio.close()
    return 0


def access_of(server: pn.io.server.Server) -> TokenAccess:
    """Return who lets people in to a server that :func:`start` made."""
    access = server._tornado.auth_provider
    assert isinstance(access, TokenAccess)
    return access


def start(
    studio: Studio,
    port: int,
    token: str,
    session_lifetime_s: float = SESSION_LIFETIME_S,
    headers: type[SecurityHeaders] = SecurityHeaders,
) -> pn.io.server.Server:
    """Start a server whose loop the caller runs."""
    access = TokenAccess(token, port)
    server: pn.io.server.Server = pn.serve(  # type: ignore[no-untyped-call]
        {"/": lambda: page(studio), "/transfer": lambda: lab_page()},  # Panel takes plain functions only
        port=port,
        address=ADDRESS,
        websocket_origin=access.hosts,
        auth_provider=access,
        include_headers=[],  # Bokeh writes headers and cookies into the page, where its scripts could read them
        include_cookies=[],
        transforms=[headers],
        http_server_kwargs={"max_body_size": LARGEST_BODY_BYTES},
        title="Meshwave",
        show=False,
        start=False,
        verbose=False,
        unused_session_lifetime_milliseconds=round(1000 * session_lifetime_s),
        check_unused_sessions_milliseconds=round(1000 * session_lifetime_s / CHECKS_PER_LIFETIME),
    )
    server._tornado.add_handlers(".*", [*routes(studio), *documentation.routes()])
    server.start()  # without it Bokeh neither discards sessions nor pings connections
    return server


def start_somewhere(
    studio: Studio,
    wanted: int | None,
    token: str,
    session_lifetime_s: float = SESSION_LIFETIME_S,
    headers: type[SecurityHeaders] = SecurityHeaders,
) -> tuple[pn.io.server.Server, int]:
    """:func:`start` on the port that is ``wanted``, or else on a free one; which another may take a moment before.

    Raises:
        InputError: there is none.
    """
    for _ in range(TRIES):
        port = free_port(wanted)
        try:
            return start(studio, port, token, session_lifetime_s, headers), port
        except OSError as error:
            if error.errno != EADDRINUSE or wanted is not None:
                raise
    raise InputError("every port that was free was taken a moment later; choose one by --port")


class Served:
    """The designer, served by a thread of this process until :meth:`close`.

    Args:
        design: what new tabs open.
        token: the token of the link.
        session_lifetime_s: how long a page may be away before its session ends.
        headers: what is added to every answer.
    """

    def __init__(
        self,
        design: Design,
        token: str,
        session_lifetime_s: float = SESSION_LIFETIME_S,
        headers: type[SecurityHeaders] = SecurityHeaders,
    ) -> None:
        self.token = token
        started: Future[tuple[Studio, pn.io.server.Server, int]] = Future()

        def run() -> None:
            set_event_loop(new_event_loop())
            try:
                studio = Studio(design)
                server, port = start_somewhere(studio, None, token, session_lifetime_s, headers)
            except BaseException as error:
                started.set_exception(error)
                return
            server.io_loop.add_callback(started.set_result, (studio, server, port))
            server.io_loop.start()
            server.stop()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.studio, self._server, self.port = started.result(STARTS_WITHIN_S)

    @property
    def link(self) -> str:
        """The link that opens the page and holds the token."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def close(self) -> None:
        """Stop the server; runs that were started here end with it."""
        self._server.io_loop.add_callback(self._server.io_loop.stop)
        self._thread.join(STARTS_WITHIN_S)
        self.studio.close()


@contextmanager
def served(design: Design, token: str, session_lifetime_s: float = SESSION_LIFETIME_S) -> Iterator[str]:
    """Serve the designer from a thread of this process while the context lasts, and give the link.

    For tests and measurements: they look at the page and at Python's objects in one process.
    """
    server = Served(design, token, session_lifetime_s)
    try:
        yield server.link
    finally:
        server.close()


def read_design(name: str | None) -> Design:
    """The design of a file or an example; by default the first example."""
    return load_design(find_design(name or FIRST_EXAMPLE))


def free_port(wanted: int | None) -> int:
    """``wanted``, or the first free port from 5006 on.

    Raises:
        InputError: it is taken, or all are.
    """
    for port in [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
                return int(probe.getsockname()[1])
            except (OSError, OverflowError):
                continue
    if wanted is not None:
        raise InputError(f"port {wanted} cannot be used; leave --port out to take a free one")
    raise InputError(f"all ports from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are taken; choose one by --port")


def _end_on_signals(server: pn.io.server.Server) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        server.io_loop.add_callback_from_signal(server.io_loop.stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
