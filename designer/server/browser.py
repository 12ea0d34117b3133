"""Opening the designer in the user's browser."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

PATIENCE_S = 60.0
"""Time in seconds after which the browser is assumed to have failed to open the link."""
REDIRECT = (
    '<!doctype html><title>Meshwave</title><meta http-equiv="refresh" content="0; url={link}">'
    '<a href="{link}">Open Meshwave</a>'
)


def has_screen() -> bool:
    """Return whether a browser can show a window."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(link: str, link_followed: threading.Event) -> None:
    """Open ``link`` through a private file, which is removed once the browser has opened the link.

    All users of a machine can see the arguments of a process, and the link contains the token.
    """
    with tempfile.TemporaryDirectory(prefix="meshwave-") as folder:  # readable by its owner only
        page = Path(folder, "open.html")
        page.touch(mode=0o600)
        page.write_text(REDIRECT.format(link=link), "utf-8")
        webbrowser.open(page.as_uri())
        link_followed.wait(PATIENCE_S)
