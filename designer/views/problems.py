"""Problems of the open design, and the search for a better order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.design_session import PROGRESS_STATES, Session
from meshwave.designer.state.job_processes import Done, Failed, JobUpdate, Progress
from meshwave.designer.state.jobs import Listener
from meshwave.designer.state.predictions import Outcome
from meshwave.designer.views._view import FILL, View, views
from meshwave.engine.document import parse_design
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.lowering.schedule_prices import search_findings
from meshwave.engine.predict.gallery import searched_pipeline
from meshwave.engine.predict.gallery_notes import summarize_search


def problem_entries(problems: Sequence[Problem], blocking: Sequence[Problem] = ()) -> list[dict[str, Any]]:
    """Return the problems as plain data: errors first, then problems that block a launch, then the others."""
    stops = {(each.where, each.code) for each in blocking}
    known = {(each.where, each.code) for each in problems}
    every = [*problems, *(each for each in blocking if (each.where, each.code) not in known)]

    def shown_severity(problem: Problem) -> str:
        if problem.code in PROGRESS_STATES:
            return "computing"
        unwise = problem.severity == "warning" and (problem.where, problem.code) in stops
        return "launch" if unwise or problem not in problems else problem.severity

    ordered = sorted(every, key=lambda problem: SEVERITIES.index(shown_severity(problem)))
    return [
        {
            "severity": shown_severity(each),
            "where": each.where,
            "code": each.code,
            "message": each.message,
            "fixes": [fix.label for fix in each.fixes],
        }
        for each in ordered
    ]


SEVERITIES = ("error", "launch", "warning", "computing")


@widget("panels/problems.js", "kit/shell.css", "panels/dock.css")
class Problems(Canvas):
    """List of the design's problems and of problems that block its launch; a click passes the path to ``on_focus``."""

    problems = param.List(default=[], doc="Problems as plain data, as problem_entries() returns them.")
    badge = param.String(default="", doc="Number of problems for the badge of the tab; empty if there is none.")
    severity: Any = param.Selector(
        default="", objects=["", "warning", "launch", "error"], doc="Highest severity of the problems."
    )
    findings = param.List(default=[], doc="Sentences about the result of the schedule's search for an order.")
    better = param.Dict(
        default={},
        doc="Search for a better order of the same stages: its state (open, runs, found), a sentence, the completed fraction, "
        "and whether the result can be applied; empty if the schedule has no such search.",
    )

    def __init__(self, session: Session, on_focus: Callable[[str], Any] | None = None, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._on_path = session, on_focus
        self._blocking: Sequence[Problem] = ()
        self._search: Listener | None = None
        self._found: Mapping[str, Any] | None = None  # the pipeline section with the found order
        session.param.watch(lambda *_: self._update_list(), "problems")
        session.param.watch(lambda *_: self._show_findings(), "prediction")
        session.param.watch(lambda *_: self._reset_search(), ["design", "prediction"])
        self._update_list()
        self._show_findings()
        self._reset_search()

    def show_blockers(self, blocking: Sequence[Problem]) -> None:
        """Show problems that block the launch of a valid design."""
        if list(blocking) != list(self._blocking):
            self._blocking = blocking
            self._update_list()

    def _update_list(self) -> None:
        problems = problem_entries(self._session.problems, self._blocking)
        wrong = [problem for problem in problems if problem["severity"] != "computing"]
        self.param.update(
            problems=problems,
            badge=str(len(wrong)) if wrong else "",
            severity=wrong[0]["severity"] if wrong else "",
        )

    def _show_findings(self) -> None:
        prediction = self._session.prediction
        self.findings = list(search_findings(prediction.design)) if prediction else []

    # ---- search for a better order ----

    def _reset_search(self) -> None:
        """Discard the result of the search, which is for an earlier design."""
        self.stop_jobs()
        self._found = None
        asks = not self._session.is_stale and searched_pipeline(self._session.design) is not None
        self.better = {"state": "open", "words": "", "share": 0.0, "use": False} if asks else {}

    def stop_jobs(self) -> None:
        """Stop the search."""
        if self._search is not None:
            self._search.stop()
            self._search = None

    def _on_search(self) -> None:
        session = self._session
        pipeline = None if session.is_stale else searched_pipeline(session.design)
        if pipeline is None:
            raise Refusal("search_of_invalid_design")
        self.stop_jobs()
        design = parse_design({**session.design.model_dump(mode="json"), "pipeline": dict(pipeline)})
        outcome = session.predictions.predict_now(design, wait=session.later is None)
        if outcome is not None:
            self._show_result(pipeline, outcome)
            return
        assert session.later is not None
        self.better = {"state": "runs", "words": "Searching …", "share": 0.0, "use": False}
        self._search = session.predictions.request(
            design, session.later, lambda update: self._receive_update(pipeline, update)
        )

    def _on_stop(self) -> None:
        self._reset_search()

    def _on_use(self) -> None:
        if self._found is None:
            raise Refusal("outdated_search")
        self._session.edit("pipeline", dict(self._found), "schedule Auto")

    def _receive_update(self, pipeline: Mapping[str, Any], update: JobUpdate) -> None:
        if isinstance(update, Progress):
            words = f"Searching: {update.share:.0%}, {update.activity}"
            self.better = {"state": "runs", "words": words, "share": update.share, "use": False}
            return
        self._search = None
        if isinstance(update, Done):
            self._show_result(pipeline, update.value)
        elif isinstance(update, Failed):
            self._show_result(pipeline, ([Problem("", "failed_search", {"reason": update.reason})], None))

    def _show_result(self, pipeline: Mapping[str, Any], outcome: Outcome) -> None:
        problems, found = outcome
        summary = None if found is None else summarize_search(self._session.prediction, found)
        words, use = (str(problems[0]), False) if summary is None else (summary.text, summary.is_better)
        self._found = pipeline if use else None
        self.better = {"state": "found", "words": words, "share": 1.0, "use": use}

    def _on_focus(self, where: str) -> None:
        if self._on_path is not None:
            self._on_path(where)

    def _on_fix(self, where: str, code: str, fix: str) -> None:
        shown = (*self._session.problems, *self._blocking)
        problem = next((each for each in shown if (each.where, each.code) == (where, code)), None)
        self._session.edit(*fix_edit(self._session.design, problem, fix))


@views.register("problems")
class ProblemsView(View):
    """Problems of the open design, and problems that block its launch."""

    title: ClassVar = "Problems"
    order: ClassVar = 3

    def make_pane(self) -> Problems:
        """Build the list of problems."""
        return Problems(self.page.session, on_focus=self.page.focus, **FILL)

    def stop_jobs(self) -> None:
        """Stop the search for a better order."""
        assert isinstance(self.pane, Problems)
        self.pane.stop_jobs()
