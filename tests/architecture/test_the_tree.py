"""Checks of all files: none loads anything from other servers, and none contains a path of one machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = {".py", ".js", ".css", ".json", ".md", ".toml", ".txt", ".html", ".svg", ".csv", ".yml", ""}
LEFT_BEHIND = {"build", "dist", "runs", "node_modules", "__pycache__"}
KEPT = {".ci", ".gitignore"}
"""Names with a leading dot that belong to the tree; tools leave all others behind."""

FETCHED = re.compile(
    r"""https?://(?!www\.w3\.org/|127\.0\.0\.1|localhost|\{)  # not a namespace, not this machine
        |["'(]//[a-z0-9.-]+\.[a-z]{2,}/                       # //host/ without its scheme
        |\bfrom\s+["'][^"'./]+\.(?:sh|dev|com|org)/           # an import of the web""",
    re.VERBOSE,
)
OF_A_MACHINE = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+|mnt/\w+|opt/\w+)/|[A-Z]:\\Users\\")


def files(*folders: str) -> Iterator[Path]:
    """Return the text files in folders of the tree, by default in all of them."""
    for folder in folders or ("",):
        for place, inside, names in os.walk(ROOT / folder):
            inside[:] = sorted(filter(is_ours, inside))
            yield from (Path(place, name) for name in sorted(names) if is_ours(name) and Path(name).suffix in TEXT)


def is_ours(name: str) -> bool:
    """Return whether a file or folder belongs to the tree instead of to a tool that ran in it."""
    return name not in LEFT_BEHIND and not name.endswith(".egg-info") and (name[0] != "." or name in KEPT)


def matches(pattern: re.Pattern[str], *folders: str) -> list[str]:
    """Return ``file:line: text`` for each match of a pattern."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files(*folders)
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    found = matches(FETCHED, "static", "designer")

    assert [each for each in found if not each.startswith(("static/locale/", "static/fonts/"))] == []  # texts, licence


def test_refusals_are_codes_of_the_catalogue() -> None:
    """``Refusal``, ``RunRefusal`` and ``DesignError`` carry codes; their base classes would carry a sentence."""
    assert matches(re.compile(r"raise (InputError|RunError)\("), "engine", "designer") == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    assert [
        found for found in matches(OF_A_MACHINE) if not found.startswith("tests/architecture/test_the_tree.py")
    ] == []


def test_the_patterns_find_what_they_are_for() -> None:
    caught = ["https://cdn.example.org/x.js", '@import "//fonts.example.com/a.css"', 'import x from "esm.sh/react"']
    innocent = ["http://www.w3.org/2000/svg", "http://127.0.0.1:5006/", "f'http://{ADDRESS}:{port}'", "a // b.c / d"]

    assert [bool(FETCHED.search(text)) for text in caught] == [True] * len(caught)
    assert [bool(FETCHED.search(text)) for text in innocent] == [False] * len(innocent)
    assert OF_A_MACHINE.search("see /" + "home/ada/designs")
    assert not OF_A_MACHINE.search("examples/home/x and ~/.cache")
