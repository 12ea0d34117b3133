"""What Meshwave says when something is wrong: a sentence with the numbers and a way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from unicodedata import category


class MeshwaveError(Exception):
    """The base of every error that is meant for a person's eyes."""


class InputError(MeshwaveError):
    """The input is wrong, not the program: a command line ends with status 2."""


class RunError(MeshwaveError):
    """A run that was started could not finish: a command line ends with status 1."""


def printable(text: str) -> str:
    """Return a text from a file as it can be shown on a terminal: control characters as ``\\u001b``."""
    return "".join(f"\\u{ord(mark):04x}" if category(mark) in ("Cc", "Cs") else mark for mark in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """ "Did you mean 'gpipe'? Known: 1f1b, gpipe." for a word that is not among the known."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(known)}."
