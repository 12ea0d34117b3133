"""A client of the page without a browser, for benchmarks and tests. It opens, edits and leaves over a websocket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from bokeh.core.serialization import Serializer
from bokeh.protocol import Protocol
from bokeh.protocol.message import Message
from bokeh.protocol.messages.patch_doc import patch_doc
from bokeh.protocol.receiver import Receiver
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from meshwave.engine.findings import RunRefusal

PATIENCE_S = 120.0
SESSION_TOKEN = re.compile(r'"token":"([^"]+)"')
"""Pattern of the token in the HTML of a page that its websocket has to present."""


class PageClient:
    """An open page without a browser, for which the server does the same work as for a browser."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self._socket = socket
        self._receiver = Receiver(Protocol())
        self._widgets: dict[str, str] = {}

    @classmethod
    async def open(cls, link: str, cookie: str = "", *, shows: bool = True) -> Self:
        """Open a link as a browser does: the page, its websocket, its document.

        Args:
            link: the link; without ``cookie``, it has the token.
            cookie: the cookie of a browser that is admitted.
            shows: whether the page reports that its document is shown; otherwise the caller calls :meth:`report_shown`.

        Raises:
            RunError: the server did not respond in time, or closed the connection.
        """
        parts = urlsplit(link)
        answer = await AsyncHTTPClient().fetch(link, headers={"Cookie": cookie}, request_timeout=PATIENCE_S)
        found = SESSION_TOKEN.search(answer.body.decode())
        if found is None:
            raise RunRefusal("page_without_session", {"link": f"{parts.netloc}{parts.path}"})
        cookie = cookie or answer.headers["Set-Cookie"].partition(";")[0]
        headers = {"Origin": f"http://{parts.netloc}", "Cookie": cookie}
        address = f"ws://{parts.netloc}{parts.path.rstrip('/')}/ws"
        request = HTTPRequest(address, headers=headers, request_timeout=PATIENCE_S)
        page = cls(await websocket_connect(request, subprotocols=["bokeh", found[1]]))
        await page.receive(lambda message: message.msgtype == "ACK")
        await page._send(Protocol().create("PULL-DOC-REQ"))
        reply = await page.receive(lambda message: message.msgtype == "PULL-DOC-REPLY")
        page._widgets = dict(_widgets(reply.content))
        if shows:
            await page.report_shown()
        return page

    async def report_shown(self) -> None:
        """Report that the document is shown."""
        await self._event("document_ready", [])

    async def gesture(self, widget: str, gesture: Mapping[str, Any]) -> None:
        """Send a gesture to the widget of a given class, such as ``TopBar``."""
        model = {"id": self._widgets[widget]}
        await self._event("data_event", [["model", model], ["data", Serializer().encode(dict(gesture))]])

    async def ask(self, widget: str, gesture: Mapping[str, Any]) -> None:
        """Send a gesture and wait until it is handled.

        Raises:
            RunError: the gesture was refused, or the server did not respond in time.
        """
        await self.gesture(widget, gesture)
        answers: list[dict[str, Any]] = []

        def is_answer(message: Message[Any]) -> bool:
            answers.extend(each for each in widget_messages(message) if each.get("gesture") == gesture["type"])
            return bool(answers)

        await self.receive(is_answer)
        if answers[0]["refused"] is not None:
            raise RunRefusal("refused_gesture", {"gesture": gesture["type"], "reason": answers[0]["refused"]})

    async def edit(self, microbatches: int) -> None:
        """Set the number of microbatches and wait for the new timeline."""
        await self.gesture("WaveCanvas", {"type": "microbatches", "value": microbatches})
        await self.receive(has_timeline)

    async def leave(self) -> None:
        """Close the page."""
        self._socket.close()
        while await self._socket.read_message() is not None:
            pass

    async def _event(self, name: str, entries: list[list[Any]]) -> None:
        data = {"type": "event", "name": name, "values": {"type": "map", "entries": entries}}
        sent: Any = {"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": data}
        await self._send(patch_doc(patch_doc.create_header(), {}, {"events": [sent]}))

    async def _send(self, message: Message[Any]) -> None:
        for fragment in (message.header_json, message.metadata_json, message.content_json):
            await self._socket.write_message(fragment)

    async def receive(self, is_wanted: Callable[[Message[Any]], bool]) -> Message[Any]:
        """Return the first message for which ``is_wanted`` returns True."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                fragment = await self._socket.read_message()
                if fragment is None:
                    reason = self._socket.close_reason or "no reason given"
                    raise RunRefusal("connection_closed", {"reason": reason})
                message = await self._receiver.consume(fragment)
                if message is not None and is_wanted(message):
                    return message


def has_timeline(message: Message[Any]) -> bool:
    """Return whether a message has the columns of a timeline."""
    return any(event.get("attr") == "packed" for event in message.content.get("events", []))


def widget_messages(message: Message[Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of widgets to their page, as plain data."""
    for event in message.content.get("events", []):
        if event["kind"] == "MessageSent":
            data = _plain(event["msg_data"]).get("values", {}).get("data")
            if isinstance(data, dict):
                yield data


def _plain(value: Any) -> Any:
    """Return a value as plain data, in which Bokeh's maps are dictionaries."""
    if isinstance(value, dict) and value.get("type") == "map":
        return {key: _plain(entry) for key, entry in value.get("entries", [])}
    return {key: _plain(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _widgets(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the class and model identifier of each widget in a document."""
    if isinstance(content, list):
        for each in content:
            yield from _widgets(each)
    elif isinstance(content, dict):
        attributes = content.get("attributes")
        if isinstance(attributes, dict) and "esm" in attributes:
            yield attributes["name"], content["id"]
        yield from _widgets(list(content.values()))
