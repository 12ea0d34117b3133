"""Files of a run folder: written atomically or appended to, and validated when they are read.

The processes of a run write these files, which may have been changed or damaged since. Each reader returns validated
values or raises :class:`RunFolderError`.
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

from meshwave.engine.files import replace_file, write_all
from meshwave.engine.findings import RunRefusal

LARGEST_DOCUMENT_BYTES = 256_000_000
"""Maximum size, in bytes, of a document that is read; a program of 128 meshes and 1024 microbatches has 20 MB."""
CHUNK_BYTES = 1_000_000
"""Maximum number of bytes that a follower reads at once, which takes about 30 ms."""
RESERVED_BYTES = 16_384
"""Size, in bytes, of the space that :func:`reserve_space` reserves."""
UNREPORTED_STATUS = 74
"""Exit status of a process that failed and could not write its error (EX_IOERR of sysexits.h)."""
MOST_NS = 10**18
"""Largest valid clock time in nanoseconds (31 years), so that differences of two times fit into 64 bits."""

Nanoseconds = Annotated[int, Field(ge=-MOST_NS, le=MOST_NS)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Json = dict[str, Any]
NotNegative = Annotated[float, Field(ge=0)]
M = TypeVar("M", bound=BaseModel)


class RunFolderError(RunRefusal):
    """Error for a file of a run folder that is missing, damaged or of another version."""


class RunFile(BaseModel):
    """Base class of the schemas of run files and their lines: exact types, finite numbers, unknown keys ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


def damaged_file(path: Path, problem: str) -> RunFolderError:
    """Return the error for a damaged file of a run folder."""
    return RunFolderError("damaged_file", {"path": str(path), "problem": problem})


# ---- documents ----


def write_document(path: Path, document: Any) -> None:
    """Write a JSON document atomically."""
    replace_file(path, json.dumps(document).encode() + b"\n", 0o600)


def read_document(path: Path, form: type[M]) -> M | None:
    """Read a document and validate it against ``form``; return None if the file does not exist.

    Raises:
        RunFolderError: the file cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_DOCUMENT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise damaged_file(path, f"it cannot be read ({error.strerror})") from None
    if len(content) > LARGEST_DOCUMENT_BYTES:
        raise damaged_file(path, f"it has more than {LARGEST_DOCUMENT_BYTES // 10**6} MB")
    return parse_document(path, content, form)


def parse_document(path: Path, content: bytes, form: type[M]) -> M:
    """Parse the JSON text of a file and validate it against ``form``.

    Raises:
        RunFolderError: the text is not valid JSON, or not valid against ``form``.
    """
    try:
        return form.model_validate_json(content)
    except ValidationError as error:
        raise damaged_file(path, first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a validation, such as ``rows: input should be a valid integer``."""
    detail = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, detail["loc"]))
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    message = message[:1].lower() + message[1:]
    return f"{place}: {message}" if place else message


def files_by_process(folder: Path, prefix: str, suffix: str) -> dict[int, Path]:
    """Return the files of one kind, such as ``rank-3.log``, by process number in ascending order."""
    name = re.compile(rf"{prefix}-(\d{{1,6}}){re.escape(suffix)}")
    found = ((name.fullmatch(path.name), path) for path in folder.glob(f"{prefix}-*{suffix}"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


# ---- documents that can be written on a full disk ----


def reserve_space(path: Path) -> None:
    """Reserve disk space for a document of at most :data:`RESERVED_BYTES`.

    Raises:
        OSError: the disk is full.
    """
    replace_file(_reserved_path(path), bytes(RESERVED_BYTES), 0o600)


def is_reserved(path: Path) -> bool:
    """Return True if space is reserved for a document that is not written yet."""
    return _reserved_path(path).exists()


def write_reserved(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document atomically and durably into its reserved space, once per reservation.

    Raises:
        OSError: no space was reserved, or the reserved space does not suffice.
    """
    content = json.dumps(document, indent=2).encode() + b"\n"
    reserved = _reserved_path(path)
    with reserved.open("r+b", buffering=0) as file:
        write_all(file.fileno(), content)
        file.truncate(len(content))
        os.fsync(file.fileno())
    reserved.replace(path)


def _reserved_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


# ---- record files: a JSON header line, followed by arrays ----


class Records:
    """Writer of a record file: a JSON header line, then the bytes of the records, with one write per step.

    A truncated file can be read up to its last complete record.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = path.open("wb", buffering=0)
        write_all(self._file.fileno(), json.dumps(header).encode() + b"\n")

    def append(self, records: NDArray[np.void]) -> None:
        """Append records with one write."""
        write_all(self._file.fileno(), records.tobytes())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path, header: type[M]) -> tuple[M, bytes] | None:
    """Return the header of a record file, and the bytes after it; None if the header is incomplete.

    Raises:
        RunFolderError: the file is missing, of another version, or damaged.
    """
    try:
        first, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise damaged_file(path, f"it cannot be read ({error.strerror})") from None
    return (parse_document(path, first, header), body) if newline else None


def are_clock_times(*columns: NDArray[np.int64]) -> bool:
    """Return True if all values are valid clock times, so that differences do not overflow."""
    return all(bool(((column >= -MOST_NS) & (column <= MOST_NS)).all()) for column in columns)


# ---- lines of JSON ----


def valid_rows(lines: Iterable[bytes | str], form: type[BaseModel]) -> Iterator[Json]:
    """Parse JSON lines as ``form``; invalid lines, such as a truncated last line, are skipped."""
    for line in lines:
        with suppress(ValidationError):
            yield form.model_validate_json(line).model_dump(exclude_unset=True)


class Follower:
    """Reader of a growing JSON-lines file.

    It returns each line once, and reads at most :data:`CHUNK_BYTES` at a time.
    """

    def __init__(self, path: Path, form: type[BaseModel]) -> None:
        self._path, self._form = path, form
        self._offset = 0
        self._is_within_line = False  # part of a line that is longer than a chunk
        self.is_at_end = False  # time of the last read

    def new_rows(self) -> list[Json]:
        """Return the rows written since the last call; invalid lines are skipped."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:  # a restarted run has removed the last rows
                    self._offset, self._is_within_line = 0, False
                file.seek(self._offset)
                fresh = file.read(CHUNK_BYTES)
        except OSError:  # not written yet, or removed
            fresh = b""
        self.is_at_end = len(fresh) < CHUNK_BYTES
        complete = fresh[: fresh.rfind(b"\n") + 1]
        if not complete and not self.is_at_end:
            self._offset, self._is_within_line = self._offset + len(fresh), True
            return []
        self._offset += len(complete)
        lines = complete.splitlines()[self._is_within_line :]
        self._is_within_line = self._is_within_line and not complete
        return [*valid_rows(lines, self._form)]

    def remaining_rows(self) -> list[Json]:
        """Return all rows up to the end of the file."""
        rows = self.new_rows()
        while not self.is_at_end:
            rows += self.new_rows()
        return rows
