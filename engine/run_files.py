"""The files of a run folder: written whole or by appending, and validated when they are read.

Processes of a run write them, and anybody may have changed them since. Each reader returns validated values or
raises :class:`RunFolderError`, whose message is a sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from meshwave.engine.errors import RunError
from meshwave.engine.files import replace_file, write_all

LARGEST_DOCUMENT_BYTES = 256_000_000
"""A program of 128 meshes and 1024 microbatches has 20 MB."""
LOOK_BYTES = 1_000_000
"""The most that a follower reads at once: about 30 ms of work."""
RESERVED_BYTES = 16_384
UNREPORTED_STATUS = 74
"""The exit status of a process that failed and could not write why: EX_IOERR of sysexits.h."""
MOST_NS = 10**18
"""Times of a clock that is at most 31 years from its zero: differences of two fit into 64 bits."""

Nanoseconds = Annotated[int, Field(ge=-MOST_NS, le=MOST_NS)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Json = dict[str, Any]
NotNegative = Annotated[float, Field(ge=0)]
M = TypeVar("M", bound=BaseModel)


class RunFolderError(RunError):
    """A file of a run folder is missing, damaged or of another version."""


class RunFile(BaseModel):
    """The form of a file of a run folder, or of a line in one: exact types, finite numbers. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


def damaged(path: Path, problem: str) -> RunFolderError:
    """The error that says what is wrong with a file and what to do."""
    return RunFolderError(f"{path} is damaged: {problem}; restore the file, or delete the run folder")


# ---- documents ----


def write_document(path: Path, document: Any) -> None:
    """Write a document, whole or not at all."""
    replace_file(path, json.dumps(document).encode() + b"\n", 0o600)


def read_document(path: Path, form: type[M]) -> M | None:
    """A document in its form; None where there is no file.

    Raises:
        RunFolderError: the file cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise damaged(path, f"it cannot be read ({error.strerror})") from None
    if len(content) > LARGEST_DOCUMENT_BYTES:
        raise damaged(path, f"it has more than {LARGEST_DOCUMENT_BYTES // 10**6} MB")
    return parsed(path, content, form)


def parsed(path: Path, content: bytes, form: type[M]) -> M:
    """A value in its form, from the JSON text of a file.

    Raises:
        RunFolderError: the text is no JSON, or has another form.
    """
    try:
        return form.model_validate_json(content)
    except ValidationError as error:
        raise damaged(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first problem that pydantic found, in words: ``rows: input should be a valid integer``."""
    detail = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, detail["loc"]))
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    message = message[:1].lower() + message[1:]
    return f"{place}: {message}" if place else message


def numbered_files(folder: Path, prefix: str, suffix: str) -> dict[int, Path]:
    """By the number of a process the files of one kind, such as ``rank-3.log``, ascending."""
    name = re.compile(rf"{prefix}-(\d{{1,6}}){re.escape(suffix)}")
    found = ((name.fullmatch(path.name), path) for path in folder.glob(f"{prefix}-*{suffix}"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


# ---- a document that is written also on a full disk ----


def reserve(path: Path) -> None:
    """Set room aside on the disk for a document of at most :data:`RESERVED_BYTES`.

    Raises:
        OSError: there is no room.
    """
    replace_file(_reserved(path), bytes(RESERVED_BYTES), 0o600)


def write_reserved(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document whole, once, into the room that was set aside for it; it also outlives a loss of power.

    Raises:
        OSError: no room was set aside, or it was not enough.
    """
    content = json.dumps(document, indent=2).encode() + b"\n"
    with _reserved(path).open("r+b", buffering=0) as file:
        write_all(file.fileno(), content)
        file.truncate(len(content))
        os.fsync(file.fileno())
    _reserved(path).replace(path)


def _reserved(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


# ---- records: a line of JSON, and arrays after it ----


class Records:
    """Appends records to a file, what there is of a step in one write: a line of JSON, and then their bytes.

    Cut short at any byte it is still readable, up to its last whole record.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = path.open("wb", buffering=0)
        write_all(self._file.fileno(), json.dumps(header).encode() + b"\n")

    def append(self, records: NDArray[np.void]) -> None:
        write_all(self._file.fileno(), records.tobytes())

    def close(self) -> None:
        self._file.close()


def read_records(path: Path, header: type[M]) -> tuple[M, bytes] | None:
    """The first line of a file of records, and what follows it; None if it was cut off before.

    Raises:
        RunFolderError: it is of another version, or damaged, or there is none.
    """
    try:
        first, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise damaged(path, f"it cannot be read ({error.strerror})") from None
    return (parsed(path, first, header), body) if newline else None


def are_clock_times(*columns: NDArray[np.int64]) -> bool:
    """True if all are times of a clock, so that no difference of them overflows."""
    return all(bool(((column >= -MOST_NS) & (column <= MOST_NS)).all()) for column in columns)


# ---- lines of JSON ----


def rows_of(lines: Iterable[bytes | str], form: type[BaseModel]) -> Iterator[Json]:
    """The lines that have the form; others, such as one that a crash cut short, are left out."""
    for line in lines:
        with suppress(ValidationError):
            yield form.model_validate_json(line).model_dump(exclude_unset=True)


class Follower:
    """Reads a growing file of JSON lines, each line once and at most :data:`LOOK_BYTES` at a time."""

    def __init__(self, path: Path, form: type[BaseModel]) -> None:
        self._path, self._form = path, form
        self._offset = 0
        self._is_within_line = False  # one that is longer than a look
        self.is_at_end = False  # as of the last look

    def look(self) -> list[Json]:
        """The rows that came since the last look; lines of another form are left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read(LOOK_BYTES)
        except OSError:  # it is not there yet, or no file any more
            fresh = b""
        self.is_at_end = len(fresh) < LOOK_BYTES
        complete = fresh[: fresh.rfind(b"\n") + 1]
        if not complete and not self.is_at_end:
            self._offset, self._is_within_line = self._offset + len(fresh), True
            return []
        self._offset += len(complete)
        lines = complete.splitlines()[self._is_within_line :]
        self._is_within_line = self._is_within_line and not complete
        return [*rows_of(lines, self._form)]

    def rest(self) -> list[Json]:
        """All rows to the end of the file."""
        rows = self.look()
        while not self.is_at_end:
            rows += self.look()
        return rows
