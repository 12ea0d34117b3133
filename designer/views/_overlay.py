"""What lies over the page while it is open: Python opens it, a person closes it on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import param

from designer.canvases._canvas import Canvas


class Overlay(Canvas):
    """Each opening has a number, and the page tells which one it closed.

    So whoever closes it and opens it again at once finds it open, whichever message comes first.
    """

    shown = param.Boolean(default=False, doc="Whether the overlay is open.")
    opening = param.Integer(default=0, doc="How often it was opened.")

    __abstract = True

    def _open(self) -> None:
        self.param.update(shown=True, opening=self.opening + 1)

    def _on_close(self, gesture: Mapping[str, Any]) -> None:
        if gesture.get("opening", self.opening) == self.opening:
            self._close()

    def _close(self) -> None:
        self.shown = False
