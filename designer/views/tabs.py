"""Views under a row of tabs: which of them is at the front, and what can be told of the others."""

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

    label = param.String(default="", doc="What the row is called for those who listen.")
    titles = param.List(default=[], item_type=str)
    badges = param.Dict(default={}, doc="What a title carries, by its place: the text and how bad it is.")
    active = param.Integer(default=0, doc="The place of the title whose page is at the front.")

    _esm = module("panels/side.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("panels/side.css")]
    _gestures = ("turn",)

    def _on_turn(self, gesture: Mapping[str, Any]) -> None:
        self.active = min(max(value_of(gesture, "to", int), 0), len(self.titles) - 1)


class TabbedPages(pn.Column):
    """Pages under a row of tabs, one of them shown; the others stay as they are, out of sight and reach."""

    def __init__(self, label: str, pages: Mapping[str, tuple[str, Viewable]]) -> None:
        """``pages`` by their names: title and pane."""
        self._names = list(pages)
        self._panes = [pane if isinstance(pane, Canvas) else _framed(pane) for _, pane in pages.values()]
        self.tabs = Tabs(label=label, titles=[title for title, _ in pages.values()], sizing_mode="stretch_both")
        super().__init__(self.tabs, *self._panes, sizing_mode="stretch_both", styles=GRID)
        self.tabs.styles = {"grid-area": "tabs"}
        self.tabs.param.watch(lambda *_: self._show(), "active")
        self._show()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def turn_to(self, name: str) -> None:
        self.tabs.active = self._names.index(name)

    def mark(self, name: str, badge: str, severity: str) -> None:
        """Write ``badge`` beside a title; "" takes it away."""
        place = str(self._names.index(name))
        others = {key: value for key, value in self.tabs.badges.items() if key != place}
        self.tabs.badges = {**others, place: [badge, severity]} if badge else others

    def _show(self) -> None:
        for place, pane in enumerate(self._panes):
            shown = "visible" if place == self.tabs.active else "hidden"  # hidden ones keep their size and scroll
            inside = (
                {} if isinstance(pane, Canvas) else {"content-visibility": shown}
            )  # Panel's panes say they are visible
            pane.styles = {**pane.styles, **PAGE, "visibility": shown, **inside}


def _framed(pane: Viewable) -> Viewable:
    """A pane that is no widget of ours, in the colours of the page."""
    return pn.Column(pane, sizing_mode="stretch_both", styles=FRAME)


GRID = {
    "display": "grid",
    "grid-template-columns": "minmax(0, 1fr)",
    "grid-template-rows": "34px minmax(0, 1fr)",
    "grid-template-areas": '"tabs" "page"',
}
PAGE = {"grid-area": "page", "min-width": "0", "min-height": "0"}
FRAME = {
    "overflow": "auto",
    "background": "var(--mw-surface)",
    "color": "var(--mw-text)",
    "font": "13px system-ui, sans-serif",
}
