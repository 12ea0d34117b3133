"""Tags and a note that the user attaches to a run, stored in ``annotations.json`` of the run folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from meshwave.engine.findings import RunRefusal
from meshwave.engine.run_files import RunFile, RunFolderError, read_document, write_document

FILE = "annotations.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 12, 40, 2000


class Annotations(RunFile):
    """Content of ``annotations.json``."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_annotations(folder: Path) -> Annotations:
    """Read the annotations of a run; empty if their file does not exist or is damaged."""
    try:
        return read_document(folder / FILE, Annotations) or Annotations()
    except RunFolderError:
        return Annotations()


def write_annotations(folder: Path, tags: Iterable[str], note: str) -> Annotations:
    """Store the annotations of a run without empty or repeated tags, truncated to the maximum length; return them.

    Raises:
        RunRefusal: the annotations cannot be written, as on a full disk.
    """
    each = (" ".join(tag.split())[:LONGEST_TAG] for tag in tags)
    kept = tuple(dict.fromkeys(filter(None, each)))[:MOST_TAGS]
    found = Annotations(tags=kept, note=note.strip()[:LONGEST_NOTE])
    try:
        write_document(folder / FILE, found.model_dump())
    except OSError as error:
        raise RunRefusal("run_not_annotated", {"run": folder.name, "error": error.strerror}) from None
    return found
