"""The teacher's board of a workshop: who has joined, at which step everybody is, and the leaderboards."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import param
import segno

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.lessons.classroom_view import challenge_data, lesson_outline, step_title
from meshwave.designer.state.sharing import Link
from meshwave.engine.lessons.classroom import Classroom, Learner
from meshwave.engine.lessons.progress import load_progress

LONGEST_MESSAGE = 300


@widget("lessons/board.js", "kit/shell.css")
class Board(Canvas):
    """Widget with the people, steps and scores of a workshop, and the teacher's announcement.

    ``copy_design(person, challenge)`` copies the design that a person submitted to a challenge into the teacher's
    library and returns its ID. ``share_design(person)`` shares the person's open design and returns its link.
    """

    state = param.String(default=PlainData({}), doc="State of the workshop as JSON.")

    def __init__(
        self,
        classroom: Classroom,
        origin: str,
        copy_design: Callable[[str, str], str],
        share_design: Callable[[str], Link],
        **params: Any,
    ) -> None:
        super().__init__(**params)
        self._classroom, self._copy_design, self._share_design = classroom, copy_design, share_design
        self._fixed = {
            "title": classroom.workshop.plan.title,
            "code": classroom.code,
            "link": f"{origin}/join",
            "picture": qr_code(f"{origin}/join?code={classroom.code}"),
            "lessons": [{"name": name, **lesson_outline(name)._asdict()} for name in classroom.workshop.lessons],
        }
        self.refresh()

    def refresh(self) -> None:
        """Update the board with the current state of the workshop."""
        classroom = self._classroom
        announcement = classroom.announcement
        self.state = PlainData(
            {
                **self._fixed,
                "now_s": time.time(),
                "people": [self._person_data(each) for each in classroom.people()],
                "most": classroom.workshop.plan.people,
                "challenges": [challenge_data(classroom, each) for each in classroom.workshop.plan.challenges],
                "announcement": announcement.model_dump(),
                "class_step": step_title(announcement.lesson, announcement.step),
            }
        )

    def _person_data(self, person: Learner) -> dict[str, Any]:
        lessons = load_progress(self._classroom.person_folder(person.id)).lessons
        return {
            "id": person.id,
            "name": person.name,
            "step": step_title(person.lesson, person.step),
            "since_s": person.since_s,
            "passed": sum(len(each.done) for each in lessons.values()),
            "shown": sum(len(each.shown) for each in lessons.values()),
            "has_design": bool(person.draft),
        }

    def _on_announce(self, message: str) -> None:
        self._classroom.announce(message=message[:LONGEST_MESSAGE])
        self.refresh()

    def _on_pause(self, paused: bool) -> None:
        self._classroom.announce(is_paused=paused)
        self.refresh()

    def _on_point(self, lesson: str, step: int) -> None:
        self._classroom.announce(lesson=lesson, step=max(step, 0))
        self.refresh()

    def _on_remove(self, person: str) -> None:
        self._classroom.remove(person)
        self.refresh()

    def _on_open(self, person: str, challenge: str) -> None:
        self._send_msg({"type": "open", "query": f"draft={self._copy_design(person, challenge)}"})

    def _on_join(self, person: str) -> None:
        """Open the design of a person for editing it together."""
        link = self._share_design(person)
        self._send_msg({"type": "open", "query": f"shared={link.edit_key}"})

    def _on_watch(self, person: str) -> None:
        """Open the design of a person read-only."""
        link = self._share_design(person)
        self._send_msg({"type": "open", "query": f"shared={link.view_key}"})


def qr_code(text: str) -> str:
    """Return a QR code as SVG, black on white in both themes."""
    out = io.BytesIO()
    segno.make(text, error="m").save(out, kind="svg", xmldecl=False, scale=4, border=2, light="white")
    return out.getvalue().decode("utf-8")
