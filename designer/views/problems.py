"""What is wrong or unwise in the open design, one line a problem; and what a search for its order found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import param

from designer.canvases._canvas import Canvas, read_static, shared_modules
from designer.session import Session
from engine.errors import Problem


def listed(problems: Sequence[Problem], blocking: Sequence[Problem] = ()) -> list[dict[str, str]]:
    """The problems as plain data: errors first, then those that are ``blocking`` a launch, then the rest."""
    stops = {(each.where, each.code) for each in blocking}
    known = {(each.where, each.code) for each in problems}
    every = [*problems, *(each for each in blocking if (each.where, each.code) not in known)]

    def severity(problem: Problem) -> str:
        unwise = problem.severity == "warning" and (problem.where, problem.code) in stops
        return "launch" if unwise or problem not in problems else problem.severity

    ordered = sorted(every, key=lambda problem: SEVERITIES.index(severity(problem)))
    return [{"severity": severity(each), "where": each.where, "message": each.message} for each in ordered]


SEVERITIES = ("error", "launch", "warning")


class Problems(Canvas):
    """The problems of the session, and what keeps it from being launched; a press on one hands its path
    to ``on_focus``."""

    problems = param.List(default=[], doc="See listed().")
    badge = param.String(default="", doc="How many there are, for the tab; empty for none.")
    severity: Any = param.Selector(default="", objects=["", "warning", "launch", "error"], doc="The worst there is.")

    findings = param.List(default=[], doc="What a schedule that searches has tried, a sentence each.")

    _esm = read_static("problems.js")
    _importmap: ClassVar = shared_modules("canvas.js", "shell.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("shell.css"), read_static("problems.css")]
    _gestures = ("focus",)

    def __init__(self, session: Session, on_focus: Callable[[str], Any] | None = None, **params: Any) -> None:
        super().__init__(**params)
        self._session, self._on_path = session, on_focus
        self._blocking: Sequence[Problem] = ()
        session.param.watch(lambda *_: self._show(), "problems")
        session.param.watch(lambda *_: self._tell(), "prediction")
        self._show()
        self._tell()

    def block(self, blocking: Sequence[Problem]) -> None:
        """Show these as what keeps a sound design from being launched."""
        if list(blocking) != list(self._blocking):
            self._blocking = blocking
            self._show()

    def _show(self) -> None:
        problems = listed(self._session.problems, self._blocking)
        self.param.update(
            problems=problems,
            badge=str(len(problems)) if problems else "",
            severity=problems[0]["severity"] if problems else "",
        )

    def _tell(self) -> None:
        prediction = self._session.prediction
        self.findings = prediction.numbers["findings"] if prediction else []

    def _on_focus(self, gesture: Mapping[str, Any]) -> None:
        if self._on_path is not None:
            self._on_path(str(gesture["where"]))
