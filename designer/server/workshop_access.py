"""Access control of a workshop: the teacher needs the token of the link, learners the code and a name."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from html import escape
from typing import Any

from tornado.web import RequestHandler

from meshwave.designer.server.access import TokenAccess
from meshwave.designer.server.site import Site
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.classroom import LONGEST_NAME, Classroom

TRIES_PER_MINUTE = 60
"""Largest number of wrong codes per minute from one address, which a whole class may share; there are 10^9 codes."""
MOST_FAILURES = 1000
"""Largest number of wrong codes that the server remembers."""
FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Join: {title}</title>
<style>
  :root {{ color-scheme: light dark; font: 17px system-ui; }}
  form {{ display: grid; gap: 1em; max-width: 22em; margin: 12vh auto; padding: 0 1em; }}
  input, button {{ box-sizing: border-box; width: 100%; min-height: 44px; padding: 0.4em 0.6em; font: inherit; }}
  input[name=code] {{ letter-spacing: 0.2em; text-transform: uppercase; }}
  [role=alert] {{ color: light-dark(#b3261e, #ffb4ab); }}
</style>
<form method="post" action="join"><h1>{title}</h1>
<label>Code on the teacher's screen
<input name="code" value="{code}" required autocomplete="off" maxlength="20" autofocus></label>
<label>Your name<input name="name" value="{name}" required autocomplete="nickname" maxlength="{longest}"></label>
<div role="alert">{refusal}</div><button>Join the workshop</button></form></html>"""


class WorkshopAccess(TokenAccess):
    """Authentication of the teacher by the token of the link, and of learners by the cookie set when they joined."""

    def __init__(
        self,
        classroom: Classroom,
        token: str,
        port: int,
        address: str,
        site: Site,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(token, port, clock, address, site)
        self.classroom = classroom
        self._learner_cookie = f"meshwave-learner-{port}"
        self._failures: deque[tuple[str, float]] = deque(maxlen=MOST_FAILURES)  # addresses and times of wrong codes

    def _identify_user(self, handler: Any) -> str | None:
        user = super()._identify_user(handler)
        if user is None and handler.request.host.lower() in self.hosts:
            user = self.classroom.find_by_key(handler.get_cookie(self._learner_cookie, ""))
        handler.request.user = user  # pages read it from their session's request, which browsers cannot forge
        return user

    def join(self, handler: RequestHandler, code: str, name: str) -> None:
        """Admit a learner and store the learner's key in a cookie of the browser.

        Raises:
            Refusal: the code is wrong, the name is taken, or there were too many attempts.
        """
        address, now = str(handler.request.remote_ip), self._clock()
        if sum(each == address and time_s > now - 60 for each, time_s in self._failures) >= TRIES_PER_MINUTE:
            raise Refusal("workshop_too_many_tries", {})
        try:
            key = self.classroom.join(code, name)
        except Refusal as refusal:
            if refusal.problem.code == "workshop_wrong_code":
                self._failures.append((address, now))
            raise
        self._set_cookie(handler, self._learner_cookie, key, "Lax")

    @property
    def get_login_url(self) -> Callable[[Any], str]:
        """Function that returns the page where learners join."""
        return lambda handler: "/join"

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages for browsers that are not admitted."""
        return [("/join", Join)]


class Join(RequestHandler):
    """Request handler of the page where a learner enters the code and a name."""

    @property
    def _access(self) -> WorkshopAccess:
        access = self.application.auth_provider  # type: ignore[attr-defined]  # Bokeh's application has one
        assert isinstance(access, WorkshopAccess)
        return access

    def get(self) -> None:
        """Show the form."""
        if self.request.host.lower() not in self._access.hosts:
            self.send_error(403)
            return
        self._send_form("", self.get_argument("code", ""))

    def post(self) -> None:
        """Admit the learner, or show the reason for a refusal."""
        code, name = self.get_body_argument("code", ""), self.get_body_argument("name", "")
        if self.request.host.lower() not in self._access.hosts or not self._is_own_form:
            self.send_error(403)
            return
        try:
            self._access.join(self, code, name)
        except MeshwaveError as error:
            self.set_status(403)
            self._send_form(str(error), code, name)
            return
        self.redirect("./")

    @property
    def _is_own_form(self) -> bool:
        """True unless a page of another site sent the form; older browsers do not name the sender."""
        return self.request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"

    def _send_form(self, refusal: str, code: str, name: str = "") -> None:
        title = self._access.classroom.workshop.plan.title
        shown = {"title": title, "code": code[:20], "name": name[:LONGEST_NAME], "refusal": refusal}
        self.write(FORM.format(longest=LONGEST_NAME, **{key: escape(text) for key, text in shown.items()}))


def request_user(document: Any) -> str:
    """Return the user of a page: ``OWNER``, or the ID of a learner."""
    user = document.session_context.request.user
    assert user, "cannot serve a page: the request has no user"
    return str(user)
