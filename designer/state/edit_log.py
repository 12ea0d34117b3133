"""The log of a design's edits on disk: undo and redo after a reload, and named versions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import lock_file, write_private
from meshwave.engine.findings import Refusal

LARGEST_LOG_BYTES = 8_000_000
"""Size in bytes, without that of named versions, at which the undo history on disk is cleared; versions are kept."""

LONGEST_HEADER = 100
"""Largest number of bytes of the first line of a log, which has the size of its versions."""

Document = dict[str, Any]


class Author(NamedTuple):
    """A person who edits a design together with others."""

    id: str
    name: str


class LoggedStep(NamedTuple):
    """An entry of undo or redo: the document to restore, and the label of the edit.

    An edit of a shared design has its ``author``, and ``move`` is ``edit``, or ``undo`` or ``redo`` of
    an edit of the same author.
    """

    document: Document
    label: str
    opens: bool
    author: Author | None = None
    move: str = "edit"

    @property
    def design(self) -> Design:
        """The document as a design. It is parsed only when an undo or redo needs it."""
        return parse_design(self.document, draft=True)


class Version(NamedTuple):
    """A named version of a design."""

    name: str
    saved_s: float
    design: Design


@dataclass
class Replayed:
    """State of a design's history after the lines of a log."""

    present: Document | None = None
    past: list[LoggedStep] = field(default_factory=list)
    future: list[LoggedStep] = field(default_factory=list)
    versions: dict[str, Document] = field(default_factory=dict)
    accepted: list[tuple[int, str, str]] = field(default_factory=list)
    """Accepted changes of other people: the number of edits before, the ID of the person who accepted, and the path of
    the value.
    """

    def apply(self, line: Document) -> None:
        """Apply a line of the log."""
        if "version" in line:
            self.versions[line["version"]] = line
        elif "forget" in line:
            self.versions.pop(line["forget"], None)
        elif "design" in line:
            self.present, self.past, self.future = line["design"], [], []
        elif "accept" in line:
            self.accepted.append((len(self.past), line["accept"], line["where"]))
        elif self.present is not None:
            self._undo_or_redo(line)

    def _undo_or_redo(self, line: Document) -> None:
        assert self.present is not None
        if "edit" in line:
            author = Author(*line["author"]) if "author" in line else None
            self.past.append(LoggedStep(self.present, line["edit"], line["opens"], author, line.get("step", "edit")))
            self.future = []
            self.present = {**self.present, **line["changes"]}
            return
        origin, target = (self.past, self.future) if line["move"] == "undo" else (self.future, self.past)
        if not origin:  # the edit is from before the history was cleared
            self.present = {**self.present, **line["changes"]}
            return
        step = origin.pop()
        target.append(step._replace(document=self.present))
        self.present = step.document


class EditLog:
    """A file with a line of JSON for each edit, undo, redo and named version of a design.

    An edit holds the sections of the document that it changed. Servers on the same folder write one after the other.
    """

    def __init__(self, path: Path, check_space: Callable[[], None] = lambda: None) -> None:
        self._path, self._check_space = path, check_space

    def replay(self) -> Replayed:
        """Return the state after all lines of the log; damaged lines, such as one that was cut short, are skipped."""
        try:
            return self._replay()
        except OSError:
            return Replayed()

    def _replay(self) -> Replayed:
        state = Replayed()
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            with suppress(ValueError, KeyError, IndexError, TypeError, RecursionError):
                state.apply(json.loads(line))
        return state

    def add_edit(
        self,
        before: Design,
        after: Design,
        label: str,
        *,
        opens: bool,
        author: Author | None = None,
        move: str = "edit",
    ) -> None:
        """Append an edit; see :class:`LoggedStep`.

        Raises:
            Refusal: there is no space, or the file cannot be written.
        """
        self._check_space()
        by = {} if author is None else {"author": list(author), "step": move}
        self._append_step(before, {"edit": label, "opens": opens, "changes": _changes(before, after), **by})

    def add_acceptance(self, person: str, where: str) -> None:
        """Append that a person, identified by ID, has accepted another person's change of a value.

        Raises:
            Refusal: the file cannot be written.
        """
        with self._locked():
            self._append({"accept": person, "where": where})

    def add_move(self, before: Design, after: Design, move: str) -> None:
        """Append the ``move`` between two states, which is ``undo`` or ``redo``.

        Raises:
            Refusal: the file cannot be written.
        """
        self._append_step(before, {"move": move, "changes": _changes(before, after)})

    def add_state(self, present: Design) -> None:
        """Append a state that the edits so far do not lead to; the undo history begins anew.

        Raises:
            Refusal: the file cannot be written.
        """
        with self._locked():
            self._append({"design": present.model_dump(mode="json")})

    def versions(self) -> list[Version]:
        """Return the named versions, the latest first; those that cannot be read are left out."""
        made = []
        for name, line in self.replay().versions.items():
            with suppress(InputError, ValueError, KeyError, TypeError):
                made.append(Version(str(name), float(line["at"]), parse_design(line["content"], draft=True)))
        return sorted(made, key=lambda version: -version.saved_s)

    def add_version(self, name: str, design: Design) -> None:
        """Append a named version; one of the same name is replaced.

        Raises:
            Refusal: there is no space, or the file cannot be written.
        """
        self._check_space()
        with self._locked():
            if not self._path.exists():
                self._restart(design)
            self._append({"version": name, "at": time.time(), "content": design.model_dump(mode="json")})

    def forget_version(self, name: str) -> None:
        """Remove a named version.

        Raises:
            Refusal: the file cannot be written.
        """
        with self._locked():
            self._append({"forget": name})

    def _append_step(self, before: Design, line: Mapping[str, Any]) -> None:
        """Append an edit or a move of the state ``before``, after clearing the undo history if it is too large."""
        with self._locked():
            if self._is_full():
                self._restart(before)
            self._append(line)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let other servers on the same folder wait for a change, and convert its errors.

        Raises:
            Refusal: the file cannot be read or written.
        """
        try:
            with lock_file(self._path):
                yield
        except OSError as error:
            raise Refusal("unwritable_history", {"reason": error.strerror}) from None

    def _is_full(self) -> bool:
        """Return whether the log does not exist, or its undo history is too large."""
        if not self._path.exists():
            return True
        size = self._path.stat().st_size
        return size > LARGEST_LOG_BYTES and size > LARGEST_LOG_BYTES + self._version_bytes()

    def _version_bytes(self) -> int:
        """Return the size in bytes of the versions that the last restart has kept."""
        with self._path.open("rb") as file, suppress(ValueError, KeyError, TypeError, RecursionError):
            return int(json.loads(file.readline(LONGEST_HEADER))["version_bytes"])
        return 0

    def _restart(self, present: Design) -> None:
        """Replace the log atomically by one with a document and the named versions only."""
        versions = "".join(map(_to_text, self._replay().versions.values()))
        design = _to_text({"design": present.model_dump(mode="json")})
        write_private(self._path, _to_text({"version_bytes": len(versions)}) + versions + design)

    @staticmethod
    def _ends_with_line(file: BinaryIO) -> bool:
        """Return whether the last line of a file is complete; otherwise the process was killed while it wrote it."""
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a+b") as file:
            file.write(b"" if self._ends_with_line(file) else b"\n")
            file.write(_to_text(line).encode())


def _changes(before: Design, after: Design) -> Document:
    """Return the sections of ``after`` that differ from those of ``before``."""
    sections = {key for key in type(after).model_fields if getattr(before, key) != getattr(after, key)}
    return after.model_dump(mode="json", include=sections)


def _to_text(line: Mapping[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"
