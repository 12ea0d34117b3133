"""The whole design, and how it is read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwave.engine.document.design import Design, _refuse_many_meshes
from meshwave.engine.document.problems import problems, problems_beside, told
from meshwave.engine.document.reading import read_json
from meshwave.engine.document.upgrades import upgrade
from meshwave.engine.document.validation_problems import from_validation
from meshwave.engine.files import read_whole, write_whole
from meshwave.engine.findings import DesignError, Problem

LARGEST_FILE_BYTES = 64_000_000


def parse_design(document: Mapping[str, Any] | str | bytes, *, draft: bool = False) -> Design:
    """Make a design of a document that was read from JSON, or of its text.

    A draft has only to be sound part by part: its parts need not fit each other yet, as while
    somebody is drawing; ask :func:`meshwave.engine.document.problems.problems` what is still wrong with it.

    Raises:
        DesignError: with every problem that was found, each with its place.
    """
    if isinstance(document, (str, bytes)):
        document = read_json(document, "design")
    if not isinstance(document, Mapping):
        raise DesignError([Problem("", "type", "a design is a JSON object with cluster, model, meshes and pipeline")])
    _refuse_many_meshes(document)
    try:
        current = upgrade(document)
        text = json.dumps(current)  # strict numbers, but lists where the design has tuples
    except (TypeError, ValueError, RecursionError) as error:
        raise DesignError([Problem("", "json", f"the document is not plain JSON: {error}")]) from None
    try:
        design = Design.model_validate_json(text)
    except ValidationError as error:
        refused = from_validation(error, document, Design)
        beside = [] if draft else problems_beside(current, refused)
        raise DesignError(told([*refused, *_errors(beside)])) from None
    if not draft and (errors := _errors(problems(design))):
        raise DesignError(errors)
    return design


def _errors(found: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in found if problem.severity == "error"]


def load_design(path: Path | str, *, draft: bool = False) -> Design:
    """Read a design from a file; a draft as :func:`parse_design` does.

    Raises:
        InputError: the file cannot be read.
        DesignError: what is in it is no design.
    """
    return parse_design(read_whole(path, "design", LARGEST_FILE_BYTES), draft=draft)


def save_design(design: Design, path: Path | str) -> None:
    """Write a design; a crash leaves the old file or the new one, never half of one."""
    write_whole(path, design.to_json().encode())
