"""The documentation site, served at ``/docs/`` to the user of the designer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.web import RedirectHandler, StaticFileHandler

from meshwave.designer.server.access_pages import short_page
from meshwave.engine.files import documentation_folder

NOT_BUILT = "The documentation of this checkout has not been built. Run <code>make docs</code>, then reload this page."


class Documentation(StaticFileHandler):
    """Request handler of the site that ``make docs`` built; if it is missing, explains how to build it."""

    def prepare(self) -> None:
        """Redirect a request that is not authenticated."""
        self._access = self.application.auth_provider  # type: ignore[attr-defined]  # Bokeh's application has one
        if self._access.get_user(self) is None:
            self.redirect(self._access.site.root + self._access.get_login_url(self))

    async def get(self, path: str, include_body: bool = True) -> None:
        """Send a file of the site."""
        if Path(self.root, "index.html").exists():
            await super().get(path, include_body)
            return
        self.set_status(404)
        self.finish(short_page(NOT_BUILT, self._access.site.root))


def documentation_routes(root: str) -> list[Any]:
    """Return the routes of the site; browsers see them below the path ``root``."""
    folder = {"path": str(documentation_folder()), "default_filename": "index.html"}
    return [(r"/docs", RedirectHandler, {"url": f"{root}/docs/"}), (r"/docs/(.*)", Documentation, folder)]
