"""The run and the lesson that the tab of each design shows, stored next to the design in the user's library."""

from __future__ import annotations

from contextlib import suppress

from meshwave.designer.state.library import Library, is_id, new_id
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.files import write_private


class TabStates:
    """The runs and lessons that tabs show after a reload."""

    def __init__(self, library: Library, first: Design) -> None:
        """Open the states in a library; ``first`` is the design of new tabs, of which no copy is stored."""
        self._library, self._first = library, first

    def read_run(self, design: str) -> str:
        """Return the ID of the run that a tab shows; empty for none."""
        try:
            return self._library.path(design, "run").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def save_run(self, design: str, run: str) -> None:
        """Save the ID of the run that a tab shows."""
        with suppress(OSError):  # without the file, a reloaded tab shows no run; the list of runs still contains it
            self._write(design, "run", run)

    def read_lesson(self, design: str) -> tuple[str, Design] | None:
        """Return the lesson that a tab shows, if any, and the design that was open before the lesson."""
        found = self._read_lesson(design)
        return (found[0], self._library.read_or(found[1], self._first)) if found is not None else None

    def _read_lesson(self, design: str) -> tuple[str, str] | None:
        """Return the lesson, and the ID of the design from before it."""
        try:
            lesson, before = self._library.path(design, "lesson").read_text("utf-8").split()
        except (OSError, ValueError):
            return None
        return (lesson, before) if is_id(before) else None

    def save_lesson(self, design: str, lesson: str, before: Design) -> None:
        """Save the name of the lesson that a tab shows, and the design that was open before it."""
        with suppress(OSError, InputError):  # without the file, a reloaded tab shows no lesson
            copy = new_id() if before == self._first else self._library.add(before)
            self._write(design, "lesson", f"{lesson} {copy}")

    def end_lesson(self, design: str, current: Design) -> None:
        """Save that a tab shows no lesson.

        The design from before the lesson stays in the library unless it is the ``current`` one.
        """
        found = self._read_lesson(design)
        if found is None:
            return
        with suppress(MeshwaveError):  # a design that cannot be read stays
            if self._library.read(found[1]) == current:
                self._library.delete(found[1])
        with suppress(OSError):
            self._library.path(design, "lesson").unlink(missing_ok=True)

    def _write(self, design: str, file: str, text: str) -> None:
        path = self._library.path(design, file)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, text)
