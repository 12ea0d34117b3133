"""The log does not contain the token, and long messages are truncated."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from bokeh.protocol import Protocol
from bokeh.protocol.receiver import Receiver
from tornado.websocket import WebSocketClosedError

from meshwave.designer.server.logs import LONGEST_LINE, SOCKETS, LogFormatter, is_worth_logging
from meshwave.designer.server.sockets import RateLimitedSocket


def format_record(message: str, *args: object) -> str:
    record = logging.LogRecord("bokeh", logging.ERROR, __file__, 1, message, args, None)
    return LogFormatter("a-secret").format(record)


def test_the_token_is_removed_from_log_lines() -> None:
    assert format_record("403 GET /?token=a-secret") == "ERROR bokeh: 403 GET /?token=[token]"
    assert "a-secret" not in format_record("Uncaught exception %r", {"uri": "/autoload.js?x=1&token=a-secret"})


def test_a_long_message_is_truncated_in_the_log() -> None:
    text = format_record("Unhandled exception receiving a message: %r", b"x" * 19_000_000)

    assert text.startswith("ERROR bokeh: Unhandled exception receiving a message: b'xxx")
    assert re.search(r"\.\.\. \(19,000,\d+ characters\)$", text)
    assert len(text) < LONGEST_LINE + 100


def test_a_browser_that_leaves_while_it_is_sent_something_is_not_logged() -> None:
    left, other = (
        logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "never retrieved", (), (type(error), error, None))
        for error in (WebSocketClosedError(), ValueError())
    )

    assert not is_worth_logging(left)
    assert is_worth_logging(other)


def test_a_message_that_bokeh_cannot_read_is_one_line_and_an_own_defect_has_its_traceback() -> None:
    def format_failure(work: Callable[[], object]) -> str:
        try:
            work()
        except Exception:
            message, found = "error handling message\n message: %r", sys.exc_info()
        record = logging.LogRecord("bokeh.server.protocol_handler", logging.ERROR, "", 1, message, ({"x": 1},), found)
        return LogFormatter("a-secret").format(record)

    assert format_failure(lambda: json.loads("x")) == (
        "ERROR bokeh.server.protocol_handler: error handling message message: {'x': 1}"
    )
    assert "Traceback" in format_failure(lambda: LogFormatter.format(None, None))  # type: ignore[arg-type]


def test_a_traceback_is_logged_completely() -> None:
    try:
        raise ValueError("a-secret is wrong")
    except ValueError:
        record = logging.LogRecord("bokeh", logging.ERROR, __file__, 1, "x" * 10_000, (), sys.exc_info())

    assert LogFormatter("a-secret").format(record).endswith("ValueError: [token] is wrong")


def test_a_frame_that_bokeh_cannot_read_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Page(RateLimitedSocket):
        def __init__(self) -> None:
            self.receiver = Receiver(Protocol())

        def close(self, code: int | None = None, reason: str | None = None) -> None:
            """The page does not exist."""

    async def send() -> None:
        page = Page()
        for frame in ('{"msgid": "1", "msgtype": "unknown"}', "{}", "{}"):
            await page.on_message(frame)

    with caplog.at_level(logging.ERROR, "bokeh.server"), ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lambda: asyncio.run(send())).result()  # a browser test may leave a loop running in this thread

    assert RateLimitedSocket.__module__ == SOCKETS
    texts = [LogFormatter("a-secret").format(record) for record in caplog.records]
    assert any("KeyError('unknown')" in text for text in texts)
    assert not any("Traceback" in text for text in texts)
