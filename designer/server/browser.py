"""Open the designer in the browser of whoever started it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

PATIENCE_S = 60.0
"""A browser that has not followed the link by then is not going to."""
REDIRECT = (
    '<!doctype html><title>Meshwave</title><meta http-equiv="refresh" content="0; url={link}">'
    '<a href="{link}">Open Meshwave</a>'
)


def has_screen() -> bool:
    """True where a browser has somewhere to be shown."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(link: str, link_followed: threading.Event) -> None:
    """Open ``link`` by way of a private file that is removed once the link is followed.

    Every user of a machine sees the arguments of a browser that is started, and the link holds the token.
    """
    with tempfile.TemporaryDirectory(prefix="meshwave-") as folder:  # only its owner may look into it
        page = Path(folder, "open.html")
        page.touch(mode=0o600)
        page.write_text(REDIRECT.format(link=link), "utf-8")
        webbrowser.open(page.as_uri())
        link_followed.wait(PATIENCE_S)
