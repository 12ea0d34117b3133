"""Text for a terminal: control characters of what it names are shown, and not obeyed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Those that move the cursor, change colours or the title, or turn the direction of text; not tab and newline."""


class EscapedStream:
    """A stream whose text has control characters as escapes such as ``\\x1b``; bytes pass through its buffer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Meanwhile what is printed has its control characters escaped: names in documents may be anybody's."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = EscapedStream(sys.stdout), EscapedStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
