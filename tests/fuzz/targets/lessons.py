"""Lessons: listed, walked through, and shown step by step next to a design."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from meshwave.designer.lessons.pane import LessonPane
from meshwave.designer.state.design_session import Session
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.lessons import lesson_folders
from meshwave.engine.lessons.reading import user_folder
from tests.fuzz.mutate import mutate_text
from tests.fuzz.oracle import ROOT, Act, Complaint, Ended, about_command, about_text
from tests.fuzz.target import Target

NAME = "fuzzed"


class Lessons(Target):
    """A lesson is refused with the place of the mistake, or the page shows all of its steps."""

    is_guided = True
    suffix = ".md"
    entrance = 2

    def seeds(self) -> Iterator[bytes]:
        yield (ROOT / "docs/examples/lessons/first-lesson/lesson.md").read_bytes()
        yield from (folder.joinpath("lesson.md").read_bytes() for folder in lesson_folders().values())

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        return mutate_text(chance, seeds)

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        folder = user_folder() / NAME
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath("lesson.md").write_bytes(path.read_bytes())
        ended: list[Ended] = []
        yield "lessons --check", lambda: about_command("lessons", "--check", NAME, ended=ended)
        yield "lessons --json", list_lessons
        if ended and ended[0].status == 0:
            yield "page", _on_the_page


def list_lessons() -> Iterator[Complaint]:
    """List only the fuzzed lesson, since all other lessons would be read again for each input."""
    with patch("meshwave.engine.cli.lessons.lesson_folders", lambda: {NAME: user_folder() / NAME}):
        yield from about_command("lessons", "--json")


def _on_the_page() -> Iterator[Complaint]:
    session = Session(load_design(example("02-two-waves")))
    pane = LessonPane(session)
    pane.open(NAME)
    if pane.refusal or pane.tutor.lesson is None:
        yield from about_text(pane.refusal)
        return
    for number in range(len(pane.tutor.lesson.steps)):
        pane.tutor.open_step(number)
        pane.tutor.show_answer()
    session.close()


TARGET = Lessons()
