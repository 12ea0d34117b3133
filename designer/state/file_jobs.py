"""Files that come from the browser of a person and go to it; large ones are read and made by jobs."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from meshwave.designer.state.predictions import find_page_limits
from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.imports import TOO_FEW_DEVICES, Imported, find_format, imports, is_import
from meshwave.engine.predict.prediction import Prediction

LARGEST_FILE_BYTES = 6_000_000
"""Of a file that the page opens; a custom order as large as the page takes has half of it."""
SMALL_BYTES = 50_000
"""Of a file that is read in the page's own turn: in 0.2 s."""
SMALL_ROWS = 20_000
"""Of a program that is exported in the page's own turn: in 0.3 s."""
LONGEST_FILE_NAME = 100
_UNFIT = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')


class Opened(NamedTuple):
    """What a file holds, or why it was not opened."""

    design: Design | None
    notes: tuple[Problem, ...]
    problems: tuple[Problem, ...]


def opened(file: str, text: Any, into: Design, longest_name: int) -> Opened:
    """Read a file of a design, or of a schedule for the design that is open."""
    try:
        if is_import(file):
            design, notes = read_import(file, text, file.rpartition(".")[0][:longest_name] or "schedule", into)
        else:
            design, notes = read_upload(text), ()
        if design.pipeline.actions is not None and (too_large := find_page_limits(design)):
            raise DesignError(too_large)
    except DesignError as error:
        return Opened(None, (), error.problems)
    except InputError as error:
        return Opened(None, (), (Problem("", "file", str(error)),))
    return Opened(design, notes, ())


def read_upload(text: Any) -> Design:
    """A design of the text of a file; one whose parts do not fit each other opens as a draft.

    Raises:
        DesignError: it is no design.
        InputError: it is too large.
    """
    return parse_design(_upload(text), draft=True)


def read_import(file: str, text: Any, name: str, design: Design) -> Imported:
    """The open design with what a file of another tool holds; a design called ``name`` where the cluster is too small.

    Raises:
        DesignError: it holds no sound design.
        InputError: it is too large, or its format is not known.
    """
    text = _upload(text)
    read = imports[find_format(file, text)].read
    try:
        return read(text, name, design, draft=True)
    except DesignError as error:
        if not any(problem.code == TOO_FEW_DEVICES for problem in error.problems):
            raise
        made, notes = read(text, name)
        opened = Problem("", "csv_new_design", {**error.problems[0].params}, "warning")
        return Imported(made, (opened, *notes))


def _upload(text: Any) -> str:
    """The text of a file that a page sent.

    Raises:
        InputError: it is no text, or too large.
    """
    if not isinstance(text, str):
        raise InputError("the file is not text")
    size = len(text.encode("utf-8", "replace"))
    if size > LARGEST_FILE_BYTES:
        raise InputError(
            f"it has {size / 1e6:.3g} MB, and the page opens up to {LARGEST_FILE_BYTES / 1e6:.3g} MB; "
            "use the command line for larger ones"
        )
    return text


class Exported(NamedTuple):
    """A file of a prediction, and what it has no place for."""

    content: bytes
    left_out: list[str]


def exported(name: str, prediction: Prediction) -> Exported:
    """Write a prediction in the form of that name.

    Raises:
        InputError: the form cannot say what the design means.
    """
    export = exports[name]
    return Exported(export.make(prediction), export.left_out(prediction))


def file_name(name: str) -> str:
    """A design's name as a file's, on any system."""
    return " ".join(_UNFIT.sub(" ", name).split())[:LONGEST_FILE_NAME].strip(". ") or "design"
