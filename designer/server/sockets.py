"""Websockets of pages that limit the rate at which messages are read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.urls import per_app_patterns
from bokeh.server.views.autoload_js_handler import AutoloadJsHandler
from panel.io.server import WSHandler

MESSAGES_PER_S = 300
"""Messages of a page that are read per second in the long run; a drag sends one or two for each frame of the display."""
BURST = 600
"""Messages of a page that are read without waiting, such as those of a page that opens."""
FRAMES_PER_MESSAGE = 3
"""Websocket frames of a message of Bokeh: header, metadata and content."""


class RateLimitedSocket(WSHandler):
    """Websocket that waits before it reads more messages than the limit.

    No message is lost: the sender waits too, since Tornado reads the next frame of a connection after this one is
    handled. Other pages do not wait.
    """

    _due_s = 0.0
    """Time on the clock of the event loop at which the frames read so far comply with the rate."""
    _closed_early = False
    """Whether the connection was closed before it joined its session."""

    def open(self, *args: str, **kwargs: str) -> Any:
        """Begin a connection; close one that does not use Bokeh's protocol, without logging an error."""
        try:
            return super().open(*args, **kwargs)  # type: ignore[no-untyped-call]
        except ProtocolError as error:
            logging.getLogger(__name__).info("closed a websocket: %s", error)

    async def _async_open(self, token: str) -> None:
        """Join the session of the page, unless its connection is closed; Bokeh would then keep the session forever."""
        if self._closed_early:
            return
        await super()._async_open(token)
        if self._closed_early and self.connection is not None:
            super().on_close()

    def on_close(self) -> None:
        """Leave the session of the page."""
        self._closed_early = self.connection is None
        super().on_close()

    async def on_message(self, fragment: str | bytes) -> None:
        """Handle a frame of a message, as soon as the rate allows it."""
        now = asyncio.get_running_loop().time()
        earliest_s = now - BURST / MESSAGES_PER_S
        self._due_s = max(self._due_s, earliest_s) + 1 / (MESSAGES_PER_S * FRAMES_PER_MESSAGE)
        if self._due_s > now:
            await asyncio.sleep(self._due_s - now)
        await super().on_message(fragment)


def adapt_page_routes() -> None:
    """Limit the rate of websocket messages, and remove the route that embeds a page elsewhere, in servers started later."""
    per_app_patterns[:] = [
        (path, RateLimitedSocket if issubclass(handler, WSHandler) else handler)
        for path, handler, *_ in per_app_patterns
        if not issubclass(handler, AutoloadJsHandler)
    ]
