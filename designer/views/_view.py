"""What a view of the page is, and the folder of views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

from panel.viewable import Viewable

from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.engine.registry import Registry

Place = Literal["side", "bottom"]


class Page(Protocol):
    """The page that shows a view, and what a view can ask of it."""

    session: Session
    studio: Studio
    first_run: str
    on_show_run: Callable[[str], Any]

    def view(self, name: str) -> View:
        """Another view of the page."""

    def turn_to(self, name: str) -> None:
        """Bring a view to the front."""

    def focus(self, path: str) -> None:
        """Bring the field of a place in the document to the front."""

    def open_profiles(self) -> None:
        """Show what was measured."""


class View(ABC):
    """A tab of the page. A member is one file in this folder.

    Its pane is any Panel object. It reads the open design and its prediction from ``page.session``, whose parameters it
    can watch, and changes the design with ``page.session.edit``.
    """

    title: ClassVar[str]
    place: ClassVar[Place] = "side"  # in the panel at the side, or beside the timeline at the bottom
    key: ClassVar[str] = ""  # a letter that brings it to the front; empty for none
    order: ClassVar[int] = 100  # among the tabs of its place, ascending

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pane = self.make()

    @abstractmethod
    def make(self) -> Viewable:
        """Build the pane; called once for each tab of the browser."""

    def end(self) -> None:  # noqa: B027  most keep nothing alive
        """The tab of the browser is gone: end what goes on for it."""


views: Registry[type[View]] = Registry("view", "meshwave.designer.views")

FILL: dict[str, Any] = {"sizing_mode": "stretch_both"}
"""Of a widget that takes all of its place."""
