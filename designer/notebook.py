"""The designer in a cell of a notebook."""

from __future__ import annotations

import atexit
import json
from functools import cache

from meshwave.designer.server.access import NotebookHeaders, new_token
from meshwave.designer.server.serve import Served, read_design
from meshwave.engine.document import Design

DESIGNER_HEIGHT = 860


class Designer:
    """The designer on one design, shown by a notebook in a cell.

    Args:
        design: what to open.
        height: the height of the cell in pixels.

    Example:
        >>> shown = mw.designer(design)  # doctest: +SKIP
        >>> shown.design  # as it was edited  # doctest: +SKIP
    """

    def __init__(self, design: Design, height: int = DESIGNER_HEIGHT) -> None:
        self._served, self._height = _server(), height
        self._draft = self._served.studio.add_draft(design)

    @property
    def design(self) -> Design:
        """The design as it is now, with the edits that were made on the page."""
        return self._served.studio.open(self._draft)

    @property
    def link(self) -> str:
        """The link of the page, for a browser on this machine."""
        return f"http://127.0.0.1:{self._served.port}{self._path}"

    @property
    def _path(self) -> str:
        return f"/?token={self._served.token}&draft={self._draft}"

    def _repr_html_(self) -> str:
        # Browsers send the cookie of the designer only to the host name that the notebook itself is opened by.
        host = "['localhost', '127.0.0.1'].includes(location.hostname) ? location.hostname : '127.0.0.1'"
        address = f"'http:' + '//' + ({host}) + {json.dumps(f':{self._served.port}{self._path}')}"
        return (
            f'<iframe width="100%" height="{self._height}" style="border: 0"></iframe>'
            f"<script>document.currentScript.previousElementSibling.src = {address}</script>"
            f'<a href="{self.link}" target="_blank">Open in a tab</a>'
        )


@cache
def _server() -> Served:
    """Return the designer's server of this process, started at the first call; it ends with the process."""
    server = Served(read_design(None), new_token(), headers=NotebookHeaders)
    atexit.register(server.close)
    return server
