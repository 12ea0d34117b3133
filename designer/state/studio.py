"""State shared by all tabs of one designer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.edit_log import EditLog
from meshwave.designer.state.jobs import Later
from meshwave.designer.state.launches import Launches, PersonLaunches
from meshwave.designer.state.library import Library, new_id
from meshwave.designer.state.predictions import Predictions
from meshwave.designer.state.saved_designs import SavedDesigns
from meshwave.designer.state.sharing import Link, SharedDesigns
from meshwave.designer.state.tab_states import TabStates
from meshwave.engine.document import Design
from meshwave.engine.files import data_folder
from meshwave.engine.findings import Refusal, RunRefusal
from meshwave.engine.lessons.progress import Course
from meshwave.engine.people.limits import Limits
from meshwave.engine.people.people_file import OWNER, User
from meshwave.engine.runs import Record

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
        """Return a design of the library, or the first design of new tabs if the library does not have it.

        Raises:
            InputError: the file of the design cannot be read.
        """
        return self.library.read(draft) if self.library.has(draft) else self._first

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
