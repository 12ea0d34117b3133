"""Merging of the edits of several people into one design."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwave.designer.state.design_edits import reset_stage_settings
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.changes import Change, apply_changes
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Problem, Refusal, problems_of


def merge_changes(current: Design, changes: Iterable[Change], after: Design | None = None) -> Design:
    """Return a design with changes.

    Args:
        current: the design.
        changes: the changes, which may be based on an earlier state.
        after: the design that the author of the changes saw; by default ``current``.

    Raises:
        Refusal: the result would be invalid.
    """
    try:
        merged = apply_changes(to_document(current), changes)
        design = reset_stage_settings(parse_design(merged, draft=True), current)
    except InputError as error:
        raise Refusal("edits_do_not_fit", {"reason": str(problems_of(error)[0])}) from None
    known = {*_errors(current), *(_errors(after) if after is not None else ())}
    if added := [each for each in _errors(design) if each not in known]:
        raise Refusal("edits_do_not_fit", {"reason": str(added[0])})
    return design


def to_document(design: Design) -> dict[str, Any]:
    """Return a design as plain data."""
    return design.model_dump(mode="json")


def _errors(design: Design) -> list[Problem]:
    return [each for each in problems(design) if each.severity == "error"]
