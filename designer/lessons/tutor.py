"""The lesson of a tab: steps, answers, hints and the learner's progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from meshwave.designer.state.design_session import Session
from meshwave.engine.document import Design
from meshwave.engine.findings import Refusal
from meshwave.engine.lessons import (
    Choice,
    Lesson,
    Measurement,
    NumberQuestion,
    Step,
    Task,
    Verdict,
    find_lesson,
    judge_choice,
    judge_measurement,
    judge_number,
    judge_task,
    right_answer,
)
from meshwave.engine.lessons.progress import LessonProgress, load_progress, save_progress


class OpenLesson(NamedTuple):
    """A lesson that a tab shows, and the design that was open before."""

    name: str
    before: Design


@dataclass
class Tutor:
    """The lesson of a tab, and the learner's position in it.

    ``on_change`` is called after every change, ``on_open`` with the opened lesson, or with None when a lesson ends.
    """

    session: Session
    on_change: Callable[[], object]
    on_open: Callable[[OpenLesson | None], object]
    folder: Path | None = None  # of the learner's progress; None for the user's own
    lesson: Lesson | None = None
    progress: LessonProgress = field(default_factory=LessonProgress)
    hints: int = 0
    verdict: Verdict | None = None
    _before: Design | None = None

    # ---- lessons ----

    def start(self, name: str) -> None:
        """Open a lesson at the step where the learner left it; the open design is kept for the end.

        Raises:
            MeshwaveError: there is no such lesson, or it has problems.
        """
        lesson = find_lesson(name)
        before = self._before or self.session.design
        self._enter(lesson, before)
        self._open(self._design_at(self.progress.step))
        self.update_verdict()

    def resume(self, opened: OpenLesson) -> None:
        """Continue a lesson after the page was reloaded, with the learner's design.

        Raises:
            MeshwaveError: there is no such lesson, or it has problems.
        """
        self._enter(find_lesson(opened.name), opened.before)
        self.update_verdict()

    def _enter(self, lesson: Lesson, before: Design) -> None:
        kept = load_progress(self.folder).lessons.get(lesson.name, LessonProgress())
        self.lesson, self._before = lesson, before
        self.progress = kept if kept.step < len(lesson.steps) else kept.with_step(0)
        self._clear_answer()
        self.on_open(OpenLesson(lesson.name, before))

    def leave(self, *, restore: bool = True) -> None:
        """End the lesson and, with ``restore``, open the design that was open before it."""
        if restore and self._before is not None and self._before is not self.session.design:
            self.session.replace(self._before, "leave the lesson")
        self.lesson = self._before = None
        self.on_open(None)
        self.on_change()

    def finish(self) -> None:
        """End the lesson at its last step; it starts from the first one next time."""
        self._save_progress(self.progress.with_step(0))
        self.leave()

    # ---- steps ----

    @property
    def current_lesson(self) -> Lesson:
        """The open lesson.

        Raises:
            InputError: no lesson is open, for example because the learner has just left it.
        """
        if self.lesson is None:
            raise Refusal("no_open_lesson")
        return self.lesson

    @property
    def step(self) -> Step:
        """The open step."""
        return self.current_lesson.steps[self.progress.step]

    @property
    def is_done(self) -> bool:
        """True if the explanation of the open step is shown."""
        is_asked = self.step.data.check is not None
        return not is_asked or self.progress.step in (*self.progress.done, *self.progress.shown)

    def open_step(self, number: int) -> None:
        """Open a step, with the design that it starts from."""
        number = min(max(number, 0), len(self.current_lesson.steps) - 1)
        is_next = number == self.progress.step + 1
        self._save_progress(self.progress.with_step(number))
        self._clear_answer()
        self._open(self.step.data.design if is_next else self._design_at(number))
        self.update_verdict()

    def _design_at(self, number: int) -> str | None:
        """Return the name of the design that is open at the beginning of a step; None if the step has none."""
        designs = [self.current_lesson.steps[number].data.design]
        for step in reversed(self.current_lesson.steps[:number]):
            designs += [step.data.reveal, step.data.design]
        return next(filter(None, designs), None)

    def _open(self, name: str | None) -> None:
        if name is not None and self.current_lesson.designs[name] != self.session.design:
            self.session.replace(self.current_lesson.designs[name], f"lesson: {self.step.title}")

    def _clear_answer(self) -> None:
        self.hints, self.verdict = 0, None

    def _save_progress(self, progress: LessonProgress) -> None:
        self.progress = progress
        with suppress(OSError):  # then the lesson starts from its first step after a reload
            save_progress(self.current_lesson.name, progress, self.folder)

    # ---- answers ----

    def show_hint(self) -> None:
        """Show one more hint."""
        self.hints = min(self.hints + 1, len(self.step.data.hints))
        self.on_change()

    def answer(self, given: str) -> None:
        """Check the answer to a question: a number as text, or the index of an option.

        Raises:
            InputError: the text is not a number, or the option does not exist.
        """
        check = self.step.data.check
        if isinstance(check, NumberQuestion):
            self._set_verdict(judge_number(self.current_lesson, check, read_number(given, check.unit)))
        elif isinstance(check, Choice):
            if not given.isdecimal() or int(given) >= len(check.options):
                raise Refusal("no_option_chosen")
            self._set_verdict(judge_choice(self.current_lesson, check, int(given)))
        self.on_change()

    def show_answer(self) -> None:
        """Show the answer of a question, or open the solution of a task as the design."""
        check = self.step.data.check
        self._save_progress(self.progress.with_passed(self.progress.step, shown=True))
        if isinstance(check, NumberQuestion):
            self.verdict = judge_number(self.current_lesson, check, right_answer(self.current_lesson, check))
        elif isinstance(check, Choice):
            self.verdict = judge_choice(self.current_lesson, check, int(right_answer(self.current_lesson, check)))
        self._open(check.solution if isinstance(check, Task) else self.step.data.reveal)
        self.update_verdict()

    def _set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict
        if verdict.passed and not self.is_done:
            self._save_progress(self.progress.with_passed(self.progress.step))
            self._open(self.step.data.reveal)

    def update_verdict(self) -> None:
        """Check a task against the open design, or a measurement against the overlaid run."""
        if self.lesson is None:
            return
        check = self.step.data.check
        if isinstance(check, Task):
            self._follow_design(self.lesson, check)
        elif isinstance(check, Measurement):
            self._follow_run(check)
        self.on_change()

    def _follow_design(self, lesson: Lesson, check: Task) -> None:
        if self.session.is_stale or self.session.prediction is None:
            self.verdict = Verdict(False, "The open design has a problem; see the Problems tab.")
        else:
            self._set_verdict(judge_task(lesson, check, self.session.prediction))

    def _follow_run(self, check: Measurement) -> None:
        measured = self.session.measured
        if measured is None or self.session.is_stale:
            return
        if measured.source == "measured" or check.dry_run:
            self._set_verdict(judge_measurement(check, self.session.prediction.timeline.makespan, measured.makespan))


def read_number(text: str, unit: str) -> float:
    """Read a number that a learner typed, with or without its unit.

    Raises:
        InputError: the text is not a number.
    """
    try:
        return float(text.strip().removesuffix(unit).strip().replace(",", "."))
    except ValueError:
        raise Refusal("answer_not_a_number", {"unit": unit}) from None
