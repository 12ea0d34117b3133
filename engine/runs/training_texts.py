"""Training texts: the text file or folder that a design names, and texts that users upload."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from meshwave.engine.document import Design
from meshwave.engine.files import data_folder, expand_user, write_whole
from meshwave.engine.findings import DesignError, Problem, Refusal

LARGEST_UPLOAD_BYTES = 8_000_000
LONGEST_NAME_BYTES = 120
"""Maximum length, in bytes, of the name of an uploaded text; file systems allow 255 bytes."""


def texts_folder() -> Path:
    """Return the folder of uploaded texts; the command line searches this folder last."""
    return data_folder() / "data"


def training_text(design: Design, given: Path | None = None, folders: Sequence[Path] = ()) -> Path | None:
    """Return the text file, or the folder of texts, that a design trains on; None for the text that comes with Meshwave.

    Args:
        design: the design.
        given: a file or folder to use instead of the one that the design names.
        folders: folders to search before the folder of uploaded texts.

    Raises:
        DesignError: the file or folder does not exist.
    """
    if given is not None:
        return _existing_text(given)
    name = design.training.data
    return None if name is None else find_text(name, [*folders, texts_folder()])


def find_text(name: str, folders: Sequence[Path]) -> Path:
    """Return the first file or folder with the given name in ``folders``.

    Raises:
        DesignError: no folder contains it.
    """
    looked_in = list(dict.fromkeys(expand_user(folder).absolute() for folder in folders))
    for folder in looked_in:
        if (folder / name).is_file() or (folder / name).is_dir():
            return folder / name
    raise _text_refusal("text_missing", name=name, folders=[*map(str, looked_in)])


def save_text(name: str, text: str) -> str:
    """Save an uploaded text; return the file name under which it was saved.

    A name is numbered if a file of other content has it, since designs of other people may use that file.

    Raises:
        InputError: the text is empty or too large, or cannot be written.
    """
    content = text.encode("utf-8", "replace")
    if not content:
        raise Refusal("empty_training_text", {"name": name})
    if len(content) > LARGEST_UPLOAD_BYTES:
        sizes = {"size_bytes": len(content), "most_bytes": LARGEST_UPLOAD_BYTES}
        raise Refusal("text_too_large", {"name": name, **sizes, "folder": str(texts_folder())})
    plain = safe_file_name(name)
    stem, suffix = os.path.splitext(plain)
    names = chain([plain], (f"{stem}-{number}{suffix}" for number in count(2)))
    try:
        texts_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        free = next(each for each in names if _is_free_or_same(texts_folder() / each, content))
    except OSError as error:
        raise Refusal("unwritable_file", {"path": str(texts_folder() / plain), "reason": error.strerror}) from None
    write_whole(texts_folder() / free, content)
    return free


def _is_free_or_same(path: Path, content: bytes) -> bool:
    """Return True if a path is unused, or is a file with this content."""
    if not path.exists():
        return True
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def safe_file_name(name: str) -> str:
    """Return a file name that is valid on all systems and in designs, without folders or control characters."""
    last = re.split(r"[/\\]", name)[-1]
    kept = re.sub(r'[\x00-\x1f\x7f<>:"|?*]', "_", last).strip().lstrip(".")
    stem, dot, ending = kept.rpartition(".")
    stem, ending = (stem, dot + ending) if stem and len(ending) < 16 else (kept, "")
    room = LONGEST_NAME_BYTES - len(ending.encode("utf-8", "replace"))
    return (stem.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + ending) or "text.txt"


def _existing_text(path: Path) -> Path:
    path = expand_user(path)
    if not path.exists():
        raise _text_refusal("text_not_found", file=str(path))
    if not path.is_file() and not path.is_dir():
        raise _text_refusal("text_not_a_file", file=str(path))
    return path


def _text_refusal(code: str, **params: Any) -> DesignError:
    return DesignError([Problem("training.data", code, params)])
