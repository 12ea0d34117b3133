"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


Command = Callable[[argparse.Namespace], int]


SAID_EVERY_S = 2.0


def _telling(command: Command) -> Command:
    """The same command, which says on standard error how far work that takes long is."""

    @wraps(command)
    def telling(options: argparse.Namespace) -> int:
        from meshwave.engine.progress import watched

        said = time.monotonic()

        def say(share: float, words: str) -> None:
            nonlocal said
            if time.monotonic() - said >= SAID_EVERY_S:
                said = time.monotonic()
                print(f"computing: {100 * share:.0f} %, {words}", file=sys.stderr)

        with watched(say):
            return command(options)

    return telling


def _print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    print(json.dumps(value, indent=2))


def _print(options: argparse.Namespace, found: Any, lines: Callable[[Any], Iterable[str]]) -> int:
    """As JSON where that is asked for, else in words."""
    if options.json:
        _print_json(found)
    else:
        print("\n".join(lines(found)))
    return 0


def _write(name: str | None, content: bytes) -> None:
    if name is None or name == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    from meshwave.engine.files import write_whole

    write_whole(name, content)


def _looked_into(name: str) -> tuple[bytes, bool]:
    """What is in the file of a document, or in the example of that name, and whether that is a design; read once, for a
    pipe has no second time."""
    from meshwave.engine.document.loading import LARGEST_FILE_BYTES
    from meshwave.engine.document.reading import read_json
    from meshwave.engine.files import find_design, read_whole

    content = read_whole(find_design(name), "document", LARGEST_FILE_BYTES)
    document = read_json(content, "document")
    return content, isinstance(document, Mapping) and str(document.get("format")).startswith("meshwave/")
