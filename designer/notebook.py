"""The designer in a notebook cell."""

from __future__ import annotations

import atexit
import json
from functools import cache

from meshwave.designer.server.access import NotebookHeaders, new_token
from meshwave.designer.server.serve import ThreadedServer, read_design
from meshwave.engine.document import Design

DESIGNER_HEIGHT = 860


class Designer:
    """The designer, displayed in a notebook cell.

    Args:
        design: the design to open.
        height: height of the cell in pixels.

    Example:
        >>> shown = mw.designer(design)  # doctest: +SKIP
        >>> shown.design  # the edited design  # doctest: +SKIP
    """

    def __init__(self, design: Design, height: int = DESIGNER_HEIGHT) -> None:
        self._served, self._height = _shared_server(), height
        self._draft = self._served.studio.library.add(design)

    @property
    def design(self) -> Design:
        """The current design, including the edits made on the page."""
        return self._served.studio.read_draft(self._draft)

    @property
    def link(self) -> str:
        """Link that opens the page in a browser on this machine."""
        return f"http://127.0.0.1:{self._served.port}{self._path}"

    @property
    def _path(self) -> str:
        return f"/?token={self._served.token}&draft={self._draft}"

    def _repr_html_(self) -> str:
        # A browser sends the designer's cookie only to the host name from which the notebook itself was opened.
        host = "['localhost', '127.0.0.1'].includes(location.hostname) ? location.hostname : '127.0.0.1'"
        address = f"'http:' + '//' + ({host}) + {json.dumps(f':{self._served.port}{self._path}')}"
        return (
            f'<iframe width="100%" height="{self._height}" style="border: 0"></iframe>'
            f"<script>document.currentScript.previousElementSibling.src = {address}</script>"
            f'<a href="{self.link}" target="_blank">Open in a tab</a>'
        )


@cache
def _shared_server() -> ThreadedServer:
    """Return the designer's server of this process, started at the first call and stopped when the process exits."""
    server = ThreadedServer(read_design(None), new_token(), headers=NotebookHeaders)
    atexit.register(server.close)
    return server
