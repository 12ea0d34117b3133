"""Input and output of the commands: documents, JSON, progress and errors."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TextIO

from meshwave.engine.errors import CONTROLS, DIRECTIONS, MeshwaveError, escape_unprintable


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
    sys.stdout, sys.stderr = EscapedStream(_open_if_closed(before[0])), EscapedStream(_open_if_closed(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_if_closed(stream: TextIO | None) -> TextIO:
    """Return a standard stream, or one that discards its text if it was closed before the start, as with ``>&-``."""
    return open(os.devnull, "w", encoding="utf-8") if stream is None else stream


Command = Callable[[argparse.Namespace], int]
"""Function that executes a command and returns the exit status."""

PROGRESS_INTERVAL_S = 2.0


def with_progress(command: Command) -> Command:
    """Return the command with progress on standard error if it takes long."""

    @wraps(command)
    def run(options: argparse.Namespace) -> int:
        from meshwave.engine.progress import report_progress_to

        printed_at = time.monotonic()

        def print_progress(share: float, stage: str) -> None:
            nonlocal printed_at
            if time.monotonic() - printed_at >= PROGRESS_INTERVAL_S:
                printed_at = time.monotonic()
                print_note(f"computing: {share:.0%}, {stage}")

        with report_progress_to(print_progress):
            return command(options)

    return run


def print_note(text: object, end: str = "\n") -> None:
    """Print a text to standard error; if that fails, as on a full disk, discard this text and all later ones."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Discard the unwritten output of a stream and all later output."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # the stream has no file, as in a notebook
        os.dup2(null, stream.fileno())
    os.close(null)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a value as JSON on standard output."""
    print(json.dumps(value, indent=2))


def print_result(options: argparse.Namespace, result: Any, to_lines: Callable[[Any], Iterable[str]]) -> int:
    """Print a result as JSON if ``--json`` is given, otherwise as lines of text; return status 0."""
    if options.json:
        print_json(result)
    else:
        print("\n".join(to_lines(result)))
    return 0


def print_error(error: MeshwaveError, *, as_json: bool) -> None:
    """Print an error to standard error; if ``as_json`` is True, also print its problems as JSON to standard output."""
    from meshwave.engine.findings import problems_of

    print_note(error)
    if as_json:
        print_json({"problems": [problem.to_json() for problem in problems_of(error)]})


def write_output(name: str | None, content: bytes) -> None:
    """Write to a file, or to standard output if no name or ``-`` is given."""
    if name is None or name == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    from meshwave.engine.files import write_whole

    write_whole(name, content)


def read_input(name: str) -> tuple[bytes, bool]:
    """Return the content of a document or example, and True if it is a design.

    The file is read only once, since it may be a pipe.
    """
    from meshwave.engine.document.loading import LARGEST_FILE_BYTES
    from meshwave.engine.document.reading import read_json
    from meshwave.engine.files import find_design, read_whole

    content = read_whole(find_design(name), "document", LARGEST_FILE_BYTES)
    document = read_json(content, "document")
    return content, isinstance(document, Mapping) and str(document.get("format")).startswith("meshwave/")
