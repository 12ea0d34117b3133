"""Base class of the views of the page, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

from panel.viewable import Viewable

from meshwave.designer.state.comments import Target
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.studio import Studio
from meshwave.engine.registry import Registry

Place = Literal["side", "bottom"]


class Page(Protocol):
    """Interface of the page for its views."""

    session: Session
    studio: Studio
    first_run: str
    on_show_run: Callable[[str], Any]
    tab: Draft | None
    """The design in the library; None if it is in none."""

    def comment_targets(self) -> list[Target]:
        """Return the possible targets of a comment."""

    def view(self, name: str) -> View:
        """Return another view of the page."""

    def show_view(self, name: str) -> None:
        """Show a view."""

    def focus(self, path: str) -> None:
        """Show the field of a path in the document."""

    def open_profiles(self) -> None:
        """Open the calibration profiles."""

    def watch_theme(self, draw: Callable[[str], Any]) -> None:
        """Call ``draw`` with the theme of the page, light or dark, now and when it changes."""


class View(ABC):
    """A tab of the page; each member is one file in this folder.

    Its pane is any Panel object. It reads the open design and its prediction from ``page.session``, whose parameters
    it can watch, and changes the design with ``page.session.edit``.
    """

    title: ClassVar[str]
    place: ClassVar[Place] = "side"  # "side" for the side panel, "bottom" for the tabs with the timeline
    key: ClassVar[str] = ""  # a letter that shows the view; empty for none
    order: ClassVar[int] = 100  # position among the tabs of its place

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pane = self.make_pane()

    @abstractmethod
    def make_pane(self) -> Viewable:
        """Build the pane; called once per tab of the browser."""

    def stop_jobs(self) -> None:  # noqa: B027  most views have nothing to stop
        """Stop all background work of the view after the tab is closed."""


views: Registry[type[View]] = Registry("view", "meshwave.designer.views")

FILL: dict[str, Any] = {"sizing_mode": "stretch_both"}
"""Panel options of a widget that fills its place."""
