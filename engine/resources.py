"""Where the files that come with Meshwave are: in a source tree, or beside the installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from engine.errors import InputError, nearest

_PACKAGE = Path(__file__).parent


def examples_folder() -> Path:
    """The examples: ``examples/`` of the source tree, or the copy inside the wheel."""
    source = _PACKAGE.parent / "examples"
    return source if (_PACKAGE.parent / "pyproject.toml").exists() else _PACKAGE / "examples"


def examples() -> dict[str, Path]:
    """The example designs by name."""
    return {path.stem: path for path in sorted(examples_folder().glob("*.json"))}


def example(name: str) -> Path:
    """The file of one example.

    Raises:
        InputError: there is none of that name.
    """
    known = examples()
    if name not in known:
        raise InputError(f"there is no example called {name!r}. {nearest(name, known)}")
    return known[name]


def home() -> Path:
    """The folder of Meshwave's own files: ``$MESHWAVE_HOME``, else where the system keeps such data."""
    if stated := os.environ.get("MESHWAVE_HOME"):
        return Path(stated).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "meshwave"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "meshwave"
    return Path(os.environ.get("XDG_DATA_HOME", str(Path.home() / ".local" / "share"))) / "meshwave"
