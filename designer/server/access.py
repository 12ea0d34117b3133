"""Access control of the designer: only browsers of this machine that opened the link with the token are admitted.

The page can start processes, so pages of other sites must not reach it through the browser. The Host of every request
for a page and the Origin of every websocket are checked, no other site can frame the page, and the browser that opened
the link gets a cookie that other sites cannot send. Browsers send cookies to all ports of a host, so the cookie holds
a random identifier that expires, not the token. Only scripts and style sheets need no authentication: they hold no
user data.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from bokeh.server.auth_provider import AuthProvider
from tornado.httputil import HTTPHeaders
from tornado.web import OutputTransform, RequestHandler

from meshwave.designer.server.site import Site

OWNER = "owner"
"""The user who started the server."""
SIGN_IN_DAYS = 7
MOST_SIGN_INS = 1000
METRICS_TOKEN = "MESHWAVE_METRICS_TOKEN"
"""Environment variable with a token that can only read the metrics, for a monitoring system."""
REFUSED = "Open the link that <code>meshwave serve</code> printed; it contains the access token of this page."
CROSS_SITE = (
    "You followed a link from another site. If this is your Meshwave, <a id='on' href='.{path}'>open it here</a>."
    "<script>document.getElementById('on').hash = location.hash</script>"
)
"""A browser sends a strict cookie only for links on our own pages. The fragment of the link is kept: it is data."""
STYLE = "font: 16px system-ui; margin: 3em"
ADDRESS = "127.0.0.1"
PAGES = ("/", "/start", "/transfer")


def new_token() -> str:
    """Return a token of 256 random bits for a link."""
    return secrets.token_urlsafe(32)


class TokenAccess(AuthProvider):
    """Authentication by the token of the link, or by the cookie that a browser received for the token."""

    def __init__(
        self,
        token: str,
        port: int,
        clock: Callable[[], float] = time.monotonic,
        address: str = ADDRESS,
        site: Site | None = None,
    ) -> None:
        self._token, self._clock = token, clock
        self.site = site or Site(f"http://{address}:{port}", "")
        self._cookie = f"meshwave-{port}"  # the name has the port, since browsers send cookies to all ports of a host
        self._sign_ins: dict[str, float] = {}  # expiry by value of the cookie, the earliest first
        names = [address, "localhost"] if address == ADDRESS else [address]
        self.hosts = list(dict.fromkeys([*(f"{name}:{port}" for name in names), self.site.host]))
        self.link_followed = threading.Event()
        super().__init__()

    @property
    def get_user(self) -> Callable[[Any], str | None]:  # type: ignore[override]  # Bokeh takes a name as well
        """Function that returns the user of a request, or None if the request is not admitted."""
        return self._identify_user

    def _identify_user(self, handler: Any) -> str | None:
        if handler.request.host.lower() not in self.hosts:
            return None
        if self._sign_ins.get(handler.get_cookie(self._cookie, ""), 0.0) > self._clock():
            return OWNER
        if self._is_token(handler.get_argument("token", "")):
            self._set_cookie(handler, self._cookie, self._new_cookie_value(), "Strict")
            del handler.request.arguments["token"]  # Bokeh writes the arguments into the page
            self.link_followed.set()
            return OWNER
        return None

    def _set_cookie(self, handler: Any, cookie: str, value: str, same_site: str) -> None:
        """Set a cookie that scripts cannot read; if the page uses TLS, the cookie is sent over TLS only."""
        handler.set_cookie(
            cookie,
            value,
            path=f"{self.site.root}/",
            expires_days=SIGN_IN_DAYS,
            httponly=True,
            samesite=same_site,
            secure=self.site.is_encrypted,
        )

    def _new_cookie_value(self) -> str:
        """Return the value of a new cookie; the oldest cookie expires if there are too many."""
        self._sign_ins = dict(list(self._sign_ins.items())[1 - MOST_SIGN_INS :])
        value = new_token()
        self._sign_ins[value] = self._clock() + SIGN_IN_DAYS * 24 * 3600
        return value

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def can_read_metrics(self, handler: Any) -> bool:
        """Return whether a request comes from the user of the designer, or has the metrics token."""
        given = handler.request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        known = filter(None, (self._token, os.environ.get(METRICS_TOKEN)))
        return any(hmac.compare_digest(given, each.encode()) for each in known) or self._identify_user(handler) == OWNER

    @property
    def get_user_async(self) -> None:
        """None; Bokeh requires the attribute, and :attr:`get_user` suffices."""
        return None

    @property
    def login_url(self) -> None:
        """None, since :attr:`get_login_url` depends on the request."""
        return None

    @property
    def get_login_url(self) -> Callable[[Any], str]:
        """Function that returns the page to which a refused request is redirected, below the root of the site."""
        return lambda handler: f"/refused?next={quote(handler.request.path)}"  # the query may hold a token

    @property
    def login_handler(self) -> None:
        """None; Bokeh requires the attribute, and the designer has no such page."""
        return None

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages about refused requests."""
        return [("/refused", RefusedPage)]

    @property
    def logout_url(self) -> None:
        """None; Bokeh requires the attribute, and the designer has no such page."""
        return None

    @property
    def logout_handler(self) -> None:
        """None; Bokeh requires the attribute, and the designer has no such page."""
        return None


class RefusedPage(RequestHandler):
    """The page for a request without the token."""

    def get(self) -> None:
        """Explain how to open the designer, with a link if the request came from another site."""
        self.set_status(403)
        path = urlsplit(self.get_argument("next", "")).path
        is_cross_site = self.request.headers.get("Sec-Fetch-Site") == "cross-site" and path in PAGES
        text = (
            f"{CROSS_SITE.format(path=path)}</p><p style='{STYLE}'>Otherwise: {REFUSED}" if is_cross_site else REFUSED
        )
        self.write(f"<!doctype html><html lang='en'><title>Meshwave</title><p style='{STYLE}'>{text}</p>")


class SecurityHeaders(OutputTransform):
    """Headers of every response, by which other sites can neither frame nor load a page, nor learn its link."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Add the headers."""
        headers["Content-Security-Policy"] = "frame-ancestors 'none'"
        headers["X-Frame-Options"] = "DENY"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return status_code, headers, chunk


class NotebookHeaders(SecurityHeaders):
    """Security headers that additionally allow notebooks served from this machine to frame the page."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Add the headers."""
        answer = super().transform_first_chunk(status_code, headers, chunk, finishing)
        headers["Content-Security-Policy"] = "frame-ancestors http://127.0.0.1:* http://localhost:* vscode-webview:"
        del headers["X-Frame-Options"]
        return answer
