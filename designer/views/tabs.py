"""Panes under a row of tabs; one pane is shown at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import panel as pn
import param
from panel.viewable import Viewable

from meshwave.designer.kit.canvas import Canvas, widget


@widget("panels/side.js")
class Tabs(Canvas):
    """A row of tab titles; a title is selected with the pointer or the arrow keys."""

    label = param.String(default="", doc="Name of the row for screen readers.")
    titles = param.List(default=[], item_type=str)
    badges = param.Dict(default={}, doc="Text and severity of the badge of each title, by index.")
    active = param.Integer(default=0, doc="Index of the selected title.")

    def _on_turn(self, to: int) -> None:
        self.active = min(max(to, 0), len(self.titles) - 1)


class TabbedPages(pn.Column):
    """Panes under a row of tabs; one pane is shown, and hidden panes keep their state."""

    def __init__(self, label: str, pages: Mapping[str, tuple[str, Callable[[], Viewable]]]) -> None:
        """Create the tabs.

        Args:
            label: the name of the row for screen readers.
            pages: by name, the title of a pane and the function that makes the pane when it is first shown.
        """
        self._names = list(pages)
        self._makers = [make for _, make in pages.values()]
        self._panes: dict[int, Viewable] = {}
        self.tabs = Tabs(label=label, titles=[title for title, _ in pages.values()], sizing_mode="stretch_both")
        super().__init__(self.tabs, sizing_mode="stretch_both", styles=GRID)
        self.tabs.styles = {"grid-area": "tabs"}
        self.tabs.param.watch(lambda *_: self._show_active(), "active")
        self._show_active()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def show_view(self, name: str) -> None:
        """Show the pane of this name."""
        self.tabs.active = self._names.index(name)

    def set_badge(self, name: str, badge: str, severity: str) -> None:
        """Show ``badge`` next to a title; an empty text removes the badge."""
        place = str(self._names.index(name))
        others = {key: value for key, value in self.tabs.badges.items() if key != place}
        self.tabs.badges = {**others, place: [badge, severity]} if badge else others

    def _show_active(self) -> None:
        active = self.tabs.active
        is_new = active not in self._panes
        if is_new:
            pane = self._makers[active]()
            self._panes[active] = pane if isinstance(pane, Canvas) else _frame_pane(pane)
        for place, pane in self._panes.items():
            # Hidden panes keep their size and scroll position; the shown one is hidden with its area in small windows.
            shown, inner = ("inherit", "visible") if place == active else ("hidden", "hidden")
            # Elements of Panel's own panes set `visibility` themselves, so hiding the pane does not hide them.
            inside = {} if isinstance(pane, Canvas) else {"content-visibility": inner}
            pane.styles = {**pane.styles, **PAGE, "visibility": shown, **inside}
        if is_new:
            self.append(self._panes[active])


def _frame_pane(pane: Viewable) -> Viewable:
    """Put a pane of Panel into a box with the colours of the page."""
    return pn.Column(pane, sizing_mode="stretch_both", styles=FRAME)


GRID = {
    "display": "grid",
    "grid-template-columns": "minmax(0, 1fr)",
    "grid-template-rows": "34px minmax(0, 1fr)",
    "grid-template-areas": '"tabs" "page"',
    "background": "var(--mw-surface)",  # until the page of a tab is built
}
PAGE = {"grid-area": "page", "min-width": "0", "min-height": "0"}
FRAME = {
    "overflow": "auto",
    "background": "var(--mw-surface)",
    "color": "var(--mw-text)",
    "font": "13px Roboto, system-ui, sans-serif",
}
