"""Reading and writing of design files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwave.engine.document.cluster import MAX_MESHES
from meshwave.engine.document.design import Design
from meshwave.engine.document.problems import limit_repetition, problems, problems_of_valid_parts
from meshwave.engine.document.reading import read_json
from meshwave.engine.document.upgrades import upgrade
from meshwave.engine.document.validation_problems import validation_problems
from meshwave.engine.files import read_whole, write_whole
from meshwave.engine.findings import DesignError, Problem

LARGEST_FILE_BYTES = 64_000_000


def parse_design(document: Mapping[str, Any] | str | bytes, *, draft: bool = False) -> Design:
    """Return the design of a document, given as JSON text or as its parsed value.

    The parts of a draft are individually valid, but may be inconsistent with each other;
    :func:`meshwave.engine.document.problems.problems` checks them together.

    Raises:
        DesignError: the document is invalid; the error lists every problem with its path.
    """
    if isinstance(document, (str, bytes)):
        document = read_json(document, "design")
    if not isinstance(document, Mapping):
        parts = "cluster, model, meshes and pipeline"
        raise DesignError([Problem("", "wrong_document", {"document": "design", "parts": parts})])
    _check_mesh_count(document)
    try:
        current = upgrade(document)
        text = json.dumps(current)  # strict types, but lists are accepted for tuples
    except (TypeError, ValueError, RecursionError) as error:
        raise DesignError([Problem("", "unwritable_json", {"reason": str(error)})]) from None
    try:
        design = Design.model_validate_json(text)
    except ValidationError as error:
        refused = validation_problems(error, document, Design)
        others = [] if draft else problems_of_valid_parts(current, refused)
        raise DesignError(limit_repetition([*refused, *_load_errors(others)])) from None
    if not draft and (errors := _load_errors(problems(design))):
        raise DesignError(errors)
    return design


def _check_mesh_count(document: Mapping[str, Any]) -> None:
    """Reject a list of meshes that is too long, before each mesh is validated."""
    meshes = document.get("meshes")
    if isinstance(meshes, list) and len(meshes) > MAX_MESHES:
        params = {"count": len(meshes), "maximum": MAX_MESHES}
        raise DesignError([Problem("meshes", "too_many_meshes", params)])


def _load_errors(found: Iterable[Problem]) -> list[Problem]:
    return [problem for problem in found if problem.severity == "error"]


def load_design(path: Path | str, *, draft: bool = False) -> Design:
    """Read a design or a draft from a file; see :func:`parse_design`.

    Raises:
        InputError: the file cannot be read.
        DesignError: the file is not a valid design.
    """
    return parse_design(read_whole(path, "design", LARGEST_FILE_BYTES), draft=draft)


def save_design(design: Design, path: Path | str) -> None:
    """Write a design atomically: after a crash, the file is either the old or the new one."""
    write_whole(path, design.to_json().encode())
