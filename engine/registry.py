"""Registries: packages whose modules each register a member under a name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from threading import get_ident
from typing import TypeVar

from meshwave.engine.findings import Refusal, unknown_member_params

Member = TypeVar("Member")


class Registry(Mapping[str, Member]):
    """Members of a package by name, imported at the first look-up.

    Every module of ``package`` is imported, except helper modules, whose names start with an underscore. An installed
    distribution adds members by entry points in the group ``package``, which name its modules. Looking up an unknown
    name raises an :class:`~meshwave.engine.errors.InputError` that suggests a similar name.
    """

    def __init__(self, kind: str, package: str) -> None:
        self._kind = kind
        self._package = package
        self._members: dict[str, Member] = {}
        self._loaded = False
        self._loading: set[int] = set()  # threads that are importing the members

    def register(self, name: str) -> Callable[[Member], Member]:
        """Return a decorator that registers a member: ``@schedules.register("1f1b")``."""

        def add(member: Member) -> Member:
            if self._members.get(name, member) is not member:
                raise ValueError(f"two {self._kind}s are called {name!r}")
            self._members[name] = member
            return member

        return add

    def _load(self) -> dict[str, Member]:
        thread = get_ident()
        if not self._loaded and thread not in self._loading:  # a member may look up other members while it is imported
            self._loading.add(thread)
            try:
                self._import_members()
                self._loaded = (
                    True  # set last: a failed import is reported again, and other threads wait for all members
                )
            finally:
                self._loading.discard(thread)
        return self._members

    def _import_members(self) -> None:
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")
        for entry in entry_points(group=self._package):
            _load_installed(self._kind, entry)
        self._members = dict(sorted(self._members.items()))

    def __getitem__(self, name: str) -> Member:
        members = self._load()
        if name not in members:
            raise Refusal("unknown_member", unknown_member_params(self._kind, name, members))
        return members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def _load_installed(kind: str, entry: EntryPoint) -> None:
    """Import the module of a member in another distribution.

    Raises:
        InputError: the module cannot be imported.
    """
    try:
        entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.module
        params = {"kind": kind, "name": entry.name, "package": package, "error": repr(error)}
        raise Refusal("member_not_imported", params) from error
