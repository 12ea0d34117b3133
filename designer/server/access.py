"""Who may use the designer: whoever has the link with the token, on this machine alone.

The page starts processes, so a page of somebody else must not reach it through the browser: the
Host of every request for a page and the Origin of every websocket are checked, no page may frame this one, and
the browser of the link gets a cookie that other sites cannot send. Browsers send cookies to every port of a host,
so the cookie holds a random identifier that expires and not the token. Scripts and styles alone go to whoever
asks: they hold nothing of a user.
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

SIGN_IN_DAYS = 7
MOST_SIGN_INS = 1000
METRICS_TOKEN = "MESHWAVE_METRICS_TOKEN"
"""The environment variable of a token that reads the metrics and nothing else, for a program that collects them."""
REFUSED = "Open the designer by the link that <code>meshwave serve</code> printed: it holds the key to this page."
FOLLOWED = (
    "You followed a link of another page. If Meshwave is yours, <a id='on' href='{path}'>open it here</a>."
    "<script>document.getElementById('on').hash = location.hash</script>"
)
"""A browser keeps our cookie to itself where a link of another site is followed, and not where ours is; what a
link holds beyond its ``#`` is data, which browsers bring along to where they are sent."""
STYLE = "font: 16px system-ui; margin: 3em"
PAGES = ("/", "/transfer")


def new_token() -> str:
    """256 random bits, as they stand in the link."""
    return secrets.token_urlsafe(32)


class TokenAccess(AuthProvider):
    """Lets in who has the token of the link, or the cookie that a browser got for it."""

    def __init__(self, token: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token, clock
        self._cookie = f"meshwave-{port}"  # cookies do not tell ports apart
        self._sign_ins: dict[str, float] = {}  # when each expires, by the value of its cookie; the earliest first
        self.hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
        self.link_followed = threading.Event()
        super().__init__()

    @property
    def get_user(self) -> Callable[[Any], str | None]:  # type: ignore[override]  # Bokeh takes a name as well
        return self._user

    def _user(self, handler: Any) -> str | None:
        if handler.request.host.lower() not in self.hosts:
            return None
        if self._sign_ins.get(handler.get_cookie(self._cookie, ""), 0.0) > self._clock():
            return "owner"
        if self._is_token(handler.get_argument("token", "")):
            handler.set_cookie(
                self._cookie, self._sign_in(), expires_days=SIGN_IN_DAYS, httponly=True, samesite="Strict"
            )
            del handler.request.arguments["token"]  # Bokeh writes the arguments into the page
            self.link_followed.set()
            return "owner"
        return None

    def _sign_in(self) -> str:
        """Return the value of a new cookie; the oldest ones end where there are too many."""
        self._sign_ins = dict(list(self._sign_ins.items())[1 - MOST_SIGN_INS :])
        value = new_token()
        self._sign_ins[value] = self._clock() + SIGN_IN_DAYS * 24 * 3600
        return value

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def can_read_metrics(self, handler: Any) -> bool:
        """True for whoever may use the designer, and for the holder of the metrics token."""
        given = handler.request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        known = filter(None, (self._token, os.environ.get(METRICS_TOKEN)))
        return any(hmac.compare_digest(given, each.encode()) for each in known) or self._user(handler) is not None

    @property
    def get_user_async(self) -> None:
        return None

    @property
    def login_url(self) -> None:
        return None

    @property
    def get_login_url(self) -> Callable[[Any], str]:
        return lambda handler: f"/refused?next={quote(handler.request.path)}"  # the query may hold a token

    @property
    def login_handler(self) -> None:
        return None

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        return [("/refused", Refused)]

    @property
    def logout_url(self) -> None:
        return None

    @property
    def logout_handler(self) -> None:
        return None


class Refused(RequestHandler):
    """What somebody sees who comes without the token."""

    def get(self) -> None:
        self.set_status(403)
        path = urlsplit(self.get_argument("next", "")).path
        followed = self.request.headers.get("Sec-Fetch-Site") == "cross-site" and path in PAGES
        said = f"{FOLLOWED.format(path=path)}</p><p style='{STYLE}'>Otherwise: {REFUSED}" if followed else REFUSED
        self.write(f"<!doctype html><html lang='en'><title>Meshwave</title><p style='{STYLE}'>{said}</p>")


class SecurityHeaders(OutputTransform):
    """Headers of every answer: other pages can neither frame it nor load it, and do not learn its link."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        headers["Content-Security-Policy"] = "frame-ancestors 'none'"
        headers["X-Frame-Options"] = "DENY"
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return status_code, headers, chunk


class NotebookHeaders(SecurityHeaders):
    """The same, but a notebook that is served from this machine may frame the page."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        answer = super().transform_first_chunk(status_code, headers, chunk, finishing)
        headers["Content-Security-Policy"] = "frame-ancestors http://127.0.0.1:* http://localhost:* vscode-webview:"
        del headers["X-Frame-Options"]
        return answer
