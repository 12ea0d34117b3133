"""A browser whose pages are measured.

It speaks the DevTools protocol itself: a driver such as Playwright has Chromium log all network traffic, and the renderer
then encodes each message of the server as text, which takes as long as drawing it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from meshwave.engine.findings import RunRefusal

FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update --disable-sync"
WIDTH, HEIGHT = 1440, 900
PATIENCE_S = 120.0
UNLIMITED = 1 << 30  # bytes of a message


class Browser:
    """A connection to a headless Chromium."""

    def __init__(self, link: str) -> None:
        """Connect to the DevTools link of a browser."""
        self._loop = asyncio.new_event_loop()
        self._socket = self._loop.run_until_complete(_connect(link))
        self._number = 0

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the browser, or of the page with a session, and return its result.

        Raises:
            RunError: the browser refuses the call, has ended or does not answer in time.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        call = self._call(json.dumps(message | ({"sessionId": session} if session else {})))
        try:
            answer = self._loop.run_until_complete(asyncio.wait_for(call, PATIENCE_S))
        except (TimeoutError, WebSocketClosedError) as error:
            answer = {"error": {"message": f"no answer ({type(error).__name__})"}}
        if "result" not in answer:
            raise RunRefusal("browser_error", {"method": method, "error": answer["error"]["message"]})
        found: dict[str, Any] = answer["result"]
        return found

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
        self._loop.close()

    async def _call(self, message: str) -> dict[str, Any]:
        await self._socket.write_message(message)
        while (received := await self._socket.read_message()) is not None:
            answer: dict[str, Any] = json.loads(received)
            if answer.get("id") == self._number:  # others are events
                return answer
        return {"error": {"message": "the browser has ended"}}

    @contextmanager
    def open_page(self) -> Iterator[BrowserPage]:
        """Open an empty page with an empty cache."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        page = BrowserPage(self, self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        try:
            yield page
        finally:
            self.send("Target.disposeBrowserContext", browserContextId=context)


class BrowserPage:
    """A page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", **screen)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def open(self, link: str) -> None:
        """Open a link; returns when its document has begun to load."""
        self._send("Page.navigate", url=link)

    def evaluate(self, function: str, argument: Any = None) -> Any:
        """Call a JavaScript function with an argument, and return its result, or that of its promise.

        Raises:
            RunError: the function throws an error.
        """
        call = f"({function})({json.dumps(argument)})"
        found = self._send("Runtime.evaluate", expression=call, awaitPromise=True, returnByValue=True)
        if thrown := found.get("exceptionDetails"):
            error = thrown.get("exception", {}).get("description", thrown["text"])
            raise RunRefusal("browser_error", {"method": "Runtime.evaluate", "error": error})
        return found["result"].get("value")


@contextmanager
def open_browser(executable: str) -> Iterator[Browser]:
    """Start a headless Chromium, and end it afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [executable, "--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}", *FLAGS.split()]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                with closing(Browser(_await_link(Path(folder, "DevToolsActivePort"), process))) as browser:
                    yield browser
            finally:
                process.terminate()


def _await_link(file: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the DevTools link of a browser that starts, from the file with its port and path."""
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        port, _, path = file.read_text().partition("\n") if file.exists() else ("", "", "")
        if path:
            return f"ws://127.0.0.1:{port}{path.strip()}"
        time.sleep(0.05)
    raise RunRefusal("browser_not_started")


async def _connect(link: str) -> WebSocketClientConnection:
    return await websocket_connect(link, max_message_size=UNLIMITED)
