"""Access control of a server for several people: by name and personal token, or by the header of a reverse proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tornado.web import RequestHandler

from meshwave.designer.server.access import Access
from meshwave.designer.server.access_pages import STYLE, AccessForm, AccessPage
from meshwave.designer.server.site import Place
from meshwave.engine.findings import Refusal
from meshwave.engine.people.people_file import PeopleFile, Person, User, is_token_of


class PeopleAccess(Access):
    """Access control that admits the people of a file with the roles stated there."""

    entrance = "/sign-in"

    def __init__(self, file: PeopleFile, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(place, clock)
        self.file = file

    def _find_user(self, handler: Any) -> User | None:
        if self.file.people.login == "header":
            person = self.file.people.find(self._stated_name(handler))
        else:
            person = self._signed_in_person(handler)
        handler.request.token_hash = person.token if person is not None else None
        return person.user if person is not None else None

    def _signed_in_person(self, handler: Any) -> Person | None:
        """Return the person who signed in; None if the person has another token by now."""
        id, _, token_hash = (self.signed_in(handler) or "").partition(" ")
        person = self.file.people.find(id)
        return person if person is not None and person.token == token_hash else None

    def _stated_name(self, handler: Any) -> str:
        """Return the user name in the header of a reverse proxy; empty if the request does not come from the proxy."""
        people, request = self.file.people, handler.request
        assert people.header is not None
        stated = request.headers.get_list(people.header)
        return stated[0] if request.remote_ip in people.proxies and len(stated) == 1 else ""

    def is_current(self, request: Any) -> bool:
        """Return whether the file still lists the person of a request, with the same role and token."""
        person = self.file.people.find(request.user.id)
        return person is not None and (person.user, person.token) == (request.user, request.token_hash)

    def sign_in_with_token(self, handler: RequestHandler, name: str, token: str) -> None:
        """Sign in a person with a personal token.

        Raises:
            Refusal: the name or the token is wrong, people sign in elsewhere, or there were too many attempts.
        """
        people = self.file.people
        if people.login == "header":
            raise Refusal("sign_in_at_proxy", {})
        self.check_tries(handler)
        person = people.find(name.strip())
        if not is_token_of(person, token.strip()):
            self.note_failure(handler)
            raise Refusal("wrong_token", {})
        assert person is not None
        self.sign_in(handler, f"{person.user.id} {person.token}", "Lax")  # a new token ends the sign-in
        self.link_followed.set()

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages for people who are not admitted."""
        return [*super().endpoints, ("/sign-in", SignIn), ("/sign-out", SignOut)]


class SignIn(AccessForm):
    """Request handler of the form for a name and a personal token."""

    title, button = "Sign in to Meshwave", "Sign in"
    fields: ClassVar = {
        "name": (
            '<label>Name<input name="name" value="{value}" required autocomplete="username" maxlength="64" '
            "autofocus></label>"
        ),
        "token": (
            '<label>Personal token<input name="token" type="password" required autocomplete="current-password" '
            'maxlength="200"></label>'
        ),
    }
    kept: ClassVar = ("name",)

    def admit(self, values: Mapping[str, str]) -> None:
        """Sign in the person."""
        self.access.sign_in_with_token(self, values["name"], values["token"])


class SignOut(AccessPage):
    """Request handler of the page that signs a browser out."""

    def get(self) -> None:
        """Invalidate the cookie and confirm it."""
        self.access.sign_out(self)
        self.clear_cookie(self.access.cookie, path=f"{self.access.site.root}/")
        link = f"{self.access.site.root}/sign-in"
        text = f"You are signed out. Close the open pages. <a href='{link}'>Sign in again</a>"
        self.write(f"<!doctype html><html lang='en'><title>Meshwave</title><p style='{STYLE}'>{text}</p>")
