"""The server of the designer: one process and one port of this machine."""

from __future__ import annotations

import signal
import socket
import threading
from asyncio import new_event_loop, set_event_loop
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from errno import EADDRINUSE
from types import FrameType

import panel as pn
from panel.viewable import Viewable
from tornado.web import RedirectHandler

from meshwave.designer.pages.admin_page import admin_page
from meshwave.designer.pages.design_page import warm_up
from meshwave.designer.pages.start_page import front_page, start_page
from meshwave.designer.pages.transfer_page import lab_page
from meshwave.designer.server import documentation
from meshwave.designer.server.access import Access, SecurityHeaders, TokenAccess, new_token
from meshwave.designer.server.administration import Administration
from meshwave.designer.server.browser import has_screen, open_browser
from meshwave.designer.server.logs import log_to_terminal
from meshwave.designer.server.metrics import metrics_routes
from meshwave.designer.server.site import ADDRESS, Place, check_encryption, is_loopback
from meshwave.designer.server.sockets import adapt_page_routes, limit_compressed_bytes, send_all_messages
from meshwave.designer.state import jobs
from meshwave.designer.state.studio import Studio
from meshwave.engine.document import Design, load_design
from meshwave.engine.files import find_design
from meshwave.engine.findings import Refusal
from meshwave.engine.program.shared_links_simulation import compile_in_background

FIRST_PORT, PORTS = 5006, 100
TRIES = 20
START_TIMEOUT_S = 120.0
SESSION_LIFETIME_S = 300.0
"""Time for which a page in a background tab, or on a suspended machine, can reconnect to its session."""
LARGEST_BODY_BYTES = 64 * 1024
"""Largest request body. Pages send data through websockets, whose messages have at most 20 MB."""
CHECKS_PER_LIFETIME = 10
FIRST_EXAMPLE = "01-first-wave"


def serve(design: str | None = None, *, place: Place | None = None, show: bool = True) -> int:
    """Serve the designer until Ctrl-C and return the exit status.

    Args:
        design: the first design, a file or an example; by default the page starts with the library.
        place: where to listen, by default on the loopback address.
        show: whether to open the browser.

    Raises:
        InputError: the design cannot be read, the port is in use, or other machines can reach the address.
        RunError: the folder of designs and runs cannot be used.
    """
    place = place or Place()
    first = read_design(design)
    if not is_loopback(place.address):
        raise Refusal("address_without_people", {"address": place.address})
    check_place(place)  # before work that takes time
    token = new_token()
    log_to_terminal(token)
    studio = Studio(first, starts_with_library=design is None)
    server, place = start_user_pages(studio, token, place)
    link = f"{place.origin}/?token={token}"
    print(
        f"Meshwave is ready. Open\n\n    {link}\n\nCtrl-C stops the server and the runs that were started here.",
        flush=True,
    )
    run_server(server, studio, link, show=show)
    return 0


def run_server(server: pn.io.server.Server, studio: Studio, link: str, *, show: bool) -> None:
    """Open the browser and serve until Ctrl-C."""
    if show and has_screen():
        followed = server_access(server).link_followed
        threading.Thread(target=open_browser, args=(link, followed), daemon=True).start()
    _end_on_signals(server)
    server.io_loop.add_callback(warm_up, studio, read_design(None))  # while the browser starts
    compile_in_background(then=jobs.warm_up)
    try:
        server.io_loop.start()
    finally:
        server.stop()
        studio.close()


def server_access(server: pn.io.server.Server) -> Access:
    """Return the access control of a server."""
    access = server._tornado.auth_provider
    assert isinstance(access, Access)
    return access


def start_user_pages(
    studio: Studio,
    token: str,
    place: Place | None = None,
    session_lifetime_s: float = SESSION_LIFETIME_S,
    headers: type[SecurityHeaders] = SecurityHeaders,
) -> tuple[pn.io.server.Server, Place]:
    """Start a server for the user who has the token; the caller runs its event loop.

    Raises:
        InputError: the port is in use, or there is no free one.
    """

    def start(found: Place) -> pn.io.server.Server:
        return start_pages(user_pages(studio), studio, TokenAccess(token, found), session_lifetime_s, headers)

    return start_on_free_port(start, place or Place())


def user_pages(studio: Studio) -> Mapping[str, Callable[[], Viewable]]:
    """Return a function for each page of a user, by URL path (Panel accepts plain functions only)."""
    return {"/": lambda: front_page(studio), "/start": lambda: start_page(studio), "/transfer": lambda: lab_page()}


def start_pages(
    pages: Mapping[str, Callable[[], Viewable]],
    studio: Studio,
    access: Access,
    session_lifetime_s: float = SESSION_LIFETIME_S,
    headers: type[SecurityHeaders] = SecurityHeaders,
) -> pn.io.server.Server:
    """Start a server of some pages, whose event loop the caller runs.

    Args:
        pages: functions that build a page each, by URL path (Panel accepts plain functions only).
        studio: the studio whose metrics are reported.
        access: the access control, which knows where the server listens.
        session_lifetime_s: time after which the session of a closed page ends.
        headers: the headers of every response.
    """
    place = access.place
    tls = {"ssl_certfile": str(place.certificate), "ssl_keyfile": str(place.key)} if place.certificate else {}
    administration = Administration(studio)
    adapt_page_routes()
    send_all_messages()
    limit_compressed_bytes()
    pages = {**pages, "/admin": lambda: admin_page(administration.read, administration.stop)}
    server: pn.io.server.Server = pn.serve(  # type: ignore[no-untyped-call]
        pages,
        port=place.port,
        address=place.address,
        websocket_origin=access.hosts,
        auth_provider=access,
        include_headers=[],  # Bokeh would write headers and cookies into the page, where scripts can read them
        include_cookies=[],
        cookie_secret=new_token(),  # signs the cookies of sign-ins that an OAuth provider has not finished
        transforms=[headers],
        root_path=access.site.root or None,
        http_server_kwargs={"max_body_size": LARGEST_BODY_BYTES},
        title="Meshwave",
        show=False,
        start=False,
        verbose=False,
        unused_session_lifetime_milliseconds=round(1000 * session_lifetime_s),
        check_unused_sessions_milliseconds=round(1000 * session_lifetime_s / CHECKS_PER_LIFETIME),
        **tls,
    )
    administration.application = server._tornado
    root = access.site.root
    slashes = [
        (f"{path}/", RedirectHandler, {"url": f"{root}{path}", "permanent": False}) for path in pages if path != "/"
    ]
    server._tornado.add_handlers(".*", [*metrics_routes(studio), *documentation.documentation_routes(root), *slashes])
    server.start()  # otherwise Bokeh neither discards sessions nor pings connections
    return server


def start_on_free_port(
    start: Callable[[Place], pn.io.server.Server], place: Place
) -> tuple[pn.io.server.Server, Place]:
    """Start a server at a place, by default on a free port, and return it with its port.

    Raises:
        InputError: the port is in use, or there is no free one.
    """
    for _ in range(TRIES):
        found = place._replace(port=find_free_port(place.port, place.address))
        try:
            return start(found), found
        except OSError as error:
            if error.errno != EADDRINUSE or place.port is not None:
                raise
    raise Refusal("no_free_port")


class ThreadedServer:
    """A server of the designer in a thread of this process, until :meth:`close`.

    Args:
        design: the design of new tabs.
        token: the token of the link.
        session_lifetime_s: time after which the session of a closed page ends.
        headers: the headers of every response.
    """

    def __init__(
        self,
        design: Design,
        token: str,
        session_lifetime_s: float = SESSION_LIFETIME_S,
        headers: type[SecurityHeaders] = SecurityHeaders,
    ) -> None:
        self.token = token
        started: Future[tuple[Studio, pn.io.server.Server, Place]] = Future()

        def run() -> None:
            set_event_loop(new_event_loop())
            try:
                studio = Studio(design)
                server, place = start_user_pages(studio, token, None, session_lifetime_s, headers)
            except BaseException as error:
                started.set_exception(error)
                return
            server.io_loop.add_callback(started.set_result, (studio, server, place))
            server.io_loop.start()
            server.stop()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.studio, self._server, place = started.result(START_TIMEOUT_S)
        assert place.port is not None
        self.port = place.port

    @property
    def link(self) -> str:
        """Link that opens the page, with the token."""
        return f"http://{ADDRESS}:{self.port}/?token={self.token}"

    def close(self) -> None:
        """Stop the server and the runs that were started here."""
        self._server.io_loop.add_callback(self._server.io_loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self.studio.close()


@contextmanager
def serve_in_thread(design: Design, token: str, session_lifetime_s: float = SESSION_LIFETIME_S) -> Iterator[str]:
    """Serve the designer from a thread of this process and yield its link, for tests and benchmarks."""
    server = ThreadedServer(design, token, session_lifetime_s)
    try:
        yield server.link
    finally:
        server.close()


def read_design(name: str | None) -> Design:
    """Return the design of a file or an example; by default the first example."""
    return load_design(find_design(name or FIRST_EXAMPLE))


def check_place(place: Place) -> None:
    """Check that a server may and can listen at a place.

    Raises:
        InputError: the port is in use, or the address needs TLS or a name.
    """
    check_encryption(place)
    find_free_port(place.port, place.address)


def find_free_port(wanted: int | None, address: str = ADDRESS) -> int:
    """Return the port ``wanted`` of an address if it is free, by default the first free one from 5006 on.

    Raises:
        InputError: the port is in use, or no port is free.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                return int(probe.getsockname()[1])
            except (OSError, OverflowError):
                continue
    if wanted is not None:
        raise Refusal("unusable_port", {"port": wanted})
    raise Refusal("used_ports", {"first": FIRST_PORT, "last": FIRST_PORT + PORTS - 1})


def _end_on_signals(server: pn.io.server.Server) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        server.io_loop.add_callback_from_signal(server.io_loop.stop)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the last one is sent when the terminal is closed
        number = getattr(signal, name, None)  # Windows does not have all of them
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup lets the server ignore it
            signal.signal(number, end)
