"""Errors, and escaping of text for printing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class MeshwaveError(Exception):
    """Base class of all errors whose message is shown to users."""


class InputError(MeshwaveError):
    """Error in the input; a command then exits with status 2."""


class RunError(MeshwaveError):
    """Error of a run; a command then exits with status 1."""


CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
"""Control characters of terminals and surrogates, except tab and newline."""
BREAKS = "\t\n"
DIRECTIONS = "\u2028-\u202e\u2066-\u2069"
"""Characters that change the text direction or separate lines: allowed in documents, escaped on a terminal."""


def escape_unprintable(text: str, escaped: str = CONTROLS + BREAKS) -> str:
    r"""Return a text whose characters in ``escaped``, by default control characters, are escaped as ``\u001b``."""
    return re.sub(f"[{escaped}]", lambda found: f"\\u{ord(found[0]):04x}", text)


def shorten(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters; the end of a longer text is replaced by "..."."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``word``; None if no word is similar."""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=0.5)), None)


def suggestion_text(known: Iterable[str], suggestion: str | None, others: Iterable[str] = ()) -> str:
    """Return a hint with a suggestion and the known names, such as "Did you mean 'gpipe'? Known: 1f1b, gpipe."."""
    hint = f"Did you mean {suggestion!r}? " if suggestion else ""
    names = "; or ".join(filter(None, [", ".join(sorted(known)), *others])) or "none"
    return f"{hint}Known: {names}."


def unknown_word_hint(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word, such as "Did you mean 'gpipe'? Known: 1f1b, gpipe."."""
    known = sorted(known)
    return suggestion_text(known, closest_word(word, known))
