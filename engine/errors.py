"""What Meshwave says when something is wrong: a sentence with the numbers and a way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal, NamedTuple
from unicodedata import category


class MeshwaveError(Exception):
    """The base of every error that is meant for a person's eyes."""


class InputError(MeshwaveError):
    """The input is wrong, not the program: a command line ends with status 2."""


class RunError(MeshwaveError):
    """A run that was started could not finish: a command line ends with status 1."""


class Problem(NamedTuple):
    """One thing that is wrong with a design.

    ``where`` is a path into the document such as ``meshes[2].devices``; ``code`` is a short
    stable name for forms and tests; an *error* is refused, a *warning* is only listed.
    """

    where: str
    code: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{'' if self.severity == 'error' else 'warning: '}{place}{self.message}"


class DesignError(InputError):
    """A document that cannot be used, with every problem that was found in it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def printable(text: str) -> str:
    """Return a text from a file as it can be shown on a terminal: control characters as ``\\u001b``."""
    return "".join(f"\\u{ord(mark):04x}" if category(mark) in ("Cc", "Cs") else mark for mark in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """ "Did you mean 'gpipe'? Known: 1f1b, gpipe." for a word that is not among the known."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(known)}."
