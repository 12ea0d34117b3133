"""The administration page: people, runs, computations and the load of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import panel as pn
import param

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.kit.page_setup import call_periodically, prepare_page

REFRESH_INTERVAL_MS = 2000

Read = Callable[[], Mapping[str, Any]]
"""Function that returns the state of the server: ``machine``, a list of names and values, and ``tables``; see
``static/admin/types.d.ts``.
"""
Stop = Callable[[str, str], None]
"""Function that stops the entry of a table by its kind and ID; raises Refusal if the entry has ended already."""


def admin_page(read: Read, stop: Stop) -> pn.viewable.Viewable:
    """Build the administration page, which is updated every two seconds."""
    prepare_page()
    shown = AdminPage(read, stop, sizing_mode="stretch_both", margin=0)
    call_periodically(shown.refresh, REFRESH_INTERVAL_MS)
    return pn.Column(shown, sizing_mode="stretch_both", margin=0, styles={"height": "100vh", "width": "100vw"})


@widget("admin/admin.js", "kit/shell.css")
class AdminPage(Canvas):
    """Widget with tables of people, runs and computations; a button in each row stops the entry."""

    state = param.String(default=PlainData({"machine": [], "tables": []}), doc="State of the server as plain data.")

    def __init__(self, read: Read, stop: Stop, **params: Any) -> None:
        super().__init__(**params)
        self._read, self._stop = read, stop
        self.refresh()

    def refresh(self) -> None:
        """Show the current state."""
        self.state = PlainData(self._read())

    def _on_stop(self, kind: str, id: str) -> None:
        self._stop(kind, id)
        self.refresh()
