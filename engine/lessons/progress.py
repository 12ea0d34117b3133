"""Progress of a user through the lessons, stored in a file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from meshwave.engine.files import data_folder, write_private
from meshwave.engine.frozen import Part

LARGEST_BYTES = 1_000_000


class LessonProgress(Part):
    """Progress through one lesson; steps are numbered from 0."""

    step: Annotated[int, Field(ge=0)] = 0
    """Number of the open step."""
    done: tuple[int, ...] = ()
    """Steps whose check was passed."""
    shown: tuple[int, ...] = ()
    """Steps whose answer was shown before the learner gave it."""

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
    """Lessons that are offered to a learner, and the folder of the progress."""

    lessons: Sequence[str] = ()
    """Names of the lessons in order; all lessons if empty."""
    folder: Path | None = None
    """Folder of the progress; None for the user's own folder."""


def load_progress(folder: Path | None = None) -> Progress:
    """Read the progress from a folder, by default the user's own; if the file cannot be read, the progress is empty."""
    try:
        return _read(_path(folder))
    except (OSError, ValueError):
        return Progress()


def _path(folder: Path | None) -> Path:
    return (folder or data_folder()) / "progress.json"


def _read(path: Path) -> Progress:
    """Read a file of the progress.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is too large, damaged, or from a newer version.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise ValueError("too large")
    return Progress.model_validate_json(content)


def save_progress(name: str, progress: LessonProgress, folder: Path | None = None) -> None:
    """Store the progress through one lesson in a folder, by default the user's own.

    A file that cannot be read, such as one of a newer version, is kept as ``progress.json.unreadable``.

    Raises:
        OSError: the progress cannot be written.
    """
    path = _path(folder)
    try:
        known = _read(path)
    except FileNotFoundError:
        known = Progress()
    except (OSError, ValueError):
        _set_aside(path)
        known = Progress()
    changed = known.model_copy(update={"lessons": {**known.lessons, name: progress}})
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, changed.model_dump_json(indent=1))


def _set_aside(path: Path) -> None:
    """Rename a file that cannot be read; files that were renamed earlier are kept."""
    names = chain([".unreadable"], (f".unreadable-{number}" for number in count(2)))
    path.rename(next(free for each in names if not (free := path.with_name(path.name + each)).exists()))
