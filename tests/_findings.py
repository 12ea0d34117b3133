"""Helpers for findings in tests: find the problems of a document, and apply their fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.document.problems import problems
from meshwave.engine.document.unsupported import dry_run_problems, run_problems
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import DesignError, Problem, problems_of


def refusal(call: Callable[[], Any]) -> Problem:
    """Return the only problem that a call raises."""
    with pytest.raises(MeshwaveError) as refused:
        call()
    (problem,) = problems_of(refused.value)
    return problem


Find = Callable[[Mapping[str, Any]], list[Problem]]


def find_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return every problem of a document, including those that only prevent a run."""
    try:
        design = parse_design(document, draft=True)
    except DesignError as error:
        return list(error.problems)
    found = problems(design)
    return found if any(problem.severity == "error" for problem in found) else [*found, *_run_problems(design)]


def _run_problems(design: Design) -> list[Problem]:
    return [*run_problems(design), *dry_run_problems(design)]


def check_fixes(document: Mapping[str, Any], found: Iterable[Problem], find: Find = find_problems) -> None:
    """Apply each fix of each problem, and check that the problem is solved and that valid keys remain valid."""
    refused = _refusals(document)
    for problem in found:
        for fix in problem.fixes:
            changed = apply_edits(document, fix.edits)
            left = [each for each in find(changed) if (each.where, each.code) == (problem.where, problem.code)]
            assert problem not in left, f"{fix.label}: {problem}"
            assert _refusals(changed) <= refused, f"{fix.label}: {problem}"


def _refusals(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the place and the code of each reason why a document cannot be opened even as a draft."""
    try:
        parse_design(document, draft=True)
    except DesignError as error:
        return {(problem.where, problem.code) for problem in error.problems}
    return set()
