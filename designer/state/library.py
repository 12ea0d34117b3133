"""The user's library: a folder per design with its history, its card, and the run and lesson that its tab shows."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from meshwave.designer.state.edit_log import EditLog
from meshwave.engine.document import Design, load_design, parse_design, save_design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.files import file_state, write_private
from meshwave.engine.findings import Refusal
from meshwave.engine.schedules import schedules

DELETED_KEPT_S = 30 * 24 * 3600.0
"""Time in seconds for which a deleted design can be restored."""
LONGEST_TAG, MOST_TAGS = 40, 8
_ID = re.compile(r"[0-9a-f]{12}")
LONGEST_RECENT = 8
"""Number of designs, examples, runs and lessons that are listed as opened recently."""
DELETED = ".deleted"
"""Suffix of the folders of deleted designs."""
RECENT = "recent.json"
"""Name of the file that lists what was opened recently."""

Card = dict[str, Any]
CheckSpace = Callable[[Path, bool], None]
"""Function that checks whether a library may grow by a new design, or by an edit; it raises Refusal if not."""


def new_id() -> str:
    """Return the ID of a new design."""
    return secrets.token_hex(6)


def is_id(text: str) -> bool:
    """Return whether a text is the ID of a design."""
    return bool(_ID.fullmatch(text))


class Library:
    """The user's designs: a folder that contains a folder for each design, named by its ID.

    ``design.json`` is the document, ``card.json`` the data of the design on the start page, ``history.jsonl`` its
    edits and named versions. ``run`` and ``lesson`` name the run and the lesson that its tab shows.
    """

    def __init__(self, folder: Path, check_space: CheckSpace = lambda folder, is_new: None) -> None:
        """Open the library, which is created if it does not exist.

        Raises:
            OSError: the folder cannot be used.
        """
        self.folder, self._check = folder, check_space
        self._written: dict[str, object] = {}  # the states of the files that this library has written
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._move_old_drafts(folder.parent / "drafts")
        self._discard_deleted(DELETED_KEPT_S)

    def _move_old_drafts(self, drafts: Path) -> None:
        """Move the designs that earlier versions of Meshwave kept as ``drafts/ID.json``."""
        for path in drafts.glob("*.json"):
            if is_id(path.stem):
                (self.folder / path.stem).mkdir(mode=0o700, exist_ok=True)
                path.replace(self.folder / path.stem / "design.json")

    def _discard_deleted(self, age_s: float) -> None:
        """Discard the designs that were deleted longer ago than ``age_s``."""
        for path in self.folder.glob(f"*{DELETED}"):
            with suppress(FileNotFoundError):  # it was restored meanwhile
                if path.stat().st_mtime <= time.time() - age_s:
                    shutil.rmtree(path, ignore_errors=True)

    def check_space(self, *, is_new: bool = False) -> None:
        """Check that there is space for an edit or a new design; if necessary, discard deleted designs.

        Raises:
            Refusal: there is none.
        """
        try:
            self._check(self.folder, is_new)
        except Refusal:
            self._discard_deleted(0.0)
            self._check(self.folder, is_new)

    # ---- designs ----

    def path(self, design: str, file: str) -> Path:
        """Return the path of a file of a design.

        Raises:
            Refusal: the ID is invalid.
        """
        if not is_id(design):
            raise Refusal("unknown_design_id", {"design": design})
        return self.folder / design / file

    def has(self, design: str) -> bool:
        """Return whether the library has a design."""
        return is_id(design) and self.path(design, "design.json").exists()

    def read(self, design: str) -> Design:
        """Return a design.

        Raises:
            InputError: the library has no such design, or its file cannot be read.
        """
        return load_design(self.path(design, "design.json"), draft=True)

    def read_or(self, design: str, default: Design) -> Design:
        """Return a design, or ``default`` if the library does not have it or cannot read it."""
        try:
            return self.read(design) if self.has(design) else default
        except MeshwaveError:
            return default

    def save(self, design: str, content: Design) -> None:
        """Write a design; one that was deleted, which a tab still shows, is restored with its history.

        Raises:
            InputError: there is no space, or the file cannot be written.
        """
        path = self.path(design, "design.json")
        if not path.exists():
            self._bring_back(design)
        self.check_space(is_new=not path.exists())
        with suppress(OSError):  # writing the file reports the error
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            save_design(content, path)
        except InputError:
            with suppress(OSError):  # it contains other files
                path.parent.rmdir()
            raise
        self._written[design] = file_state(path)

    def save_edit(self, design: str, before: Design, after: Design) -> str:
        """Write an edit of the state ``before``; another state, which another server has saved, is kept as a version.

        Returns:
            A notice that names this version; empty if there is none.

        Raises:
            InputError: there is no space, or the file cannot be written, or has been replaced by one that cannot be read.
        """
        state, notice = file_state(self.path(design, "design.json")), ""
        if state not in (None, self._written.get(design)):
            found = self.read(design)
            if found not in (before, after):
                version = _unused_name(f"edited elsewhere {time.strftime('%Y-%m-%d %H:%M:%S')}", self.log(design))
                self.log(design).add_version(version, found)
                self.log(design).add_state(before)  # the other server has logged its edits
                notice = f"This design was also edited elsewhere; those edits are kept as the version {version}."
            self._written[design] = state
        self.save(design, after)
        return notice

    def add(self, content: Design) -> str:
        """Save a new design and return its ID."""
        design = new_id()
        self.save(design, content)
        return design

    def log(self, design: str) -> EditLog:
        """Return the log of the edits of a design."""
        return EditLog(self.path(design, "history.jsonl"), self.check_space)

    def rename(self, design: str, name: str) -> None:
        """Change the name of a design."""
        before = self.read(design)
        renamed = before.model_copy(update={"name": name})
        self.save(design, renamed)
        with suppress(InputError):
            self.log(design).add_edit(before, renamed, f"rename to {name}", opens=False)
        self.write_card(design, {"name": name})

    def duplicate(self, design: str) -> str:
        """Copy a design without its history, and return the ID of the copy."""
        content = self.read(design)
        copy = self.add(content.model_copy(update={"name": f"{content.name} (copy)"}))
        self.write_card(copy, self.read_card(design) | {"name": f"{content.name} (copy)"})
        return copy

    def delete(self, design: str) -> None:
        """Delete a design; it can be restored for 30 days, as long as there is space."""
        folder = self.path(design, "").resolve()
        if folder.exists():
            deleted = folder.with_name(design + DELETED)
            with suppress(FileNotFoundError):  # usually there is no earlier copy
                deleted.rename(folder.with_name(new_id() + DELETED))
            os.utime(folder.rename(deleted))
        self._discard_deleted(DELETED_KEPT_S)  # a server may run for months

    def restore(self, design: str) -> None:
        """Restore a deleted design; nothing happens if a tab has saved it since, which restores it too.

        Raises:
            Refusal: the library does not have the deleted design, for example because its time has expired, or there is no
                space for it.
        """
        if self.has(design):
            return
        self._check(self.folder, True)
        if not self._bring_back(design):
            raise Refusal("deleted_for_good")

    def _bring_back(self, design: str) -> bool:
        """Rename the folder of a deleted design back; return False if that is not possible."""
        folder = self.path(design, "").resolve()
        deleted = folder.with_name(design + DELETED)
        if not deleted.is_dir():
            return False
        with suppress(OSError):
            for path in folder.glob("*"):
                _move_newer(path, deleted / path.name)
            if folder.exists():
                folder.rmdir()
            deleted.rename(folder)
        return self.has(design)

    # ---- what was opened recently ----

    def note_opened(self, kind: str, name: str) -> None:
        """Note that a design (kind ``draft``), an example, a run or a lesson was opened now."""
        opened = {"kind": kind, "name": name, "opened_s": time.time()}
        others = [each for each in self.recent() if (each["kind"], each["name"]) != (kind, name)]
        with suppress(OSError, InputError):  # without the file, nothing is listed as opened recently
            write_private(self.folder / RECENT, json.dumps([opened, *others][: 2 * LONGEST_RECENT]))

    def recent(self) -> list[Card]:
        """Return kind, name and time of recently opened items, the latest first; some may have been deleted."""
        try:
            found = json.loads((self.folder / RECENT).read_bytes())
            return [
                {"kind": str(each["kind"]), "name": str(each["name"]), "opened_s": float(each["opened_s"])}
                for each in found
            ]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    # ---- cards ----

    def cards(self) -> list[Card]:
        """Return the cards of all designs, the latest edit first; designs of open lessons are left out."""
        found = []
        for path in self.folder.glob("*"):  # none if the folder was removed
            with suppress(OSError, MeshwaveError, ValueError):  # a damaged design is not shown
                if is_id(path.name) and not (path / "lesson").exists():
                    edited_s = (path / "design.json").stat().st_mtime
                    found.append({"tags": [], **self._card_of(path.name), "id": path.name, "edited_s": edited_s})
        return sorted(found, key=lambda card: -card["edited_s"])

    def _card_of(self, design: str) -> Card:
        """Return the card of a design; one without a card has its name and schedule only."""
        card = self.read_card(design)
        if "name" not in card:
            content = parse_design(self.path(design, "design.json").read_bytes(), draft=True)
            card |= {"name": content.name, "schedule": schedules[content.pipeline.schedule].title}
        return card

    def read_card(self, design: str) -> Card:
        """Return the stored card of a design, or an empty card."""
        try:
            card = json.loads(self.path(design, "card.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return card if isinstance(card, dict) else {}

    def write_card(self, design: str, changes: Mapping[str, Any]) -> None:
        """Change entries of the card of a design."""
        with suppress(OSError, InputError):  # without a card the design is listed by its name
            write_private(self.path(design, "card.json"), json.dumps(self.read_card(design) | dict(changes)))

    def tag(self, design: str, tags: list[str]) -> None:
        """Set the tags of a design."""
        self.write_card(design, {"tags": list(_valid_tags(tags))})


def _valid_tags(tags: list[str]) -> Iterator[str]:
    known = dict.fromkeys(" ".join(tag.split())[:LONGEST_TAG] for tag in tags)
    yield from [tag for tag in known if tag][:MOST_TAGS]


def _unused_name(name: str, log: EditLog) -> str:
    """Return a name that no version has: the given one, or the same with a number."""
    known = log.replay().versions
    return next(each for each in chain([name], (f"{name} ({number})" for number in count(2))) if each not in known)


def _move_newer(path: Path, older: Path) -> None:
    """Move a file that a tab has written since its design was deleted to the other files of this design.

    Both histories and all comments are kept; another file, such as the run that the tab shows, replaces the older one.
    """
    if path.name == "history.jsonl" and older.exists():
        path.write_bytes(older.read_bytes() + b"\n" + path.read_bytes())
    elif path.name == "comments.json" and older.exists():
        with suppress(ValueError):  # damaged comments are replaced
            write_private(path, json.dumps([*json.loads(older.read_bytes()), *json.loads(path.read_bytes())]))
    path.replace(older)
