"""The bar of a workshop over a learner's page: the teacher's message, the step of the class, and the challenges."""

from __future__ import annotations

from typing import Any

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.lessons.classroom_view import challenge_data, step_title
from meshwave.designer.lessons.pane import LessonPane
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.launches import Launches
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons.classroom import Classroom
from meshwave.engine.lessons.workshop import Challenge, score_design


@widget("lessons/class_bar.js", "kit/shell.css")
class ClassBar(Canvas):
    """A strip at the bottom of a learner's page, which covers the page while the workshop is paused."""

    name_shown = param.String(default="", doc="The learner's name; empty after the teacher removed it.")
    message = param.String(default="", doc="The teacher's message; empty if there is none.")
    class_step = param.String(
        default="",
        doc="Title of the step that the teacher chose; empty if none is chosen, or if the learner has already opened it.",
    )
    paused = param.Boolean(default=False, doc="True while the page is covered.")
    challenges = param.List(default=[], doc="Challenges with their leaderboards, as challenge_data() returns them.")

    def __init__(
        self,
        classroom: Classroom,
        person: str,
        session: Session,
        lessons: LessonPane,
        launches: Launches,
        **params: Any,
    ) -> None:
        super().__init__(styles={"position": "absolute", "width": "0", "height": "0"}, **params)
        self._classroom, self._person, self._session = classroom, person, session
        self._lessons, self._launches = lessons, launches
        self.refresh()

    def refresh(self) -> None:
        """Update the bar with the current state of the workshop."""
        classroom = self._classroom
        told = classroom.announcement
        learner = next((each for each in classroom.people() if each.id == self._person), None)
        if learner is None:
            self._session.read_only = True
        is_there = learner is not None and (learner.lesson, learner.step) == (told.lesson, told.step)
        self.param.update(
            name_shown=learner.name if learner else "",
            message=told.message,
            class_step="" if is_there else step_title(told.lesson, told.step),
            paused=told.is_paused,
            challenges=[challenge_data(classroom, each, self._person) for each in classroom.workshop.plan.challenges],
        )

    def report_position(self, draft: str) -> None:
        """Report the learner's open step and design to the teacher's board."""
        tutor = self._lessons.tutor
        lesson = tutor.lesson.name if tutor.lesson is not None else ""
        self._classroom.record_open_step(self._person, lesson, tutor.progress.step if lesson else 0, draft)

    def _on_lessons(self) -> None:
        """Open the list of lessons."""
        self._lessons.open()

    def _on_go(self) -> None:
        """Open the step that the teacher chose."""
        told = self._classroom.announcement
        if not told.lesson:
            raise Refusal("no_class_step")
        self._lessons.open(told.lesson)
        self._lessons.tutor.open_step(told.step)

    def _on_start(self, challenge: str) -> None:
        """Open the design that a challenge starts from; an open lesson would hide its metrics."""
        chosen = self._challenge(challenge)
        self._lessons.close()
        self._session.replace(self._classroom.workshop.designs[chosen.design], f"start {chosen.title}")

    def _on_submit(self, challenge: str) -> None:
        """Submit the open design to a challenge."""
        chosen, session = self._challenge(challenge), self._session
        if session.is_stale or session.prediction is None:
            raise Refusal("entry_with_problems")
        start = self._classroom.workshop.designs[chosen.design]
        score = score_design(chosen, start, session.prediction)
        if not self._classroom.submit(self._person, chosen.name, score, session.design):
            raise Refusal("not_a_better_score", {"score": score.text})
        self.refresh()

    def _on_confirm(self, challenge: str) -> None:
        """Launch a dry run of the best design that the learner submitted to a challenge."""
        name = self._challenge(challenge).name
        run = self._launches.dry_run(self._classroom.read_submission(self._person, name))
        self._classroom.add_dry_run(self._person, name, run.id)
        self.refresh()

    def _challenge(self, name: str) -> Challenge:
        """Return a challenge for a gesture.

        Raises:
            Refusal: there is no such challenge, or the teacher removed the learner.
        """
        self._session.check_editable()
        return self._classroom.workshop.challenge(name)
