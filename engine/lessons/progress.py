"""Progress of a user through the lessons, kept in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from meshwave.engine.files import home, write_private
from meshwave.engine.frozen import Part

LARGEST_BYTES = 1_000_000


class LessonProgress(Part):
    """Progress through one lesson; steps are counted from 0."""

    step: Annotated[int, Field(ge=0)] = 0
    """The step that is open."""
    done: tuple[int, ...] = ()
    """Steps whose check was passed."""
    shown: tuple[int, ...] = ()
    """Steps whose answer was shown before it was given."""

    def with_step(self, number: int) -> LessonProgress:
        """Return the progress with another open step."""
        return self.model_copy(update={"step": number})

    def with_passed(self, number: int, *, shown: bool = False) -> LessonProgress:
        """Return the progress with a step passed, or with its answer shown."""
        if number in (*self.done, *self.shown):
            return self
        key = "shown" if shown else "done"
        return self.model_copy(update={key: (*getattr(self, key), number)})


class Progress(Part):
    """Progress through all lessons by name."""

    format: Literal["meshwave-progress/1"] = "meshwave-progress/1"
    lessons: dict[str, LessonProgress] = {}


class Course(NamedTuple):
    """The lessons that a learner is offered, and where the progress is kept."""

    lessons: Sequence[str] = ()
    """Names of the lessons in their order; all of them where the list is empty."""
    folder: Path | None = None
    """Folder of the progress; None for the user's own."""


def load_progress(folder: Path | None = None) -> Progress:
    """Read the progress from a folder, by default the user's own; a file that cannot be read counts as none."""
    try:
        path = (folder or home()) / "progress.json"
        text = path.read_text("utf-8") if path.stat().st_size <= LARGEST_BYTES else "{}"
        return Progress.model_validate_json(text)
    except (OSError, UnicodeDecodeError, ValidationError):
        return Progress()


def save_progress(name: str, progress: LessonProgress, folder: Path | None = None) -> None:
    """Keep the progress through one lesson in a folder, by default the user's own.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder or home()
    known = load_progress(folder)
    changed = known.model_copy(update={"lessons": {**known.lessons, name: progress}})
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(folder / "progress.json", changed.model_dump_json(indent=1))
