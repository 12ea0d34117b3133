"""Shared designs, which several people edit together, and the keys of their links."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from meshwave.designer.state.library import CheckSpace, Library
from meshwave.designer.state.shared_design import SharedDesign
from meshwave.engine.files import file_state, lock_file, write_private
from meshwave.engine.findings import Refusal


class Link(NamedTuple):
    """A shared design, and the keys that open it for editing and for reading."""

    folder: str
    """Folder of the design's library, relative to the folder of all designs and runs."""
    design: str
    edit_key: str
    view_key: str
    first: str
    """ID of the person who edited the design before it was shared; empty if unknown."""


class SharedDesigns:
    """The shared designs of a server, stored in a file that only the user can read."""

    def __init__(self, folder: Path, check_space: CheckSpace) -> None:
        """Open the list of shared designs in a folder; with a damaged list, no link can be made or ended."""
        self._folder, self._path, self._check_space = folder, folder / "shared.json", check_space
        self._open: dict[str, SharedDesign] = {}  # shared designs by key for editing
        self._known: list[Link] = []
        self._known_file: object = None  # the state of the file that was read last
        self._is_damaged = False

    def link(self, library: Library, design: str) -> Link | None:
        """Return the link of a design; None if the design is not shared or does not exist."""
        return self._find(library, design) if library.has(design) else None

    def _find(self, library: Library, design: str) -> Link | None:
        folder = self._relative(library)
        return next((each for each in self._links() if (each.folder, each.design) == (folder, design)), None)

    def share(self, library: Library, design: str, first: str = "") -> Link:
        """Share a design and return its link.

        Raises:
            Refusal: the list of shared designs is damaged or cannot be saved.
        """
        with self._change() as links:
            found = self._find(library, design)
            if found is None:
                keys = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
                links.append(found := Link(self._relative(library), design, *keys, first))
        return found

    def end_link(self, link: Link) -> None:
        """Stop sharing a design: its link becomes invalid.

        Raises:
            Refusal: the list of shared designs is damaged or cannot be saved.
        """
        with self._change() as links:
            links[:] = [each for each in links if each != link]
        self._open.pop(link.edit_key, None)

    def open(self, link: Link) -> SharedDesign:
        """Return the shared design of a link.

        Raises:
            InputError: the design was deleted, or cannot be read.
        """
        library = Library(self._folder / link.folder, self._check_space)
        known = self._open.get(link.edit_key)
        if known is None or not (known.present or known.design == library.read(link.design)):
            known = self._open[link.edit_key] = SharedDesign(library, link.design, link.first)
        return known

    def find_link(self, key: str) -> tuple[Link, bool]:
        """Return the link with the given key, and True if the key is for reading only.

        Raises:
            Refusal: no link has the key.
        """
        for link in self._links():
            if _is_key(key, link.edit_key):
                return link, False
            if _is_key(key, link.view_key):
                return link, True
        raise Refusal("unknown_shared_design")

    def is_open(self, library: Library, design: str) -> bool:
        """Return whether anybody has a shared design open."""
        link = self.link(library, design)
        return link is not None and link.edit_key in self._open and bool(self._open[link.edit_key].present)

    def _relative(self, library: Library) -> str:
        return library.folder.relative_to(self._folder).as_posix()

    def _links(self) -> list[Link]:
        """Return the links; the file is read again if another server on the same folder has changed it."""
        try:
            state = file_state(self._path)
            if self._is_damaged or state != self._known_file:
                self._read()
                self._known_file = state
        except (OSError, ValueError, TypeError):
            self._is_damaged = True
        return self._known

    def _read(self) -> None:
        """Read the file.

        Raises:
            OSError: the file cannot be read.
            ValueError, TypeError: the file is damaged.
        """
        content = json.loads(self._path.read_bytes()) if self._path.exists() else []
        self._known, self._is_damaged = [Link(*map(str, each)) for each in content], False

    @contextmanager
    def _change(self) -> Iterator[list[Link]]:
        """Yield the links for a change, which is then written; other servers on the same folder wait meanwhile.

        Raises:
            Refusal: the list is damaged or cannot be saved.
        """
        try:
            with lock_file(self._path):
                links = list(self._links())
                if self._is_damaged:
                    raise Refusal("damaged_links", {"path": str(self._path)})
                yield links
                if links != self._known:
                    write_private(self._path, json.dumps(links))
        except OSError as error:
            raise Refusal("unwritable_link", {"reason": error.strerror}) from None


def _is_key(given: str, key: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), key.encode())
