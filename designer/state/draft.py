"""The design of the library that one tab edits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from meshwave.designer.state.comments import Comment, Comments
from meshwave.designer.state.design_card import design_card
from meshwave.designer.state.design_session import LONGEST_HISTORY, Session, Step
from meshwave.designer.state.edit_log import EditLog, LoggedStep
from meshwave.designer.state.jobs import Later, run_now
from meshwave.designer.state.library import is_id, new_id
from meshwave.designer.state.sharing import Link
from meshwave.designer.state.studio import IsShown, Studio
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal
from meshwave.engine.people.people_file import Role


class Draft:
    """The design of the library that one tab edits; the tab's link names it.

    Every edit is saved. A shared design is followed and edited together with others.
    """

    def __init__(
        self,
        studio: Studio,
        requested: str,
        is_shown: IsShown,
        later: Later | None = None,
        start: Design | None = None,
        on_move: Callable[[str], object] = lambda draft: None,
        key: str = "",
    ) -> None:
        """Open a design.

        Args:
            studio: the state that all tabs share.
            requested: ID of the design in the library; another one for a new design.
            is_shown: returns whether the tab is connected.
            later: schedules a callback in the page's event loop.
            start: the design of a tab that opens none of the library.
            on_move: called with :attr:`query` when the tab opens another document.
            key: the key of a link that opens a shared design, instead of ``requested``.

        Raises:
            InputError: there is no design with the key, or the file of the design cannot be read.
        """
        self._studio, self._is_shown, self._on_move = studio, is_shown, on_move
        self._requested = requested if is_id(requested) else ""
        self.name, self.library = self._requested or new_id(), studio.library
        self.later, self.member_id, self.key = later or run_now, new_id(), key
        if key:
            shared = studio.shared.open(studio.shared.find_link(key)[0])
            self.name, self.library = shared.name, shared.library
        design = self._read_design(start)
        past, future = self._read_history(design)
        read_only = not studio.user.role.includes(Role.DESIGNER)
        self.session = Session(
            design,
            later,
            studio.predictions,
            document=self.name,
            past=past,
            future=future,
            read_only=read_only,
        )
        self._saved, self._prediction, self._needs_card = design, self.session.prediction, True
        self.session.param.watch(lambda *_: self._follow_edit(), ["design", "document"])
        self.session.param.watch(lambda *_: self._follow_prediction(), "prediction")
        self.run = studio.tab_states.read_run(self.name)
        self.lesson = studio.tab_states.read_lesson(self.name)
        studio.drafts.add(self)
        self.join()

    def _read_design(self, start: Design | None) -> Design:
        """Return the design of the tab; a new design is ``start``."""
        if self.key:
            return self.library.read(self.name)
        if start is not None and not self.library.has(self.name):
            return start
        try:
            return self._studio.read_draft(self.name)
        except InputError as error:
            params = {"path": str(self.library.path(self.name, "design.json")), "reason": str(error)}
            raise Refusal("unreadable_design", params) from None

    @property
    def link(self) -> Link | None:
        """The link of the shared design; None if the design is not shared."""
        return self._studio.shared.link(self.library, self.name)

    def join(self, id: str = "", name: str = "") -> None:
        """Follow the design if it is shared, as the person with the given ID or as the current person."""
        link, session = self.link, self.session
        if link is None:
            return
        before = session.member
        if before is not None and id in ("", before.id):
            return
        session.leave()
        name = self._studio.user.name or name
        is_view = bool(self.key) and self._studio.shared.find_link(self.key)[1]
        member = self._studio.shared.open(link).join(
            id or self.member_id,
            name,
            lambda: self.later(session.follow),
            is_shown=self._is_shown,
            read_only=is_view or session.read_only,
        )
        self.member_id, self._saved = member.id, member.shared.design
        session.join(member)

    def _read_history(self, design: Design) -> tuple[list[Step], list[Step]]:
        """Return the undo history of a design, if its log leads to it."""
        log = self.library.log(self.name).replay()
        if log.present != design.model_dump(mode="json"):
            return [], []
        past, future = (
            [Step(partial(_design_of, each), each.label, each.opens, self.name) for each in steps[-LONGEST_HISTORY:]]
            for steps in (log.past, log.future)
        )
        return past, future

    def claim(self) -> str:
        """Reserve the design once the page is loaded, unless it is shared, and return its ID."""
        if self.session.member is not None:
            return self.name
        self.name = self._studio.claim_draft(self.name, self._is_shown)
        self.session.document = self.name
        if self._requested and self.name != self._requested:
            self.save()  # a duplicate tab starts with the design of the original
            self.save_shown_run(self.run)
            if self.lesson is not None:
                self.save_shown_lesson(self.lesson)
        return self.name

    @property
    def person(self) -> str:
        """Name of the user; empty if users choose their names on the page."""
        return self._studio.user.name

    @property
    def comments(self) -> Comments:
        """The comments on the design."""
        return Comments(self.library.path(self.name, "comments.json"))

    def readable_comments(self) -> list[Comment]:
        """Return the comments on the design; none if they cannot be read, which the Comments tab reports."""
        try:
            return self.comments.read()
        except Refusal:
            return []

    @property
    def author(self) -> str:
        """Name of the user as the author of comments."""
        member = self.session.member  # its name has a number if the person has the design open twice
        return self.person or (member.name if member is not None else "Owner")

    def change_comments(self, change: Callable[[Comments], None]) -> None:
        """Change the comments on the design, on the pages of all people.

        Raises:
            Refusal: the page is read-only, or ``change`` is refused.
        """
        self.session.check_editable()
        self.edit_log()  # saves the design
        change(self.comments)
        member = self.session.member
        if member is None:
            self.session.comments += 1
        else:
            member.shared.comments += 1
            member.shared.notify_all()

    @property
    def is_own(self) -> bool:
        """True if the design is in the user's own library."""
        return not self.key

    @property
    def query(self) -> str:
        """Query of the tab's link that opens the design again."""
        return f"shared={self.key}" if self.key else f"draft={self.name}"

    def share(self) -> None:
        """Share the design, so that others can open it.

        Raises:
            Refusal: the list of shared designs cannot be saved.
        """
        self._studio.share(self.library, self.name)

    def end_sharing(self) -> None:
        """Stop sharing the design: its links become invalid, and all other tabs show it read-only.

        Raises:
            Refusal: the list of shared designs cannot be saved.
        """
        link, member = self.link, self.session.member
        if link is None or member is None:
            return
        self._studio.shared.end_link(link)
        others = [each for each in self._studio.drafts if each.session.member in member.shared.members.values()]
        self.session.leave()
        self.session.set_history(*self._read_history(self.session.design))
        self.name = self._studio.claim_draft(self.name, self._is_shown)
        for draft in others:
            if draft is not self:
                draft.later(draft.session.end_following)

    def save_shown_run(self, run: str) -> None:
        """Save the ID of the run that the tab shows."""
        self.run = run
        self._studio.tab_states.save_run(self.name, run)

    def save_shown_lesson(self, lesson: tuple[str, Design] | None) -> None:
        """Save the lesson that the tab shows and the design that was open before it; None if the tab shows no lesson."""
        self.lesson = lesson
        if lesson is None:
            self._studio.tab_states.end_lesson(self.name, self.session.design)
        else:
            self._studio.tab_states.save_lesson(self.name, *lesson)

    def release(self) -> None:
        """Cancel the reservation of the design."""
        self.save_card()
        self._studio.drafts.discard(self)
        self._studio.release_draft(self.name, self._is_shown)

    def _follow_edit(self) -> None:
        session = self.session
        if session.document != self.name:
            self._move_to(session.document)
        elif session.member is not None:
            self._studio.counts["edits"] += session.move == "edit"
            self._needs_card = True
        elif session.design is not self._saved:
            self._studio.counts["edits"] += 1
            self.save()
            self._log_edit()
        self._saved = session.design

    def _move_to(self, document: str) -> None:
        """Edit another document; the current one stays in the library."""
        session = self.session
        self.save_card()
        session.leave()
        self._studio.release_draft(self.name, self._is_shown)
        self.library, self.key = self._studio.library, ""
        self.name = self._studio.claim_draft(document, self._is_shown)
        self._saved, session.document = session.design, self.name
        if session.move == "edit":  # otherwise the design was open before
            self.save()
        self._on_move(self.query)

    def _log_edit(self) -> None:
        log, session = self.edit_log(), self.session
        with suppress(InputError):  # the edit itself is saved, or reports why it is not
            step = session.last_step
            if session.move == "edit" and step is not None:
                log.add_edit(self._saved, session.design, step.label, opens=step.opens)
            else:
                log.add_move(self._saved, session.design, session.move)

    def edit_log(self) -> EditLog:
        """Return the log of the edits and versions of the design, which is saved first."""
        if not self.library.has(self.name):
            self.save()
        return self.library.log(self.name)

    def save(self) -> None:
        """Write the design; if that fails, accept the edit and notify the user."""
        try:
            self.session.notice = self.library.save_edit(self.name, self._saved, self.session.design)
            self._needs_card = True
        except InputError as error:
            self.session.notice = f"The latest edits are not saved; reloading the page would discard them: {error}"

    def _follow_prediction(self) -> None:
        self._prediction, self._needs_card = self.session.prediction, True

    def save_card(self) -> None:
        """Write the card of the design, if it has changed."""
        if self._needs_card and self.library.has(self.name):
            self._needs_card = False
            design, prediction = self._saved, self._prediction
            is_current = prediction is not None and prediction.design is design
            self.library.write_card(self.name, design_card(design, prediction if is_current else None))


def _design_of(step: LoggedStep) -> Design:
    return step.design
