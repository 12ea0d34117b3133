"""Words that several parts of the page share."""

from __future__ import annotations

from datetime import datetime


def when(seconds: float, *, exact: bool = False) -> str:
    """A moment, in Unix seconds, as a person says it: 14:05 today, else 12 Mar 14:05; ``exact`` with its seconds."""
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    time = f"{then:%H:%M:%S}" if exact else f"{then:%H:%M}"
    return time if then.date() == now.date() else f"{then:%d %b} {time}"
