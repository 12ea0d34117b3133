"""The log of the server on standard error."""

from __future__ import annotations

import logging
import re
from traceback import walk_tb

from bokeh.util import logconfig
from panel.io.logging import panel_log_handler
from tornado.websocket import WebSocketClosedError

LONGEST_LINE = 2_000
"""Largest number of characters of a log line; Bokeh logs unreadable messages of up to 20 MB in full."""
SOCKETS = "meshwave.designer.server.sockets"
"""Module that passes every message of a page on to Bokeh."""
_TOO_LONG = re.compile(rf"^(.{{{LONGEST_LINE}}})(.+)$", re.MULTILINE)


class LogFormatter(logging.Formatter):
    """Log formatter that removes the access token, which is part of links, and truncates long lines."""

    def __init__(self, token: str = "") -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._token = token

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text without the token."""
        if _reports_bad_message(record):
            text = f"{record.levelname} {record.name}: {' '.join(record.getMessage().split())}"
        else:
            text = super().format(record)
        text = text.replace(self._token, "[token]") if self._token else text
        return _TOO_LONG.sub(lambda line: f"{line[1]}... ({len(line[0]):,} characters)", text)


def _reports_bad_message(record: logging.LogRecord) -> bool:
    """Return True if a message of a page failed within Bokeh, as a damaged or forged one does: its traceback says nothing."""
    if not record.name.startswith("bokeh.server") or not record.exc_info:
        return False
    frames = walk_tb(record.exc_info[2])
    modules = {str(frame.f_globals.get("__name__", "")) for frame, _ in frames} - {SOCKETS}
    return not any(module.startswith("meshwave.") for module in modules)


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for the exception of a message to a browser that has just left, which asyncio logs."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, WebSocketClosedError)


def log_to_terminal(token: str = "") -> None:
    """Log warnings and errors to standard error, without the ``token`` of the link, if there is one."""
    handler = logging.StreamHandler()
    handler.addFilter(is_worth_logging)
    logconfig.basicConfig(handlers=[handler])
    for each in (handler, panel_log_handler):  # Panel's loggers do not propagate
        each.setFormatter(LogFormatter(token))
