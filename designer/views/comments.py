"""The Comments tab: comments on the design, its meshes, blocks and runs; see ``static/panels/comments.js``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import param
from pydantic import ValidationError

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.state.comments import LONGEST_COMMENT, Comment, Target
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.views._view import FILL, View, views
from meshwave.engine.document import Design
from meshwave.engine.findings import Refusal
from meshwave.engine.units import duration, format_time


@widget("panels/comments.js", "kit/shell.css")
class CommentList(Canvas):
    """The comments on the open design, and a form for a new one."""

    comments = param.String(default=PlainData([]), doc="Comments as plain data, unresolved comments first.")
    targets = param.List(default=[], doc="Possible targets of a new comment: data and title of each.")
    can_write = param.Boolean(default=False, doc="True if comments can be added and changed on this page.")
    notice = param.String(default="", doc="Reason why the comments cannot be read; empty if they can.")
    longest = param.Integer(default=LONGEST_COMMENT, constant=True, doc="Largest number of characters of a comment.")

    def __init__(
        self,
        session: Session,
        tab: Draft | None,
        list_targets: Callable[[], list[Target]],
        **params: Any,
    ) -> None:
        """Create the list; ``list_targets`` returns the possible targets of a new comment."""
        super().__init__(**params)
        self._session, self._tab, self._list_targets = session, tab, list_targets
        session.param.watch(lambda *_: self.refresh(), ["comments", "design", "document", "read_only", "people"])
        self.refresh()

    def refresh(self) -> None:
        """Update the comments and the possible targets."""
        design, tab, notice = self._session.design, self._tab, ""
        found: list[Comment] = []
        try:
            found = tab.comments.read() if tab is not None else []
        except Refusal as refusal:
            notice = str(refusal)
        found.sort(key=lambda comment: comment.is_resolved)
        self.param.update(
            comments=PlainData([comment_entry(each, design, can_delete=self._may_delete(each)) for each in found]),
            targets=[{**each.model_dump(), "title": target_title(each, design)} for each in self._list_targets()],
            can_write=tab is not None and not self._session.read_only,
            notice=notice,
        )

    def _may_delete(self, comment: Comment) -> bool:
        return self._tab is not None and (self._tab.is_own or comment.author == self._tab.author)

    # ---- gestures ----

    def _on_refresh(self) -> None:
        """Update the possible targets before the user writes a comment."""
        self.refresh()

    def _on_add(self, text: str, target: Annotated[Target, _read_target]) -> None:
        tab = self._writable_tab()
        tab.change_comments(lambda comments: comments.add(target, text, tab.author))

    def _on_resolve(self, comment: str, on: bool = False) -> None:
        self._writable_tab().change_comments(lambda comments: comments.resolve(comment, on))

    def _on_delete(self, comment: str) -> None:
        tab = self._writable_tab()
        found = tab.comments.find(comment)
        if not self._may_delete(found):
            raise Refusal("foreign_comment", {"author": found.author})
        tab.change_comments(lambda comments: comments.delete(found.id))

    def _writable_tab(self) -> Draft:
        self._session.check_editable()
        if self._tab is None:
            raise Refusal("no_versions_on_page")
        return self._tab


def comment_entry(comment: Comment, design: Design, *, can_delete: bool) -> dict[str, Any]:
    """Return a comment as plain data."""
    return {
        "id": comment.id,
        "about": target_title(comment.target, design),
        "text": comment.text,
        "author": comment.author,
        "when": format_time(comment.written_s),
        "resolved": comment.is_resolved,
        "can_delete": can_delete,
    }


def target_title(target: Target, design: Design) -> str:
    """Return a title such as ``Block 2F0 on mesh B``; deleted meshes are marked."""
    names = [mesh.name for mesh in design.meshes]
    if target.kind == "mesh":
        return f"Mesh {target.name}" + ("" if target.name in names else " (removed)")
    if target.kind == "block":
        return f"Block {target.name}" + (f" on mesh {names[target.rank]}" if 0 <= target.rank < len(names) else "")
    if target.kind == "time":
        return f"Time {duration(target.start, target.unit)}"
    if target.kind == "area":
        return f"Area from {duration(target.start, target.unit)} to {duration(target.end, target.unit)}"
    return f"Run {target.name}" if target.kind == "run" else "Design"


def _read_target(value: Any) -> Target:
    try:
        return Target.model_validate({key: value[key] for key in ("kind", "name", "rank")})
    except ValidationError:
        raise ValueError from None


@views.register("comments")
class CommentsView(View):
    """Comments on the design, its meshes, blocks and runs."""

    title: ClassVar = "Comments"
    order: ClassVar = 4

    def make_pane(self) -> CommentList:
        """Build the list of comments."""
        return CommentList(self.page.session, self.page.tab, self.page.comment_targets, **FILL)
