"""The server for several people, each of whom has a library, runs and a role."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import panel as pn
from panel.viewable import Viewable
from tornado.ioloop import PeriodicCallback

from meshwave.designer.pages.start_page import front_page, start_page
from meshwave.designer.pages.transfer_page import lab_page
from meshwave.designer.server.logs import log_to_terminal
from meshwave.designer.server.people_access import PeopleAccess
from meshwave.designer.server.serve import (
    check_place,
    read_design,
    run_server,
    start_on_free_port,
    start_pages,
)
from meshwave.designer.server.sessions import end_outdated_sessions, request_user
from meshwave.designer.server.site import Place
from meshwave.designer.state.saved_designs import SavedDesigns
from meshwave.designer.state.studio import Studio
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import data_folder
from meshwave.engine.lessons.progress import Course
from meshwave.engine.people.limits import Limits
from meshwave.engine.people.people_file import OWNER, PeopleFile, User

_log = logging.getLogger(__name__)
FOLLOW_INTERVAL_MS = 2000
"""Interval of the checks for runs that take too long and for changes of the people file."""


class PersonStudios:
    """The studios of the people; each is opened at the person's first visit."""

    def __init__(
        self,
        shared: Studio,
        folder: Path,
        limits: Callable[[], Limits],
        lessons: Sequence[str] = (),
        unlimited: Callable[[], Container[str]] = frozenset,
    ) -> None:
        """Create the studios.

        Args:
            shared: the studio of the server's own user, whose runs are those of all people.
            folder: the folder with a folder for each person.
            limits: returns the current limits on launches and saved designs.
            lessons: names of the offered lessons; all lessons if it is empty.
            unlimited: returns the IDs of people who may save any number of designs.
        """
        shared.saved_designs = SavedDesigns(folder, limits, unlimited)
        self.shared, self._folder, self._limits, self._lessons = shared, folder, limits, lessons
        self._studios: dict[User, Studio] = {}

    def studio_of(self, user: User) -> Studio:
        """Return the studio of a person."""
        if user == OWNER:
            return self.shared
        if user not in self._studios:
            course = Course(self._lessons, self._folder / user.id)
            self._studios[user] = self.shared.person_studio(user, course, self._limits)
        return self._studios[user]

    def current(self) -> Studio:
        """Return the studio of the person who opens the page that is being built."""
        return self.studio_of(request_user(pn.state.curdoc))


def serve_people(people: Path, design: str | None = None, *, place: Place, show: bool = True) -> int:
    """Serve several people until Ctrl-C and return the exit status.

    Args:
        people: the TOML file of the people.
        design: the first design, a file or an example; by default pages start with the library.
        place: where to listen; people open its address.
        show: whether to open the browser.

    Raises:
        InputError: the people or the design cannot be read, the port is in use, or TLS is missing.
        RunError: the data folder cannot be used.
    """
    check_place(place)
    file, first = PeopleFile(people), read_design(design)
    log_to_terminal()
    studio = Studio(first, starts_with_library=design is None)
    studio.launches.names = lambda: {person.user.id: person.name for person in file.people.people}
    studios = PersonStudios(
        studio, data_folder() / "people", lambda: file.people.limits, unlimited=lambda: file.people.administrators
    )
    server, place = start_on_free_port(
        lambda found: start_pages(people_pages(studios), studio, PeopleAccess(file, found)), place
    )
    PeriodicCallback(lambda: follow_people(server._tornado, studio, file), FOLLOW_INTERVAL_MS).start()
    link = f"{place.origin}/"
    print(
        f"Meshwave is ready. People sign in at\n\n    {link}\n\n"
        "Ctrl-C stops the server and the runs that were started here.",
        flush=True,
    )
    run_server(server, studio, link, show=show)
    return 0


def people_pages(studios: PersonStudios) -> Mapping[str, Callable[[], Viewable]]:
    """Return the pages by their paths; Panel accepts plain functions only."""
    return {
        "/": lambda: front_page(studios.current()),
        "/start": lambda: start_page(studios.current()),
        "/transfer": lambda: lab_page(),
    }


def follow_people(application: Any, studio: Studio, file: PeopleFile) -> None:
    """End the sessions of people who were removed or have another role or token, and cancel runs that take too long."""
    people = file.people
    end_outdated_sessions(application, application.auth_provider.is_current)
    try:
        studio.launches.cancel_overdue(people.limits, people.administrators)
    except MeshwaveError as error:  # the run database cannot be read; repeated at the next check
        _log.warning("%s", error)
