"""The lesson pane: the list of lessons, and the open step of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.lessons.text import strip_marks, to_html
from meshwave.designer.lessons.tutor import OpenLesson, Tutor
from meshwave.designer.state.design_session import Session
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.lessons import Choice, Lesson, NumberQuestion, Verdict, fill_numbers, find_lesson, lesson_folders
from meshwave.engine.lessons.progress import Course, LessonProgress, load_progress

ASKING = ("number", "choice")
LEVELS = {"beginner": "Beginner", "intermediate": "Intermediate", "advanced": "Advanced"}


@widget("lessons/lessons.js", "kit/shell.css")
class LessonPane(Canvas):
    """Widget next to the canvases with the lessons of a course and their steps.

    ``on_open`` is called with the lesson that the tab shows, or None. ``on_highlight`` shows the view that contains a
    control.
    """

    lessons = param.List(default=[], doc="Entries of the list of lessons.")
    step: Any = param.Dict(default=None, doc="The open step of a lesson; None while the list is shown.")
    highlight = param.String(
        default="", doc="Control to highlight: a path of the document or a label; empty if there is none."
    )
    refusal = param.String(default="", doc="Reason why the lesson cannot be opened; empty if it can.")

    def __init__(
        self,
        session: Session,
        on_open: Callable[[OpenLesson | None], Any] = lambda lesson: None,
        on_highlight: Callable[[str], Any] = lambda control: None,
        course: Course | None = None,
        **params: Any,
    ) -> None:
        super().__init__(visible=False, **params)
        self._on_highlight, self._course = on_highlight, course or Course()
        self.tutor = Tutor(session, self._update_pane, on_open, self._course.folder)
        session.param.watch(lambda *_: self.tutor.update_verdict(), ["prediction", "problems", "measured"])

    def open(self, lesson: str = "") -> None:
        """Show the pane with a lesson, or with the list of lessons."""
        self._enter(lambda: self.tutor.start(lesson) if lesson else self._show_list())

    def resume(self, opened: OpenLesson) -> None:
        """Show the pane with the lesson that a reloaded page had open."""
        self._enter(lambda: self.tutor.resume(opened))

    def close(self) -> None:
        """Leave the lesson, if one is open, with its design, and hide the pane."""
        if self.tutor.lesson is not None:
            self.tutor.leave(restore=False)
        self.visible = False

    def _enter(self, enter: Callable[[], object]) -> None:
        self.refusal = ""
        try:
            enter()
        except MeshwaveError as error:
            self._show_list()
            self.refusal = str(error)
        self.visible = True

    def _show_list(self) -> None:
        if self.tutor.lesson is not None:
            self.tutor.leave()
        self.param.update(lessons=list(lesson_entries(self._course)), step=None, highlight="")

    def _update_pane(self) -> None:
        tutor = self.tutor
        if tutor.lesson is None:
            self.param.update(step=None, highlight="")
            return
        highlight = tutor.step.data.highlight or ""
        if highlight != self.highlight:
            self._on_highlight(highlight)
        self.param.update(step=step_data(tutor), highlight=highlight)

    @property
    def hides_numbers(self) -> bool:
        """True while an open question asks for a number that the page shows."""
        if not self.visible or self.step is None or self.step["is_done"]:
            return False
        return self.step["check"]["kind"] in ASKING

    # ---- gestures ----

    def _on_start(self, name: str) -> None:
        self.open(name)

    def _on_list(self) -> None:
        self.open()

    def _on_leave(self) -> None:
        if self.tutor.lesson is not None:
            self.tutor.leave()
        self.visible = False

    def _on_keep(self) -> None:
        self.close()

    def _on_finish(self) -> None:
        self.tutor.finish()
        self._show_list()

    def _on_go(self, step: int) -> None:
        self.tutor.open_step(step)

    def _on_answer(self, given: str) -> None:
        self.tutor.answer(given)

    def _on_hint(self) -> None:
        self.tutor.show_hint()

    def _on_show_answer(self) -> None:
        self.tutor.show_answer()


# ---- plain data for the page ----


def lesson_entries(course: Course) -> Iterator[dict[str, Any]]:
    """Yield the entries of the list of lessons, with the learner's progress."""
    progress, folders = load_progress(course.folder).lessons, lesson_folders()
    for name in course.lessons or folders:
        yield lesson_entry(name, folders[name], progress.get(name))


def lesson_entry(name: str, folder: Path, progress: LessonProgress | None) -> dict[str, Any]:
    """Return an entry of the list of lessons; if the lesson cannot be read, with the reason."""
    try:
        about = dict(_lesson_summary(name, folder, (folder / "lesson.md").stat().st_mtime_ns))
    except (MeshwaveError, OSError) as error:
        return {"name": name, "title": name, "note": "", "summary": str(error), "state": "unreadable"}
    state = ""
    if progress is not None:
        settled = len({*progress.done, *progress.shown})
        state = f"{settled} of {about['checks']} done" if settled else "started"
    return {"name": name, **about, "state": state}


@cache
def _lesson_summary(name: str, folder: Path, changed_ns: int) -> Mapping[str, Any]:
    """Return the list entry of a lesson without the learner's progress, cached until the lesson's file changes."""
    lesson = find_lesson(name)
    note = f"{lesson.about.minutes} min · {LEVELS[lesson.about.level]}"
    checks = sum(step.data.check is not None for step in lesson.steps)
    return {"title": lesson.about.title, "note": note, "summary": lesson.about.summary, "checks": checks}


def step_data(tutor: Tutor) -> dict[str, Any]:
    """Return the open step as the page shows it."""
    lesson, step = tutor.lesson, tutor.step
    assert lesson is not None
    number = tutor.progress.step
    return {
        "lesson": lesson.about.title,
        "number": number,
        "count": len(lesson.steps),
        "title": step.title,
        "text": to_html(lesson, step.text),
        "check": check_data(tutor, lesson) if step.data.check is not None else None,
        "hints": [to_html(lesson, hint, inline=True) for hint in step.data.hints[: tutor.hints]],
        "hint_count": len(step.data.hints),
        "verdict": verdict_data(tutor.verdict) if tutor.verdict is not None else None,
        "is_done": tutor.is_done,
        "explanation": to_html(lesson, step.explanation) if tutor.is_done else "",
        "sources": list(lesson.about.sources) if number == len(lesson.steps) - 1 else [],
    }


def check_data(tutor: Tutor, lesson: Lesson) -> dict[str, Any]:
    """Return a question as plain data for the page, without its answer."""
    check = tutor.step.data.check
    assert check is not None
    return {
        "kind": check.kind,
        "text": to_html(lesson, check.ask, inline=True),
        "label": strip_marks(fill_numbers(lesson, check.ask)),
        "unit": check.unit if isinstance(check, NumberQuestion) else "",
        "options": [to_html(lesson, each.text, inline=True) for each in check.options]
        if isinstance(check, Choice)
        else [],
    }


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict on an answer or on the open design as plain data for the page."""
    conditions = [{"text": each.text, "value": each.value, "is_met": each.is_met} for each in verdict.conditions]
    return {"passed": verdict.passed, "reply": verdict.reply, "conditions": conditions}
