"""Folders of the server's machine with the Hugging Face checkpoints that a page offers as initial weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from meshwave.engine.files import data_folder, expand_user
from meshwave.engine.hugging_face.tensor_files import SUFFIX

FOLDERS = "MESHWAVE_CHECKPOINTS"
"""Environment variable with the folders; by default, the folder ``checkpoints`` of the data folder."""
MOST_CHECKPOINTS = 200
DEEPEST = 4
"""Maximum depth of the folders that are searched, which is that of the cache of Hugging Face."""


def list_checkpoints() -> dict[str, Path]:
    """Return the folders that contain safetensors files, by their paths inside the searched folders."""
    stated = os.environ.get(FOLDERS)
    folders = [expand_user(each) for each in stated.split(os.pathsep)] if stated else [data_folder() / "checkpoints"]
    found: dict[str, Path] = {}
    for folder in folders:
        for path in _folders_with_weights(folder):
            if len(found) < MOST_CHECKPOINTS:
                found.setdefault(path.relative_to(folder).as_posix() if path != folder else folder.name, path)
    return found


def _folders_with_weights(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        names.sort()
        path = Path(parent)
        if any(name.endswith(SUFFIX) for name in files):
            yield path
        if len(path.relative_to(folder).parts) >= DEEPEST:
            names.clear()
