"""Files that processes write while a run goes on: documents that are there whole or not at all, and records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.errors import RunError

Json = dict[str, Any]


class Records:
    """Appends records to a file, what there is of a step in one write: a line of JSON, and then their bytes.

    Cut short at any byte it is still readable, up to its last whole record.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = path.open("wb", buffering=0)
        self._file.write(json.dumps(header).encode() + b"\n")

    def append(self, records: NDArray[np.void]) -> None:
        self._file.write(records.tobytes())

    def close(self) -> None:
        self._file.close()


def read_records(path: Path, form: str) -> tuple[Json, bytes] | None:
    """The first line of a file of records, and what follows it; None if it was cut off before.

    Raises:
        RunError: it is of another version, or damaged, or there is none.
    """
    with damage_told(path):
        header, newline, body = path.read_bytes().partition(b"\n")
        return (_checked(path, json.loads(header), form), body) if newline else None


def write_whole(path: Path, document: Mapping[Any, Any]) -> None:
    """Write a document, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document) + "\n", "utf-8")
    part.rename(path)


def read_whole(path: Path, form: str) -> Json | None:
    """A document of a format; None where there is none.

    Raises:
        RunError: it is damaged, or of another version.
    """
    with damage_told(path):
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        return _checked(path, document, form)


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Whatever is found not to be in a file as it should is told as damage.

    Raises:
        RunError: it is damaged.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path.name} is damaged: {error!r}") from None


def _checked(path: Path, document: Json, form: str) -> Json:
    if document["format"] != form:
        raise RunError(f"{path.name} is of format {document['format']!r}; this version reads {form!r}")
    return document
