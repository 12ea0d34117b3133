"""A copy of the tree with a new member of every kind in its folder: the example files of the extension guide."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTENSIONS = ROOT / "docs/examples/extensions"
COPIED = ("meshwave", "engine", "designer", "static", "examples", "docs", "tests", "pyproject.toml")
DERIVED = shutil.ignore_patterns("node_modules")


def example_files() -> list[Path]:
    """Return the example files, relative to the folder that mirrors the tree."""
    return sorted(path.relative_to(EXTENSIONS) for path in EXTENSIONS.rglob("*.py"))


def copy_tree(folder: Path, *, extended: bool = True) -> Path:
    """Copy the tree into ``folder``, and add the examples if it is to be ``extended``.

    The copy has the compiled modules of the tree, which take many seconds to compile.
    """
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=DERIVED)
        else:
            shutil.copy(source, folder / name)
    if extended:
        shutil.copytree(EXTENSIONS, folder, dirs_exist_ok=True, ignore=DERIVED)
    return folder


def environment(tree: Path, *more: Path) -> dict[str, str]:
    """Return the environment of a process that imports from a copy and stores its runs next to it."""
    path = os.pathsep.join(map(str, (tree, *more)))
    return {**os.environ, "PYTHONPATH": path, "MESHWAVE_HOME": str(tree / "home"), "COLUMNS": "100"}


def python(tree: Path, *arguments: str | Path, more: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy, and return its result even if it fails."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=tree, env=environment(tree, *more), capture_output=True, text=True, check=False, timeout=300
    )


def meshwave(tree: Path, *arguments: str | Path, more: tuple[Path, ...] = ()) -> str:
    """Return the output of a command of a copy; it must succeed."""
    done = python(tree, "-m", "meshwave.designer.main", *arguments, more=more)
    assert done.returncode == 0, done.stderr
    return done.stdout
