"""A plugin of pytest that delays all data between browser and server, as a connection to a distant machine does.

Usage: ``python -m pytest -p tests.latency --latency-ms 75 tests/browser``. Each Bokeh server is reached through a
proxy, which delays each direction; servers in other processes are not delayed.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

OPTION = "--latency-ms"
LARGEST_PART = 2**18


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=float, default=75.0, help="delay in each direction in milliseconds")


def pytest_configure(config: pytest.Config) -> None:
    import bokeh.server.server as server

    proxy, bind = Proxy(config.getoption(OPTION) / 1000), server.bind_sockets

    def bind_behind_proxy(address: str | None, port: int) -> tuple[list[socket.socket], int]:
        reached, chosen = bind(address, port)
        hidden, behind = bind("127.0.0.1", 0)
        for each in reached:
            proxy.serve(each, behind)
        return hidden, chosen

    server.bind_sockets = bind_behind_proxy  # type: ignore[attr-defined]


class Proxy:
    """Forwards TCP connections with a delay, in a thread of its own."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s, self._loop = delay_s, asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="latency", daemon=True).start()

    def serve(self, listening: socket.socket, port: int) -> None:
        """Forward the connections of a socket to a port of this machine."""

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                behind, ahead = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(self._forward(reader, ahead), self._forward(behind, writer))

        asyncio.run_coroutine_threadsafe(asyncio.start_server(connect, sock=listening), self._loop).result()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The time at which each part is to be sent, and the part; an empty one is the end.
        parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(parts, writer))
        data: Any = b"-"
        while data:
            try:
                data = await reader.read(LARGEST_PART)
            except OSError:
                data = b""
            parts.put_nowait((self._loop.time() + self._delay_s, data))
        await sending

    async def _send(self, parts: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the other side has gone
            while True:
                due_s, data = await parts.get()
                await asyncio.sleep(due_s - self._loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
