"""Access control of the designer: the person who sends a request, the cookie, and the rights of a role.

The page can start processes, so pages of other sites must not reach it through the browser. The Host of every request
for a page and the Origin of every websocket are checked, no other site can frame the page, and the browser that signed
in gets a cookie that other sites cannot send. Browsers send cookies to all ports of a host, so the cookie holds a
random identifier that expires, not a token. Only scripts and style sheets need no authentication: they hold no user
data.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from bokeh.server.auth_provider import AuthProvider
from bokeh.util.token import get_session_id
from tornado.httputil import HTTPHeaders
from tornado.web import OutputTransform, RequestHandler

from meshwave.designer.pages.start_page import DESIGN_ARGUMENTS
from meshwave.designer.server.access_pages import RefusedPage
from meshwave.designer.server.sessions import end_session, open_sessions, session_user
from meshwave.designer.server.site import ADDRESS, Place
from meshwave.designer.state.library import is_id
from meshwave.engine.people.people_file import OWNER, Role, User

SIGN_IN_DAYS = 7
DRAFT_KEPT_DAYS = 1 / 48
"""Time in days for which a browser keeps the design of a refused page."""
MOST_SIGN_INS = 1000
METRICS_TOKEN = "MESHWAVE_METRICS_TOKEN"
"""Environment variable with a token that can only read the metrics, for a monitoring system."""

ROLES: Mapping[str, Role | None] = {
    "/": Role.VIEWER,
    "/ws": Role.VIEWER,
    "/metadata": Role.VIEWER,
    "/start": Role.VIEWER,
    "/transfer": Role.VIEWER,
    "/docs": Role.VIEWER,
    "/admin": Role.ADMIN,
    "/board": Role.ADMIN,
    "/metrics": Role.ADMIN,
    "/healthz": None,
    "/static": None,
    "/assets": None,
    "/favicon.ico": None,
    "/refused": None,
    "/join": None,
    "/sign-in": None,
    "/sign-out": None,
}
"""The role that a request needs, by the first part of its path; None for requests without authentication."""


def required_role(path: str) -> Role | None:
    """Return the role that a path needs; unknown ones need the highest."""
    return ROLES.get(f"/{path.split('/')[1]}", Role.ADMIN)


def new_token() -> str:
    """Return a token of 256 random bits for a link."""
    return secrets.token_urlsafe(32)


class Access(AuthProvider, ABC):
    """Access control that admits people whose browser has a cookie, within the rights of their role.

    A subclass identifies the person who sends a request, and defines where people sign in.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self.place, self.site, self._clock = place, place.site, clock
        # The name has the port, since browsers send cookies to all ports of a host.
        self.cookie = f"meshwave-{place.port}"
        self.cookies = [self.cookie]
        """Names of the cookies that admit a browser."""
        self._draft_cookie = f"{self.cookie}-draft"
        self._sign_ins: dict[str, tuple[float, str]] = {}  # expiry and identity by value of the cookie, earliest first
        self._ended: dict[str, None] = {}  # IDs of sessions that an administrator ended
        names = (ADDRESS, "localhost") if place.address == ADDRESS else ()
        self.hosts = list(dict.fromkeys([*(place.direct_site(name).host for name in names), self.site.host]))
        self.link_followed = threading.Event()
        super().__init__()

    # ---- who asks ----

    @property
    def get_user(self) -> Callable[[Any], User | None]:  # type: ignore[override]  # Bokeh takes a name as well
        """Function that returns the user of a request, or None if the request is not admitted."""
        return self._admit

    def _admit(self, handler: Any) -> User | None:
        user, needed = self.identify(handler), required_role(handler.request.path)
        is_allowed = user is not None and needed is not None and user.role.includes(needed)
        return user if is_allowed and not self._names_other_session(handler, user) else None

    def identify(self, handler: Any) -> User | None:
        """Return the person who sent a request, whatever the role; None if the person is unknown."""
        request = handler.request
        request.cookie_values = self._cookie_values(handler)
        user = self._find_user(handler) if self.is_known_host(handler) else None
        # Pages read these from their session's request, which browsers cannot forge.
        request.user, request.arrived_s = user, time.time()
        request.signed_in_as = self.name_to_sign_out(user) if user is not None else ""
        return user

    def name_to_sign_out(self, user: User) -> str:
        """Return the name that pages show next to the button to sign out; empty if they do not offer it."""
        return ""

    def _cookie_values(self, handler: Any) -> set[str]:
        return {handler.get_cookie(name, "") for name in self.cookies} - {""}

    def is_known_host(self, handler: Any) -> bool:
        """Return whether a request names this server; another name may be that of an attacker, resolved to this server."""
        return handler.request.host.lower() in self.hosts

    @abstractmethod
    def _find_user(self, handler: Any) -> User | None:
        """Return the person whom a request is from."""

    def _names_other_session(self, handler: Any, user: User | None) -> bool:
        """Return whether a request is for a session of another person, or for a session that was ended.

        A link could otherwise make a person with more rights open a session that the author of the link can use too.
        """
        request = handler.request
        if request.headers.get("Bokeh-Session-Id") or {"bokeh-session-id", "bokeh-token"} & request.arguments.keys():
            return True
        _, _, token = request.headers.get("Sec-WebSocket-Protocol", "").partition(",")
        if not request.path.endswith("/ws") or not token:
            return False
        try:
            session = get_session_id(token.strip())
        except Exception:  # the token is invalid; Bokeh refuses it
            return False
        return session in self._ended or session_user(handler.application, session) not in (None, user)

    # ---- signing in ----

    def sign_in(self, handler: Any, identity: str, same_site: str = "Strict") -> None:
        """Set a cookie in the browser of a person; the oldest sign-in expires if there are too many."""
        self._sign_ins = dict(list(self._sign_ins.items())[1 - MOST_SIGN_INS :])
        value = new_token()
        self._sign_ins[value] = (self._clock() + SIGN_IN_DAYS * 24 * 3600, identity)
        self._set_cookie(handler, self.cookie, value, same_site)
        handler.request.cookie_values = {value}

    def keep_draft(self, handler: Any, page: str) -> bool:
        """Keep the design of a refused page in a cookie, so that the link with the token opens it again.

        Return whether the page has a design.
        """
        draft = dict(parse_qsl(urlsplit(page).query)).get("draft", "")
        if is_id(draft):
            self._set_cookie(handler, self._draft_cookie, draft, "Strict", DRAFT_KEPT_DAYS)
        return is_id(draft)

    def _open_kept_draft(self, handler: Any) -> None:
        """Add the kept design to the arguments of a request, unless its link names another page or a design."""
        request, draft = handler.request, handler.get_cookie(self._draft_cookie, "")
        if request.path == "/" and is_id(draft) and not set(DESIGN_ARGUMENTS) & request.arguments.keys():
            request.arguments["draft"] = [draft.encode()]
            handler.clear_cookie(self._draft_cookie, path=f"{self.site.root}/")

    def signed_in_identity(self, handler: Any) -> str | None:
        """Return the identity with which the browser of a request signed in; None if it did not."""
        expiry, identity = self._sign_ins.get(handler.get_cookie(self.cookie, ""), (0.0, ""))
        return identity if expiry > self._clock() else None

    def sign_out(self, handler: Any) -> None:
        """Invalidate the cookies of a browser, and end the sessions of its pages."""
        self._sign_ins.pop(handler.get_cookie(self.cookie, ""), None)
        values = self._cookie_values(handler)
        for session in list(open_sessions(handler.application)):
            if values & session.document.session_context.request.cookie_values:
                end_session(handler.application, session)
        for name in self.cookies:
            handler.clear_cookie(name, path=f"{self.site.root}/")

    def _set_cookie(self, handler: Any, cookie: str, value: str, same_site: str, days: float = SIGN_IN_DAYS) -> None:
        """Set a cookie that scripts cannot read; if the page uses TLS, the cookie is sent over TLS only."""
        handler.set_cookie(
            cookie,
            value,
            path=f"{self.site.root}/",
            expires_days=days,
            httponly=True,
            samesite=same_site,
            secure=self.site.is_encrypted,
        )

    def end_session(self, session: str) -> None:
        """Refuse websockets of a session from now on; its browser would otherwise connect again."""
        self._ended = dict.fromkeys([*list(self._ended)[1 - MOST_SIGN_INS :], session])

    # ---- the metrics ----

    def can_read_metrics(self, handler: Any) -> bool:
        """Return whether a request comes from an administrator, or has the metrics token."""
        given = handler.request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        known = filter(None, self._metrics_tokens())
        return any(hmac.compare_digest(given, each.encode()) for each in known) or self._admit(handler) is not None

    def _metrics_tokens(self) -> list[str]:
        return [os.environ.get(METRICS_TOKEN, "")]

    # ---- attributes that Bokeh requires ----

    @property
    def get_user_async(self) -> None:
        """Always None; Bokeh then uses :attr:`get_user`."""
        return None

    @property
    def login_url(self) -> None:
        """Always None; Bokeh then uses :attr:`get_login_url`, since the page depends on the request."""
        return None

    @property
    def get_login_url(self) -> Callable[[Any], str]:
        """Function that returns the page to which a refused request is redirected, below the root of the site."""
        return self._refusal_page

    def _refusal_page(self, handler: Any) -> str:
        request = handler.request
        page = self.entrance if request.user is None else "/refused"
        # Other arguments of the link are dropped, since they may hold a token.
        kept = [(name, request.arguments[name][0]) for name in DESIGN_ARGUMENTS if name in request.arguments]
        asked = f"{request.path}?{urlencode(kept)}" if kept else request.path
        return f"{page}?next={quote(asked)}"

    entrance = "/refused"
    """The page for people who are not signed in."""

    @property
    def login_handler(self) -> None:
        """Always None, since the pages to sign in are among the :attr:`endpoints`."""
        return None

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages for those who are not admitted."""
        return [("/refused", RefusedPage)]

    @property
    def logout_url(self) -> None:
        """Always None, since the page to sign out is among the :attr:`endpoints`."""
        return None

    @property
    def logout_handler(self) -> None:
        """Always None, since the page to sign out is among the :attr:`endpoints`."""
        return None


class TokenAccess(Access):
    """Access control that admits the user who started the server, by the token of the link or by a cookie."""

    def __init__(self, token: str, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(place, clock)
        self._token = token

    def _find_user(self, handler: Any) -> User | None:
        if self.signed_in_identity(handler) is not None:
            return OWNER
        if self._is_token(handler.get_argument("token", "")):
            self.sign_in(handler, OWNER.id)
            del handler.request.arguments["token"]  # Bokeh writes the arguments into the page
            self._open_kept_draft(handler)
            self.link_followed.set()
            return OWNER
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _metrics_tokens(self) -> list[str]:
        return [self._token, *super()._metrics_tokens()]


class SecurityHeaders(OutputTransform):
    """Headers of every response, which keep other sites from framing or loading a page, or learning its link."""

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
