"""Files opened and exported in the browser; large ones are read and written by jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwave.designer.state.field_limits import field_limit, read_name
from meshwave.designer.state.predictions import page_limit_problems
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.links import embedded_document
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.exports.pictures.rows import ShownTimeline
from meshwave.engine.findings import DesignError, Problem, Refusal, problems_of
from meshwave.engine.imports import TOO_FEW_DEVICES, Imported, Trace, find_format, imports, is_import, parse_trace
from meshwave.engine.predict.prediction import Prediction

LARGEST_FILE_BYTES = 6_000_000
"""Size in bytes of the largest file that the page opens; the largest custom order takes half of it."""
SMALL_FILE_BYTES = 50_000
"""Size in bytes of the largest file that the server reads itself, in 0.2 s, instead of by a job."""
SMALL_ROWS = 20_000
"""Rows of the largest program that the server exports itself, in 0.3 s, instead of by a job."""
LONGEST_FILE_NAME = 100
LONGEST_NAME = field_limit(Design, "name")
_UNFIT = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]+')


class OpenedFile(NamedTuple):
    """The design of a file, or the problems that prevent opening the file."""

    design: Design | None
    notes: tuple[Problem, ...]
    problems: tuple[Problem, ...]
    is_import: bool = False
    """True if another tool wrote the file."""
    trace: Trace | None = None
    """The trace of a run, which has no design."""


def open_files(files: Sequence[tuple[str, Any]], into: Design, longest_name: int) -> OpenedFile:
    """Read files, given by name and text: a design, a schedule for the open design, or a trace of a run of it."""
    try:
        trace = parse_trace([(file, _uploaded_text(text)) for file, text in files])
        if trace is None and len(files) > 1:
            raise Refusal("several_files")
    except InputError as error:
        return OpenedFile(None, (), tuple(problems_of(error)))
    if trace is not None:
        return OpenedFile(None, (), (), trace=trace)
    return open_file(*files[0], into, longest_name)


def open_file(file: str, text: Any, into: Design, longest_name: int) -> OpenedFile:
    """Read a design file, or a schedule file for the design ``into``."""
    try:
        imported = is_import(file, text if isinstance(text, str) else "")
        if imported:
            design, notes = read_import(file, text, file.rpartition(".")[0][:longest_name] or "schedule", into)
        else:
            design, notes = read_upload(text), ()
        if design.pipeline.actions is not None and (too_large := page_limit_problems(design)):
            raise DesignError(too_large)
    except InputError as error:
        return OpenedFile(None, (), tuple(problems_of(error)))
    return OpenedFile(design, notes, (), imported)


def read_upload(text: Any) -> Design:
    """Parse the text of a design file, or of an export that carries a design.

    An inconsistent design opens as a draft.

    Raises:
        DesignError: the text is not a design.
        Refusal: the file is too large.
    """
    text = _uploaded_text(text)
    return parse_design(embedded_document(text) or text, draft=True)


def read_import(file: str, text: Any, name: str, design: Design) -> Imported:
    """Import a file of another tool into ``design``, or into a new design ``name`` if the cluster is too small.

    Raises:
        DesignError: the file has no valid design.
        Refusal: the file is too large, or its format is unknown.
    """
    text = _uploaded_text(text)
    read = imports[find_format(file, text)].read
    try:
        return read(text, name, design, draft=True)
    except DesignError as error:
        if not any(problem.code == TOO_FEW_DEVICES for problem in error.problems):
            raise
        made, notes = read(text, name)
        opened = Problem("", "imported_into_new_design", {**error.problems[0].params}, "warning")
        return Imported(made, (opened, *notes))


def _uploaded_text(text: Any) -> str:
    """Return the text of an uploaded file.

    Raises:
        Refusal: the file is not text, or too large.
    """
    if not isinstance(text, str):
        raise Refusal("import_not_text", {"file": "the file"})
    size = len(text.encode("utf-8", "replace"))
    if size > LARGEST_FILE_BYTES:
        raise Refusal("large_upload", {"size": size, "maximum": LARGEST_FILE_BYTES})
    return text


class ExportedFile(NamedTuple):
    """An exported prediction, and notes on properties that its format cannot represent."""

    content: bytes
    left_out: list[str]


def export_prediction(name: str, prediction: Prediction, shown: Sequence[ShownTimeline]) -> ExportedFile:
    """Export a prediction in the format ``name``; pictures have the timelines that the page shows.

    Raises:
        InputError: the format cannot represent the design.
    """
    export = exports[name]
    return ExportedFile(export.shown_bytes(prediction, shown), export.omissions(prediction))


def file_name(name: str) -> str:
    """Return a design's name as a file name that is valid on any system."""
    return " ".join(_UNFIT.sub(" ", name).split())[:LONGEST_FILE_NAME].strip(". ") or "design"


def design_name(given: str) -> str:
    """Return a name as given, with single spaces.

    Raises:
        Refusal: it is empty or too long.
    """
    return read_name("design", given, LONGEST_NAME)
