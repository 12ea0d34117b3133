"""State shared by all tabs of one designer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.edit_log import EditLog
from meshwave.designer.state.jobs import Later
from meshwave.designer.state.launches import Launches, PersonLaunches
from meshwave.designer.state.library import Library, is_id, new_id
from meshwave.designer.state.predictions import Predictions
from meshwave.designer.state.saved_designs import SavedDesigns
from meshwave.designer.state.sharing import Link, SharedDesigns
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.files import data_folder, write_private
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.lessons.progress import Course
from meshwave.engine.people.limits import Limits
from meshwave.engine.people.people_file import OWNER, User
from meshwave.engine.runs import Record


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
        if self._library.read_or(found[1], self._first) == current:
            self._library.delete(found[1])
        with suppress(OSError):
            self._library.path(design, "lesson").unlink(missing_ok=True)

    def _write(self, design: str, file: str, text: str) -> None:
        path = self._library.path(design, file)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, text)


FIRST_CHECK_WAIT_S = 2.0
"""Longest wait, when a server starts, for the check of active runs, for which a cluster may have to respond."""

IsShown = Callable[[], bool]


class OpenDraft(Protocol):
    """Interface of a design of the library that a tab edits; see :class:`meshwave.designer.state.draft.Draft`."""

    name: str
    later: Later
    session: Session
    library: Library
    member_id: str

    def edit_log(self) -> EditLog:
        """Return the log of the edits and versions of the design, which is saved first."""

    def save_card(self) -> None:
        """Write the card of the design, if it has changed."""

    def join(self) -> None:
        """Follow the design if it is shared."""


class Studio:
    """State shared by all tabs of one designer: launchers, the run database, the library, predictions."""

    def __init__(self, first: Design, *, starts_with_library: bool = False, folder: Path | None = None) -> None:
        """Open the library and the run database.

        Args:
            first: the design of new tabs.
            starts_with_library: whether a new tab shows the start page instead of ``first``.
            folder: the folder of both, by default the user's own.

        Raises:
            RunRefusal: the folder of designs and runs cannot be used.
        """
        self._first, self.starts_with_library = first, starts_with_library
        self.user, self.course = OWNER, Course()
        self._open: dict[str, IsShown] = {}
        self.drafts: WeakSet[OpenDraft] = WeakSet()
        self.counts: Counter[str] = Counter()
        """Number of ``edits`` in all tabs since the start."""
        designs = (folder or data_folder()) / "designs"
        try:
            self.library = Library(designs)
        except OSError as error:
            raise RunRefusal("unwritable_library", {"folder": str(designs), "reason": error.strerror}) from None
        self.shared = SharedDesigns(designs.parent, self._check_space)
        self.saved_designs: SavedDesigns | None = None
        """The libraries of all people, where several people use this server."""
        self.record = Record(folder)
        self.launches = Launches(self.record)
        self.launches.open("local").warm()
        self.launches.check_runs(FIRST_CHECK_WAIT_S)
        self.calibration = BackgroundCalibration()
        self.predictions = Predictions()

    def person_studio(self, user: User, course: Course, limits: Callable[[], Limits]) -> Studio:
        """Return the studio of a person, which has its own library and course and shares the runs.

        Raises:
            OSError: the person's folder cannot be used.
        """
        assert course.folder is not None
        studio = copy(self)
        studio.user, studio.course = user, course
        studio.library = Library(course.folder / "designs", self._check_space)
        studio.launches = PersonLaunches(self.launches, user, limits)
        studio._open = {}
        return studio

    def _check_space(self, library: Path, is_new: bool) -> None:
        if self.saved_designs is not None:
            self.saved_designs.check(library, is_new)

    def read_draft(self, draft: str) -> Design:
        """Return a design of the library, or the first design of new tabs if the library does not have it."""
        return self.library.read_or(draft, self._first)

    @property
    def tab_states(self) -> TabStates:
        """The runs and lessons that tabs show."""
        return TabStates(self.library, self._first)

    def claim_draft(self, draft: str, is_shown: IsShown) -> str:
        """Reserve ``draft`` for a tab and return it, or return a new ID if another visible tab has reserved it.

        A duplicated tab has the same link as the original. A reloaded tab has it too, but its previous page is no
        longer visible.
        """
        if self._open.get(draft) is not is_shown and self.is_open(draft):
            draft = new_id()
        self._open[draft] = is_shown
        return draft

    def is_open(self, draft: str) -> bool:
        """Return whether a visible tab has reserved a design."""
        other = self._open.get(draft)
        return (other is not None and other()) or self.shared.is_open(self.library, draft)

    def release_draft(self, draft: str, is_shown: IsShown) -> None:
        """Cancel the reservation of a closed tab."""
        if self._open.get(draft) is is_shown:
            del self._open[draft]

    def save_cards(self) -> None:
        """Write the cards of the designs that tabs have edited."""
        for draft in list(self.drafts):
            draft.save_card()

    def share(self, library: Library, design: str) -> Link:
        """Share a design, let the tab that has it open follow it, and return its link.

        Raises:
            Refusal: the list of shared designs cannot be saved.
        """
        drafts = [each for each in self.drafts if each.library.folder == library.folder and each.name == design]
        for draft in drafts:
            draft.edit_log()  # saves it
        if not library.has(design):
            raise Refusal("unknown_shared_design")
        link = self.shared.share(library, design, drafts[0].member_id if drafts else "")
        for draft in drafts:
            draft.later(draft.join)
        return link

    def close(self) -> None:
        """Write the cards, and stop a calibration, the launchers and the run database."""
        self.save_cards()
        self.calibration.close()
        self.launches.close()
        self.record.close()
