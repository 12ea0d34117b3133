"""The people of a server: a TOML file with their names and roles, and how they sign in."""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from meshwave.engine.document.reading import parse_toml
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import read_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part, nullable, text_form, validation_error
from meshwave.engine.people.limits import Limits

LARGEST_BYTES = 1_000_000
MOST_PEOPLE = 2000
_log = logging.getLogger(__name__)


class Role(StrEnum):
    """Rights of a person on a server; each role includes the rights of the roles before it."""

    VIEWER = "viewer"
    """Role that can open designs, predictions and runs, and follow runs."""
    DESIGNER = "designer"
    """Role that can also edit and save designs, and launch dry runs on the machine of the server."""
    LAUNCHER = "launcher"
    """Role that can also launch training on the launch targets of the server, and store texts and measured profiles."""
    ADMIN = "admin"
    """Role that can also see who is signed in, end sessions, cancel runs of others, calibrate the machine and read
    metrics.
    """

    def includes(self, other: Role) -> bool:
        """Return True if this role has all rights of another role."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class User(NamedTuple):
    """A person who is signed in."""

    id: str
    """ID under which designs and runs are kept; empty for the user who started the server."""
    name: str
    role: Role

    def check(self, needed: Role, action: str) -> None:
        """Check that the role of the person allows an action.

        Args:
            needed: the role that the action needs.
            action: code of its description, such as ``launch``.

        Raises:
            Refusal: the role does not allow it.
        """
        if not self.role.includes(needed):
            raise Refusal("role_required", {"action": action, "needed": needed, "role": self.role})


OWNER = User("", "", Role.ADMIN)
"""The user who started the server."""


class Person(Part):
    """A person who may sign in."""

    name: Annotated[
        str,
        text_form(r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$", "a name of at most 64 letters, digits and . _ @ + -"),
    ]
    """Name to sign in with, such as ``ada`` or ``ada@example.org``; upper and lower case are the same."""
    role: Role
    """One of ``viewer``, ``designer``, ``launcher`` and ``admin``."""
    token: (
        Annotated[
            str, text_form(r"^sha256\$[0-9a-f]{32}\$[0-9a-f]{64}$", "a hash that meshwave people add has written")
        ]
        | None
    ) = nullable("the proxy or the OAuth provider names the person")
    """Salted hash of the personal token, as ``meshwave people add`` prints it."""

    @property
    def user(self) -> User:
        """The person as a user of the server."""
        return User(self.name.casefold(), self.name, self.role)


class OAuth(Part):
    """The OAuth or OpenID Connect provider at which people sign in.

    The environment variable ``PANEL_OAUTH_SECRET`` of the server holds the client secret.
    """

    provider: str
    """One of Panel's OAuth providers, such as ``github``, ``google``, ``azurev2`` or ``generic``."""
    key: Annotated[str, Field(min_length=1, max_length=300)]
    """The client ID of this server at the provider."""
    user_key: Annotated[str, Field(min_length=1, max_length=60)] | None = nullable("the one of Panel's provider")
    """The claim that names the person, such as ``email``; people must not be able to choose its value themselves."""
    options: dict[str, str | list[str]] = {}
    """Further options of Panel's provider, such as ``AUTHORIZE_URL``, ``TOKEN_URL``, ``USER_URL`` and ``scope``."""


class People(Part):
    """The TOML file of the people of a server."""

    login: Literal["token", "header", "oauth"] = "token"
    """``token``: people sign in with their name and their token; ``header``: a reverse proxy names them; ``oauth``: they
    sign in at an OAuth provider."""
    header: (
        Annotated[str, text_form(r"^[A-Za-z0-9-]{1,60}$", "the name of a header, such as X-Forwarded-User")] | None
    ) = nullable("people have tokens")
    """The header in which the reverse proxy names the person, such as ``X-Forwarded-User``."""
    proxies: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    """Addresses of the reverse proxies whose header is believed, such as ``127.0.0.1``."""
    oauth: OAuth | None = nullable("people do not sign in at an OAuth provider")
    """The OAuth provider; read when the server starts."""
    limits: Limits = Limits()
    """Limits on the runs and designs of each person who is not an administrator."""
    people: Annotated[tuple[Person, ...], Field(max_length=MOST_PEOPLE)] = ()
    """People who may sign in."""

    @field_validator("proxies")
    @classmethod
    def _check_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for address in proxies:
            try:
                ip_address(address)
            except ValueError:
                raise validation_error("", "proxy_address", {"address": address}) from None
        return proxies

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.login == "header" and not (self.header and self.proxies):
            raise validation_error("login", "header_login_without_proxy")
        if self.login == "oauth" and self.oauth is None:
            raise validation_error("login", "oauth_login_without_provider")
        for number, person in enumerate(self.people):
            if self._by_id[person.user.id] is not person:
                raise validation_error(f"people[{number}].name", "duplicate_person", {"name": person.name})
            if self.login == "token" and person.token is None:
                raise validation_error(f"people[{number}].token", "person_without_token", {"name": person.name})
        return self

    @cached_property
    def _by_id(self) -> Mapping[str, Person]:
        return {person.user.id: person for person in reversed(self.people)}

    @cached_property
    def administrators(self) -> frozenset[str]:
        """IDs of the people who have no limits."""
        return frozenset(person.user.id for person in self.people if person.role.includes(Role.ADMIN))

    def find(self, name: str) -> Person | None:
        """Return the person with the given name; None if there is none."""
        return self._by_id.get(name.casefold())


def read_people(path: Path) -> People:
    """Read the file of the people who may sign in to a server.

    Raises:
        Refusal: the file cannot be read.
        DesignError: it has problems.
    """
    return parse_toml(read_whole(path, "people", LARGEST_BYTES).decode("utf-8", "replace"), People, path.name)


class PeopleFile:
    """A file of people that is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InputError: it cannot be read, or has problems.
        """
        self._path = path
        self._changed_ns = self._modification_time_ns()
        self._people = read_people(path)

    def _modification_time_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def people(self) -> People:
        """People in the file; those of its last valid version if it has become unreadable."""
        changed_ns = self._modification_time_ns()
        if changed_ns != self._changed_ns:
            self._changed_ns = changed_ns
            try:
                self._people = read_people(self._path)
            except MeshwaveError as error:
                _log.warning("the file of people has changed and cannot be read; its last version applies: %s", error)
        return self._people


def new_person(name: str, role: Role) -> tuple[str, str]:
    """Return a new token, and the TOML table of the person who signs in with it.

    Raises:
        DesignError: the name is invalid.
    """
    token = secrets.token_urlsafe(32)
    table = f'[[people]]\nname = "{name}"\nrole = "{role}"\ntoken = "{hash_token(token)}"\n'
    parse_toml(table, People, name)
    return token, table


def add_person(path: Path, name: str, role: Role) -> str:
    """Append a person to a file, which is created if it does not exist, and return the token.

    Raises:
        Refusal: the file cannot be read or written, or lists the name already.
        DesignError: the file or the name is invalid.
    """
    token, table = new_person(name, role)
    if os.path.exists(path) and read_people(path).find(name) is not None:
        raise Refusal("person_exists", {"name": name, "path": str(path)})
    try:
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{table}" if file.tell() else table)
    except OSError as error:
        raise Refusal("unwritable_file", {"path": str(path), "reason": error.strerror}) from None
    return token


def hash_token(token: str, salt: str | None = None) -> str:
    """Return the salted hash of a token as ``sha256$SALT$HASH``; without ``salt``, with a new one.

    A fast hash suffices for tokens of 256 random bits, and wrong tokens cannot keep the server busy with it.
    """
    salt = salt or secrets.token_hex(16)
    return f"sha256${salt}${hmac.digest(bytes.fromhex(salt), token.encode(), 'sha256').hex()}"


def is_token_of(person: Person | None, token: str) -> bool:
    """Return True if a token belongs to a person; the hashes are compared in constant time."""
    if person is None or person.token is None:
        return False
    return hmac.compare_digest(hash_token(token, person.token.split("$")[1]), person.token)
