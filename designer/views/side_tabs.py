"""The tabs of the side panel: which of its pages is at the front, and what can be told of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import panel as pn
import param
from panel.viewable import Viewable

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, value_of


class Tabs(Canvas):
    """A row of titles, one of them chosen by pointer or arrows."""

    titles = param.List(default=[], item_type=str)
    badges = param.Dict(default={}, doc="What a title carries, by its place: the text and how bad it is.")
    active = param.Integer(default=0, doc="The place of the title whose page is at the front.")

    _esm = module("panels/side.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("panels/side.css")]
    _gestures = ("turn",)

    def _on_turn(self, gesture: Mapping[str, Any]) -> None:
        self.active = min(max(value_of(gesture, "to", int), 0), len(self.titles) - 1)


class Side(pn.Column):
    """Pages under a row of tabs, one of them shown; the others stay as they are, out of sight and reach."""

    def __init__(self, **pages: Viewable) -> None:
        """``pages`` by their titles."""
        self.tabs = Tabs(titles=list(pages), sizing_mode="stretch_both")
        self._pages = tuple(pages.values())
        super().__init__(self.tabs, *self._pages, sizing_mode="stretch_both", styles=GRID)
        self.tabs.styles = {"grid-area": "tabs"}
        self.tabs.param.watch(lambda *_: self._show(), "active")
        self._show()

    def turn_to(self, place: int) -> None:
        self.tabs.active = place

    def mark(self, place: int, badge: str, severity: str) -> None:
        """Write ``badge`` beside a title; "" takes it away."""
        others = {key: value for key, value in self.tabs.badges.items() if key != str(place)}
        self.tabs.badges = {**others, str(place): [badge, severity]} if badge else others

    def _show(self) -> None:
        for place, page in enumerate(self._pages):
            shown = "visible" if place == self.tabs.active else "hidden"  # hidden ones keep their size and scroll
            page.styles = {**page.styles, "grid-area": "page", "min-width": "0", "min-height": "0", "visibility": shown}


GRID = {
    "display": "grid",
    "grid-template-columns": "minmax(0, 1fr)",
    "grid-template-rows": "34px minmax(0, 1fr)",
    "grid-template-areas": '"tabs" "page"',
}
