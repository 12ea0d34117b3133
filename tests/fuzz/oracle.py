"""Rules for the answers to all inputs: sentences for people, JSON for programs, no other exceptions."""

from __future__ import annotations

import io
import json
import re
import threading
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from meshwave.engine.errors import MeshwaveError

ROOT = Path(__file__).resolve().parents[2]
LONGEST_LINE = 2_000
"""Maximum number of characters of a line of a message; a name has at most 200."""
LONGEST_PRINTED = 10_000_000
"""Maximum number of characters of other output, such as an order of thousands of actions."""

_REPR = re.compile(
    r"""Traceback\ \(most|<class\ |<[\w.]+\ object|\bat\ 0x[0-9a-f]{6}|\b[A-Z]\w*(?:Error|Exception)\(
        |\bPosixPath\(|\bnp\.\w+\(|mappingproxy|validation\ error|\bset_int_max
        |\bNone\b(?!\ is)|\bTrue\b|\bFalse\b|(?<![\w'.-])nan\b|(?<![\w'.-])inf\b|\{'\w+':""",
    re.VERBOSE,
)
"""Python representations that no message should contain. Inputs have none of these words, so an echo has none either.
"""
_QUOTED_WORD = re.compile(r'"[^"\n]*\b(?:nan|inf|None)\b[^"\n]*(?:"|\.\.\.)')
"""Quoted word of an input, which a message may repeat even if it looks like a Python value."""


class Complaint(NamedTuple):
    """A broken rule; equal complaints about one call are one defect."""

    rule: str
    detail: str


Act = Callable[[], Iterable[Complaint]]


def complaints_about(act: Act) -> list[Complaint]:
    """Run a call and return the broken rules of its answer; a refusal with a message breaks none."""
    output = io.StringIO()  # of what prints on the way
    with warnings.catch_warnings(record=True) as warned, threads_watched() as raised:
        warnings.simplefilter("always", RuntimeWarning)
        with redirect_stdout(output), redirect_stderr(output):
            found = [*check_answer(act)]
    found += [about_exception(error) for error in raised]
    numeric = [each for each in warned if issubclass(each.category, RuntimeWarning)]
    return found + [Complaint(f"warning in {_place(each.filename)}", str(each.message)) for each in numeric]


def check_answer(act: Act) -> Iterator[Complaint]:
    try:
        yield from act()
    except MeshwaveError as error:
        yield from about_text(str(error))
    except (Exception, SystemExit) as error:
        yield about_exception(error)


@contextmanager
def threads_watched() -> Iterator[list[BaseException]]:
    """Collect exceptions that end threads inside this context."""
    raised: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda args: raised.append(args.exc_value or args.exc_type())
    try:
        yield raised
    finally:
        threading.excepthook = before


def about_exception(error: BaseException) -> Complaint:
    """Return the complaint about an unexpected exception, named by its type and the last function of our code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if is_product(frame.filename)] or list(frames)[-1:]
    last = ours[-1] if ours else None
    where = f"{_place(last.filename)}:{last.name}" if last else "nowhere"
    text = "".join(traceback.format_exception(error, limit=-6))
    return Complaint(f"{type(error).__name__} in {where}", text)


def is_product(file: str) -> bool:
    """Return whether a source file belongs to the engine or the designer."""
    return file.startswith((str(ROOT / "engine"), str(ROOT / "designer")))


def _place(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def about_text(text: str, longest: int = LONGEST_LINE) -> Iterator[Complaint]:
    """Yield reasons why a text is not a message for people."""
    if not text.strip():
        yield Complaint("empty message", repr(text))
    unfit = {mark for mark in text if mark != "\n" and unicodedata.category(mark) in ("Cc", "Cs")}
    if unfit:
        yield Complaint("control character in a message", text[:LONGEST_LINE])
    if shown := _REPR.search(_QUOTED_WORD.sub("", text)):
        yield Complaint(f"{shown[0]} in a message", text[:LONGEST_LINE])
    if any(len(line) > longest for line in text.split("\n")):
        yield Complaint("endless message", text[:LONGEST_LINE])


def about_json(text: str | bytes) -> Iterator[Complaint]:
    """Yield reasons why a text is not valid JSON."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        yield Complaint("output is not JSON", f"{error}: {str(text)[:400]}")


@cache
def _parser(*commands: Any) -> Any:
    """Return the parser of the command line, cached because building it takes longer than most commands."""
    from meshwave.engine.cli.parser import parser

    return parser(*commands)


class Ended(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: bytes
    err: str


def run_cli(*arguments: str) -> Ended:
    """Run ``meshwave`` in this process."""
    from meshwave.engine.cli import main as cli

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.object(cli, "parser", _parser):
        status = cli.main(arguments)
    return Ended(status, out.buffer.getvalue(), err.getvalue())  # type: ignore[attr-defined]


def about_command(*arguments: str, ended: list[Ended] | None = None) -> Iterator[Complaint]:
    """Run a command and check what it prints; ``ended`` receives its result."""
    found = run_cli(*arguments)
    if ended is not None:
        ended.append(found)
    if found.status not in (0, 1, 2):
        yield Complaint(f"exit status {found.status}", found.err)
    if found.status and not (found.err + found.out.decode("utf-8", "replace")).strip():
        yield Complaint("failed without a word", " ".join(arguments))
    if found.err.strip():
        yield from about_text(found.err)
    if "--json" in arguments and (found.status == 0 or found.out):
        yield from about_json(found.out)
    elif arguments[0] not in ("export", "import") and found.out.strip():
        yield from about_text(found.out.decode(), LONGEST_PRINTED)
