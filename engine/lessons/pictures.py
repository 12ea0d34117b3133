"""Pictures of a lesson, which are files in its folder."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

from meshwave.engine.files import read_whole
from meshwave.engine.lessons.lesson import unknown_name_refusal

LARGEST_PICTURE_BYTES = 1_000_000
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")


def linked_pictures(text: str) -> Iterator[str]:
    """Yield the file names of the pictures in a Markdown text."""
    return (found[1] for found in _PICTURE.finditer(text))


def read_picture(folder: Path, name: str) -> str:
    """Return a picture of a lesson as a data URL.

    Raises:
        Refusal: the lesson has no picture with this name.
        InputError: the picture cannot be read, or is too large.
    """
    known = sorted(path.name for path in folder.iterdir() if path.suffix in TYPES and not path.is_symlink())
    if name not in known:
        raise unknown_name_refusal("picture", name, known)
    content = read_whole(folder / name, "picture", LARGEST_PICTURE_BYTES)
    return f"data:{TYPES[Path(name).suffix]};base64,{b64encode(content).decode()}"
