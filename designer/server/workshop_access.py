"""Access control of a workshop: the teacher needs the token of the link, learners the code and a name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from tornado.web import RequestHandler

from meshwave.designer.server.access import TokenAccess, required_role
from meshwave.designer.server.access_pages import AccessForm, SignOut
from meshwave.designer.server.site import Place
from meshwave.engine.lessons.classroom import LONGEST_NAME, Classroom, Learner
from meshwave.engine.people.people_file import Role, User

TEACHER = "Teacher"
"""Name of the user of a workshop's server."""


class WorkshopAccess(TokenAccess):
    """Authentication of the teacher by the token of the link, and of learners by the cookie set when they joined."""

    entrance = "/join"

    def __init__(
        self, classroom: Classroom, token: str, place: Place, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(token, place, clock)
        self.classroom = classroom
        self._learner_cookie = f"meshwave-learner-{place.port}"
        self.cookies.append(self._learner_cookie)

    def _find_user(self, handler: Any) -> User | None:
        teacher = super()._find_user(handler)
        if teacher is not None:
            return teacher
        learner = self.classroom.find_by_key(handler.get_cookie(self._learner_cookie, ""))
        return self._learner(learner) if learner else None

    def _learner(self, id: str) -> User | None:
        found = next((each for each in self.classroom.people() if each.id == id), None)
        return learner_user(found) if found else None

    def _refusal_page(self, handler: Any) -> str:
        """Return the page to which a refused request is redirected; the form to join is not for the teacher's pages."""
        if handler.request.user is None and required_role(handler.request.path) is Role.ADMIN:
            return f"/refused?next={quote(handler.request.path)}"
        return super()._refusal_page(handler)

    def name_to_sign_out(self, user: User) -> str:
        """Return the name of the learner or the teacher."""
        return user.name or TEACHER

    def sign_out(self, handler: Any) -> None:
        """Invalidate the cookies of a browser; the learner's name can then join again."""
        super().sign_out(handler)
        self.classroom.forget_key(handler.get_cookie(self._learner_cookie, ""))

    def join(self, handler: RequestHandler, code: str, name: str) -> None:
        """Admit a learner and store the learner's key in a cookie of the browser.

        Raises:
            Refusal: the code is wrong, the name is empty or taken, or the workshop is full.
        """
        self._set_cookie(handler, self._learner_cookie, self.classroom.join(code, name), "Lax")

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages for people who are not admitted."""
        return [*super().endpoints, ("/join", Join), ("/sign-out", SignOut)]


def learner_user(learner: Learner) -> User:
    """Return a learner as a user of the server."""
    return User(learner.id, learner.name, Role.LAUNCHER)


class Join(AccessForm):
    """The page where a learner types the code and a name."""

    button = "Join the workshop"
    fields: ClassVar = {
        "code": ("Code on the teacher's screen", 'required autocomplete="off" maxlength="20" autofocus'),
        "name": ("Your name", f'required autocomplete="nickname" maxlength="{LONGEST_NAME}"'),
    }
    kept: ClassVar = ("code", "name")
    has_named_heading = True

    @property
    def title(self) -> str:  # type: ignore[override]
        """The title of the page."""
        return f"Join “{self.heading}”"

    @property
    def heading(self) -> str:
        """The title of the workshop."""
        title: str = self.access.classroom.workshop.plan.title
        return title

    def admit(self, values: Mapping[str, str]) -> None:
        """Admit the learner."""
        self.access.join(self, values["code"], values["name"])
