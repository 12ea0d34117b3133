"""The widget for shared designs; the Python side of ``static/panels/together.js``."""

from __future__ import annotations

from typing import Any

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.library import is_id
from meshwave.designer.state.shared_design import LONGEST_NAME, Replaced
from meshwave.engine.document.differences import value_text
from meshwave.engine.findings import REMOVED, Refusal

LONGEST_VALUE = 80


@widget("panels/together.js", "kit/shell.css", "panels/topbar.css")
class Together(Canvas):
    """Widget with the people in a shared design, its links, and the user's values that others have changed."""

    people = param.List(default=[], doc="Name, colour and rights of each person who has the design open.")
    replaced = param.List(
        default=[], doc="Number and description of each value of the user that somebody else has changed."
    )
    links = param.Dict(default={}, doc="Keys of the links: edit and view; empty if the design is not shared.")
    member = param.String(default="", doc="ID of the person, by which a reloaded tab joins again.")
    revision = param.Integer(default=0, doc="Revision of the design, which the page confirms after drawing it.")
    read_only = param.Boolean(default=False, doc="True if the design cannot be edited on this page.")
    can_share = param.Boolean(default=False, doc="True if this page can share the design and stop sharing it.")
    can_rename = param.Boolean(default=False, doc="True if users choose their names themselves.")
    longest_name = param.Integer(default=LONGEST_NAME, constant=True, doc="Largest number of characters of a name.")

    def __init__(self, session: Session, tab: Draft | None = None, **params: Any) -> None:
        """Create the widget; without a ``tab`` the design cannot be shared."""
        super().__init__(**params)
        self._session, self._tab = session, tab
        watched = ["people", "replaced", "revision", "read_only", "document"]
        session.param.watch(lambda *_: self.refresh(), watched)
        self.refresh()

    def refresh(self) -> None:
        """Update the people and the links."""
        session, link = self._session, self._tab.link if self._tab else None
        self.param.update(
            people=[
                {"name": each.name, "colour": each.colour, "reads": each.read_only, "self": each.is_self}
                for each in session.people
            ],
            replaced=[{"number": each.number, "text": replaced_text(each)} for each in session.replaced],
            links={"edit": link.edit_key, "view": link.view_key} if link and not session.read_only else {},
            member=session.member.id if session.member else "",
            read_only=session.read_only,
            can_share=self._tab is not None and self._tab.is_own and not session.read_only,
            can_rename=self._can_rename,
        )
        self.revision = session.revision  # set last, so that the page confirms it after the other widgets are drawn

    @property
    def _can_rename(self) -> bool:
        return self._tab is not None and not self._tab.person

    # ---- gestures ----

    def _on_enter(self, member: str, name: str) -> None:
        """Join the design again as the same person after a reload of the tab."""
        if self._tab is not None and self._session.member is not None:
            if is_id(member):
                self._tab.join(member, name)
            if name and self._can_rename:
                self._session.member.rename(name)

    def _on_drawn(self, revision: int) -> None:
        if self._session.member is not None:
            self._session.member.shown_revision = revision

    def _on_share(self) -> None:
        self._own_tab().share()
        self.refresh()

    def _on_end_sharing(self) -> None:
        self._own_tab().end_sharing()
        self.refresh()

    def _own_tab(self) -> Draft:
        self._session.check_editable()
        if self._tab is None or not self._tab.is_own:
            raise Refusal("design_of_somebody_else")
        return self._tab

    def _on_rename(self, name: str) -> None:
        if self._can_rename and self._session.member is not None:  # browsers can change parameters of the widget
            self._session.member.rename(name)

    def _on_restore(self, number: int) -> None:
        self._session.restore(number)

    def _on_dismiss(self, number: int) -> None:
        if self._session.member is not None:
            self._session.member.accept_change(number)


def replaced_text(replaced: Replaced) -> str:
    """Return a sentence such as ``Ben changed pipeline.microbatches from 8 to 16``."""
    _, before, after = replaced.change
    if after is REMOVED:
        return f"{replaced.by} removed {replaced.change.where}"
    if before is REMOVED:
        return f"{replaced.by} added {replaced.change.where} again"
    texts = ["none" if value is None else value_text(value)[:LONGEST_VALUE] for value in (before, after)]
    if texts[0] == texts[1]:
        return f"{replaced.by} changed {replaced.change.where}"
    return f"{replaced.by} changed {replaced.change.where} from {texts[0]} to {texts[1]}"
