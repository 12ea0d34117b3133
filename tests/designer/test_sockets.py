"""Messages from the server to a page, at moments at which messages used to be lost."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from bokeh.document import Document
from bokeh.document.events import MessageSentEvent
from bokeh.protocol import Protocol
from panel.io import document as panel_document
from tornado.websocket import WebSocketHandler

from meshwave.designer.server.sockets import send_all_messages


class SlowConnection:
    """Tornado's side of a websocket that keeps the frames, whose first message ends when ``written`` is set."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def is_closing(self) -> bool:
        return False

    def write_message(self, frame: str, binary: bool = False) -> asyncio.Future[None]:
        self.frames.append(frame)
        return self.written


class Socket(WebSocketHandler):
    """Websocket of a page, without an HTTP request."""

    def __init__(self, connection: SlowConnection) -> None:
        self.ws_connection = connection  # type: ignore[assignment]
        self.close_code = None


class Connection:
    """Bokeh's connection of a page."""

    protocol = Protocol()

    def __init__(self, socket: Socket) -> None:
        self._socket = socket


@pytest.fixture
def unchanged_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_document, "_dispatch_msgs", panel_document._dispatch_msgs)


@pytest.mark.usefixtures("unchanged_panel")
def test_a_message_added_at_the_end_of_the_write_of_another_is_sent() -> None:
    async def send_two() -> list[str]:
        connection = SlowConnection()
        document, page = Document(), Connection(Socket(connection))

        def send(text: str) -> None:
            event = MessageSentEvent(document, "text", text)
            panel_document.schedule_write_events(document, [page], [event])  # type: ignore[list-item]

        send("first")
        await asyncio.sleep(0.01)
        connection.written.set_result(None)
        send("second")  # before the task of the first message continues
        await asyncio.sleep(0.05)
        return connection.frames

    send_all_messages()
    with ThreadPoolExecutor(1) as elsewhere:
        frames = elsewhere.submit(asyncio.run, send_two()).result()

    assert [name for frame in frames for name in ("first", "second") if f'"{name}"' in frame] == ["first", "second"]
