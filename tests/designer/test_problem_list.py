"""The list of problems, and the fixes that it offers."""

from __future__ import annotations

from meshwave.designer.state.design_session import Session
from meshwave.designer.views.problems import Problems, problem_entries
from meshwave.engine.findings import Problem


def test_errors_come_first_and_a_click_focuses_the_field(session: Session) -> None:
    seen: list[str] = []
    problems = Problems(session, on_focus=seen.append)
    assert (problems.badge, problems.severity) == ("", "")

    session.edit("model.layers", 3, "3 layers")
    problems._handle_msg({"type": "focus", "where": "model.layers"})

    assert (problems.badge, problems.severity) == ("1", "error")
    assert seen == ["model.layers"]


def test_a_fix_is_one_undo_step(session: Session) -> None:
    problems = Problems(session)
    before = session.design.model.layers
    session.edit("model.layers", 3, "3 layers")
    (problem,) = problems.problems

    problems._handle_msg({"type": "fix", "where": "model.layers", "code": problem["code"], "fix": problem["fixes"][0]})

    assert session.errors == [] and session.design.model.layers > 3
    assert session.history[0] == problem["fixes"][0]
    session.undo()
    assert session.design.model.layers == 3 != before


def test_a_fix_of_a_solved_problem_changes_nothing(session: Session) -> None:
    problems, before = Problems(session), session.design

    problems._handle_msg({"type": "fix", "where": "model.layers", "code": "too_few_layers", "fix": "set layers to 4"})

    assert session.design == before


def test_problems_are_listed_by_severity() -> None:
    given = [
        Problem("a", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}, "warning"),
        Problem("b", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}),
        Problem("c", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}),
    ]

    assert [each["where"] for each in problem_entries(given)] == ["b", "c", "a"]


def test_the_findings_of_a_search_are_shown_with_the_problems(session: Session) -> None:
    panel = Problems(session)
    assert panel.findings == []

    session.edit("", {"pipeline": {"schedule": "auto", "microbatches": 8}}, "schedule Auto")

    assert panel.findings[0].startswith("Simulated ")
