"""Output streams that escape control characters, because names in documents may contain any text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from meshwave.engine.errors import CONTROLS, DIRECTIONS, escape_unprintable


class EscapedStream:
    """Stream that escapes control characters and changes of text direction in texts, but not in bytes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; tabs and newlines are not escaped."""
        return self._stream.write(escape_unprintable(text, CONTROLS + DIRECTIONS))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters of all output within the context."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = EscapedStream(sys.stdout), EscapedStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
