"""Websockets of pages: no message to the page is lost, and the rate of messages from the page is limited."""

from __future__ import annotations

import asyncio
import base64
import logging
import zlib
from contextlib import suppress
from typing import Any

from bokeh.core.serialization import Deserializer
from bokeh.document import Document
from bokeh.protocol.exceptions import ProtocolError
from bokeh.protocol.message import Message
from bokeh.server.urls import per_app_patterns
from bokeh.server.views.autoload_js_handler import AutoloadJsHandler
from panel.io import document as panel_document
from panel.io.server import WSHandler
from tornado.websocket import WebSocketClosedError

MESSAGES_PER_S = 300
"""Messages of a page that are read per second in the long run; a drag sends one or two for each frame of the display."""
BURST = 600
"""Messages of a page that are read without waiting, such as those of a page that opens."""
LARGEST_MESSAGE_BYTES = 40_000_000
"""Largest size of all frames of a message, and of the compressed bytes in it once they are unpacked."""
FRAMES_PER_MESSAGE = 3
"""Websocket frames of a message of Bokeh: header, metadata and content."""


class RateLimitedSocket(WSHandler):
    """Websocket that waits before it reads more messages than the limit.

    No message is lost: the sender waits too, since Tornado reads the next frame of a connection after this one is
    handled. Other pages do not wait.
    """

    _due_s = 0.0
    """Time on the clock of the event loop at which the frames read so far comply with the rate."""
    _received_bytes = 0
    """Size of the frames of the message that is being received."""
    _closed_early = False
    """True if the connection was closed before it joined its session."""

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

    def ping(self, data: str | bytes = b"") -> None:
        """Send a ping, unless the browser has closed the connection.

        If the error were raised, Bokeh would leave the session at once, and the last messages of the page would be lost.
        """
        with suppress(WebSocketClosedError):
            super().ping(data)

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

    async def _receive(self, fragment: str | bytes) -> Message[Any] | None:
        """Return the message that a frame completes; close the connection if the message is too large."""
        self._received_bytes += len(fragment)
        if self._received_bytes > LARGEST_MESSAGE_BYTES:
            self._protocol_error("the message is too large")
            return None
        message = await super()._receive(fragment)
        if message is not None:
            self._received_bytes = 0
        return message


_decode_bytes = Deserializer._decode_bytes


def _decode_limited_bytes(deserializer: Deserializer, packed: Any) -> Any:
    """Return the bytes in a message; refuse compressed ones that would fill the memory."""
    if isinstance(content := packed["data"], str):
        unpacked = zlib.decompressobj(wbits=31).decompress(base64.b64decode(content), LARGEST_MESSAGE_BYTES + 1)
        if len(unpacked) > LARGEST_MESSAGE_BYTES:
            deserializer.error("the message is too large")
    return _decode_bytes(deserializer, packed)


def limit_compressed_bytes() -> None:
    """Let Bokeh refuse messages whose compressed bytes are too large."""
    Deserializer._decode_bytes = _decode_limited_bytes  # type: ignore[assignment, method-assign]


_dispatch_messages = panel_document._dispatch_msgs


async def _dispatch_all_messages(document: Document) -> None:
    """Write the waiting messages of a document as Panel does, and keep those that were added meanwhile.

    Panel 1.9 marks the document as written when the first messages are sent, so that the task of later messages returns
    without sending them: the page would wait for an answer forever.
    """
    await _dispatch_messages(document)  # type: ignore[no-untyped-call]
    if panel_document._WRITE_MSGS.get(document):  # their task has been scheduled with them
        panel_document._WRITE_BLOCK[document] = True


def send_all_messages() -> None:
    """Let Panel send messages that are added while earlier ones are being sent."""
    panel_document._dispatch_msgs = _dispatch_all_messages


def adapt_page_routes() -> None:
    """Limit the rate of websocket messages, and remove the route that embeds a page elsewhere, in servers started later."""
    per_app_patterns[:] = [
        (path, RateLimitedSocket if issubclass(handler, WSHandler) else handler)
        for path, handler, *_ in per_app_patterns
        if not issubclass(handler, AutoloadJsHandler)
    ]
