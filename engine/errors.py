"""Errors, and text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class MeshwaveError(Exception):
    """Base of all errors whose message is shown to users."""


class InputError(MeshwaveError):
    """Wrong input; a command ends with status 2."""


class RunError(MeshwaveError):
    """A run that failed; a command ends with status 1."""


CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
"""Characters that move the cursor or change colours or the title of a terminal, and surrogates; not tab and newline."""
BREAKS = "\t\n"
DIRECTIONS = "\u2028-\u202e\u2066-\u2069"
"""Characters that change the direction of text or separate lines: allowed in documents, escaped in a terminal."""


def escape_unprintable(text: str, escaped: str = CONTROLS + BREAKS) -> str:
    r"""Return a text with some characters, by default control characters, as escapes such as ``\u001b``."""
    return re.sub(f"[{escaped}]", lambda found: f"\\u{ord(found[0]):04x}", text)


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``word``; None if none is similar."""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=0.5)), None)


def suggestion_text(known: Iterable[str], suggestion: str | None, others: Iterable[str] = ()) -> str:
    """Return "Did you mean 'gpipe'? Known: 1f1b, gpipe; or a list."."""
    hint = f"Did you mean {suggestion!r}? " if suggestion else ""
    return f"{hint}Known: {'; or '.join([', '.join(sorted(known)), *others])}."


def nearest_names(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word, such as "Did you mean 'gpipe'? Known: 1f1b, gpipe."."""
    known = sorted(known)
    return suggestion_text(known, closest_word(word, known))
