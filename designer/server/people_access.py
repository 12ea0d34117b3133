"""Access control of a server for several people: by personal tokens, an OAuth provider or the header of a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, ClassVar

from tornado.web import RequestHandler

from meshwave.designer.server.access import Access
from meshwave.designer.server.access_pages import AccessForm, SignOut, short_page
from meshwave.designer.server.oauth import oauth_sign_in
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
        identity = self.signed_in_identity(handler) or ""
        person = self.file.people.find(identity.partition(" ")[0])
        return person if person is not None and _identity(person) == identity else None

    def name_to_sign_out(self, user: User) -> str:
        """Return the name of the person; empty if a proxy signs people in."""
        return user.name if self.file.people.login != "header" else ""

    def _stated_name(self, handler: Any) -> str:
        """Return the user name in the header of a reverse proxy; empty if the request does not come from the proxy."""
        people, request = self.file.people, handler.request
        assert people.header is not None
        stated = request.headers.get_list(people.header)
        return stated[0] if request.remote_ip in people.proxies and len(stated) == 1 else ""

    def refusal_at_proxy(self, handler: RequestHandler) -> Refusal | None:
        """Return the reason why the person that a reverse proxy states is refused; None if people sign in on this server."""
        if self.file.people.login != "header":
            return None
        name = self._stated_name(handler)
        return Refusal("unlisted_person", {"name": name}) if name else Refusal("sign_in_at_proxy", {})

    def is_current(self, request: Any) -> bool:
        """Return whether the file still lists the person of a request, with the same role and token."""
        person = self.file.people.find(request.user.id)
        return person is not None and (person.user, person.token) == (request.user, request.token_hash)

    def sign_in_with_token(self, handler: RequestHandler, name: str, token: str) -> None:
        """Sign in a person with a personal token.

        Raises:
            Refusal: the name or the token is wrong, or people sign in elsewhere.
        """
        people = self.file.people
        if refusal := self.refusal_at_proxy(handler):
            raise refusal
        if people.login == "oauth":
            raise Refusal("sign_in_changed", {})
        person = people.find(name.strip())
        if not is_token_of(person, token.strip()):
            raise Refusal("wrong_token", {})
        assert person is not None
        self._sign_in_person(handler, person)

    def sign_in_by_provider(self, handler: RequestHandler, name: str) -> None:
        """Sign in the person whom an OAuth provider names.

        Raises:
            Refusal: the file does not list the name, or its sign-in method has changed.
        """
        people = self.file.people
        if people.login != "oauth":
            raise Refusal("sign_in_changed", {})
        person = people.find(name)
        if person is None:
            raise Refusal("unlisted_person", {"name": name})
        self._sign_in_person(handler, person)

    def _sign_in_person(self, handler: RequestHandler, person: Person) -> None:
        # a strict cookie would not be sent with links from other sites, such as from the provider
        self.sign_in(handler, _identity(person), "Lax")
        self.link_followed.set()

    @property
    def endpoints(self) -> list[tuple[str, type[RequestHandler]]]:
        """Routes of the pages for people who are not admitted."""
        oauth = self.file.people.oauth if self.file.people.login == "oauth" else None
        sign_in = oauth_sign_in(oauth) if oauth is not None else SignIn
        return [*super().endpoints, ("/sign-in", sign_in), ("/sign-out", SignOut)]


def _identity(person: Person) -> str:
    """Return the identity of a sign-in: the person and the current token, so that a new token ends the sign-in."""
    return f"{person.user.id} {person.token or ''}"


class SignIn(AccessForm):
    """Request handler of the form for a name and a personal token."""

    title, button = "Sign in to Meshwave", "Sign in"
    fields: ClassVar = {
        "name": ("Name", 'required autocomplete="username" maxlength="64" autofocus'),
        "token": ("Personal token", 'type="password" required autocomplete="current-password" maxlength="200"'),
    }
    kept: ClassVar = ("name",)

    def get(self) -> None:
        """Show the form, or why the person that a reverse proxy states is refused."""
        refusal = self.access.refusal_at_proxy(self)
        if refusal is None or not self.access.is_known_host(self):
            super().get()
            return
        self.set_status(403)
        self.write(short_page(escape(str(refusal)), self.access.site.root))

    def admit(self, values: Mapping[str, str]) -> None:
        """Sign in the person."""
        self.access.sign_in_with_token(self, values["name"], values["token"])
