"""Sessions of open pages: their people, and functions that end them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from meshwave.engine.people.people_file import User

ENDED = 4000
"""Status with which the websocket of a session is closed; codes from 4000 on are free for applications."""


def open_sessions(application: Any) -> Iterator[Any]:
    """Yield all sessions of a server, including sessions of closed pages that have not expired."""
    for path in application.app_paths:
        yield from application.get_sessions(path)


def request_user(document: Any) -> User:
    """Return the person who opened a page."""
    user = document.session_context.request.user
    assert isinstance(user, User), "cannot serve a page: the request has no user"
    return user


def session_user(application: Any, session: str) -> User | None:
    """Return the person who opened a session; None if the session does not exist."""
    found = next((each for each in open_sessions(application) if each.id == session), None)
    return request_user(found.document) if found is not None else None


def end_session(application: Any, session: Any) -> None:
    """End a session: close its websocket, refuse further connections, and discard its state."""
    application.auth_provider.end_session(session.id)
    session.request_expiration()
    for connection in list(session._subscribed_connections):
        connection._socket.close(ENDED, "the session was ended")


def end_outdated_sessions(application: Any, is_current: Callable[[Any], bool]) -> None:
    """End the sessions whose requests are no longer current, such as those of a person who was removed."""
    for session in list(open_sessions(application)):
        if not is_current(session.document.session_context.request):
            end_session(application, session)
