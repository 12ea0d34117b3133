"""Who may use the designer: whoever has the link with the token, on this machine alone.

The page starts processes, so a page of somebody else must not reach it through the browser: the
Host of every request for a page and the Origin of every websocket are checked, and the token of the link is
kept in a cookie that other sites cannot send. Scripts and styles alone go to whoever asks: they hold nothing
of a user.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from bokeh.server.auth_provider import AuthProvider
from tornado.web import RequestHandler

COOKIE_DAYS = 30
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
    """Lets in who has the token, in the link or in the cookie that the link left."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._cookie = f"meshwave-{port}"  # cookies do not tell ports apart
        self.hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
        super().__init__()

    @property
    def get_user(self) -> Callable[[Any], str | None]:
        return self._user

    def _user(self, handler: Any) -> str | None:
        if handler.request.host.lower() not in self.hosts:
            return None
        if self._is_token(handler.get_cookie(self._cookie, "")):
            return "owner"
        if self._is_token(handler.get_argument("token", "")):
            handler.set_cookie(self._cookie, self._token, expires_days=COOKIE_DAYS, httponly=True, samesite="Strict")
            return "owner"
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    @property
    def get_user_async(self) -> None:
        return None

    @property
    def login_url(self) -> str:
        return "/refused"

    @property
    def get_login_url(self) -> None:
        return None

    @property
    def login_handler(self) -> type[RequestHandler]:
        return Refused

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
