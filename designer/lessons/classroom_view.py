"""Data of a workshop for the pages of learners and the board of the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.lessons.classroom import Classroom
from meshwave.engine.lessons.reading import FILE, find_lesson, lesson_folders
from meshwave.engine.lessons.workshop import Challenge

LEADERS = 10
"""Largest number of leaderboard places that are shown."""


class Outline(NamedTuple):
    """The titles of a lesson and of its steps."""

    title: str
    steps: Sequence[str]


def lesson_outline(name: str) -> Outline:
    """Return the titles of a lesson; if the lesson cannot be read, its name and no steps."""
    folder = lesson_folders().get(name)
    try:
        return _read_outline(name, (folder / FILE).stat().st_mtime_ns) if folder else Outline(name, ())
    except (MeshwaveError, OSError):
        return Outline(name, ())


@cache
def _read_outline(name: str, changed_ns: int) -> Outline:
    """Read the titles once for each version of the file, since the pages of a whole class show them."""
    lesson = find_lesson(name)
    return Outline(lesson.about.title, [step.title for step in lesson.steps])


def step_title(lesson: str, step: int) -> str:
    """Return the titles of a lesson and one of its steps as one text; empty if the step does not exist."""
    outline = lesson_outline(lesson)
    return f"{outline.title}: {outline.steps[step]}" if step < len(outline.steps) else ""


def challenge_data(classroom: Classroom, challenge: Challenge, person: str = "") -> dict[str, Any]:
    """Return a challenge with its leaders and the place of a person, as plain data."""
    board = classroom.leaderboard(challenge.name)
    own = next((each for each in board if each["person"] == person), None)
    return {
        "name": challenge.name,
        "title": challenge.title,
        "text": challenge.text,
        "own": f"Place {own['rank']}: {own['text']}" if own else "",
        "can_confirm": own is not None and (not own["run"] or bool(own["result"])),
        "leaders": board[:LEADERS],
    }
