"""The server of a workshop: pages of learners, and the board of the teacher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import panel as pn
from panel.viewable import Viewable
from tornado.ioloop import PeriodicCallback

from meshwave.designer.kit.page_setup import call_periodically, hide_token, prepare_page
from meshwave.designer.lessons.board import Board
from meshwave.designer.lessons.class_bar import ClassBar
from meshwave.designer.pages.design_page import page
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.pages.start_page import front_page, start_page
from meshwave.designer.pages.transfer_page import lab_page
from meshwave.designer.server.access import new_token
from meshwave.designer.server.logs import log_to_terminal
from meshwave.designer.server.people import PersonStudios
from meshwave.designer.server.serve import (
    SESSION_LIFETIME_S,
    check_place,
    read_design,
    run_server,
    start_on_free_port,
    start_pages,
)
from meshwave.designer.server.sessions import request_user
from meshwave.designer.server.site import Place
from meshwave.designer.server.workshop_access import TEACHER, WorkshopAccess, learner_user
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.sharing import Link
from meshwave.designer.state.studio import Studio
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.lessons.classroom import Classroom, workshop_folder
from meshwave.engine.lessons.workshop import Workshop, read_workshop
from meshwave.engine.people.limits import dry_run_result
from meshwave.engine.people.people_file import OWNER

_log = logging.getLogger(__name__)

REFRESH_INTERVAL_MS = 1000
FOLLOW_INTERVAL_MS = 2000
"""Interval of the checks for learners' runs that take too long and for finished dry runs of challenges."""


def serve_workshop(plan: Path, *, place: Place, show: bool = True) -> int:
    """Serve a workshop until Ctrl-C and return the exit status.

    Args:
        plan: the TOML file of the workshop.
        place: where to listen; learners open its address.
        show: whether to open the board in the browser.

    Raises:
        InputError: the plan cannot be read, the port is in use, or TLS is missing.
        RunError: the data folder cannot be used.
    """
    check_place(place)
    workshop = read_workshop(plan)
    token = new_token()
    log_to_terminal(token)
    server, place, classroom, studio = start_workshop(workshop, token, place)
    link = f"{place.origin}/board?token={token}"
    print(
        f"The workshop is ready. Open the teacher's board\n\n    {link}\n\n"
        f"Learners open {place.origin}/join and type the code {classroom.code}. Ctrl-C stops the server. After a "
        "restart, the workshop continues where it stopped.",
        flush=True,
    )
    try:
        run_server(server, studio, link, show=show)
    finally:
        classroom.close()
    return 0


def start_workshop(
    workshop: Workshop, token: str, place: Place, session_lifetime_s: float = SESSION_LIFETIME_S
) -> tuple[pn.io.server.Server, Place, Classroom, Studio]:
    """Start the server of a workshop, whose event loop the caller runs, and return it with its place and state.

    Raises:
        InputError: the port is in use, there is no free one, or the workshop is being served already.
        RunError: the data folder cannot be used.
    """
    classroom = Classroom(workshop_folder(workshop.name), workshop)
    classroom.reserve()
    studio = Studio(read_design(None), starts_with_library=True, folder=classroom.folder)
    studio.launches.names = lambda: {person.id: person.name for person in classroom.people()}

    def start(found: Place) -> pn.io.server.Server:
        pages = WorkshopPages(classroom, studio, found.origin)
        return start_pages(pages.routes(), studio, WorkshopAccess(classroom, token, found), session_lifetime_s)

    server, place = start_on_free_port(start, place)
    PeriodicCallback(lambda: follow_runs(classroom, studio), FOLLOW_INTERVAL_MS).start()
    return server, place, classroom, studio


def follow_runs(classroom: Classroom, studio: Studio) -> None:
    """Cancel learners' runs that take too long, and store the results of finished dry runs of challenges."""
    try:
        studio.launches.cancel_overdue(classroom.workshop.plan.limits)
        classroom.record_results(partial(dry_run_result, studio.record))
    except MeshwaveError as error:  # such as a full disk; tried again at the next check
        _log.warning("%s", error)


class WorkshopPages:
    """The pages of a workshop, which differ between the teacher and each learner."""

    def __init__(self, classroom: Classroom, studio: Studio, origin: str) -> None:
        self._classroom, self._studio, self._origin = classroom, studio, origin
        studio.user = OWNER._replace(name=TEACHER)
        workshop = classroom.workshop
        self._studios = PersonStudios(
            studio, classroom.folder / "people", lambda: workshop.plan.limits, workshop.lessons
        )

    def routes(self) -> Mapping[str, Callable[[], Viewable]]:
        """Return the functions that build the pages, by path of the page; Panel accepts plain functions only."""
        return {
            "/": lambda: self._design_page(),
            "/start": lambda: start_page(self._studios.current()),
            "/transfer": lambda: lab_page(),
            "/board": lambda: self._board_page(),
        }

    def _design_page(self) -> Viewable:
        user, studio = request_user(pn.state.curdoc), self._studios.current()
        if user == OWNER:
            return front_page(studio)
        return page(studio, lambda widgets, draft: self._join_class(user.id, widgets, draft))

    def _join_class(self, person: str, widgets: Widgets, draft: Draft) -> Viewable:
        """Connect a learner's page with the class."""
        bar = ClassBar(self._classroom, person, widgets.session, widgets.lessons, widgets.studio.launches)

        def note() -> None:
            bar.report_position(draft.name)

        widgets.lessons.param.watch(lambda *_: note(), "step")
        widgets.session.param.watch(lambda *_: note(), "design")
        _follow_changes(self._classroom, bar.refresh)
        note()
        return bar

    def _board_page(self) -> Viewable:
        prepare_page()
        opening = (self._copy_design, self._share_design)
        board = Board(self._classroom, self._origin, *opening, sizing_mode="stretch_both", margin=0)
        pn.state.onload(hide_token)
        _follow_changes(self._classroom, board.refresh)
        return pn.Column(board, sizing_mode="stretch_both", margin=0, styles={"height": "100vh", "width": "100vw"})

    def _share_design(self, person: str) -> Link:
        """Share the design that a learner has open, which may belong to another learner, and return its link."""
        learner = self._classroom.person(person)
        design, library = learner.draft, self._studios.studio_of(learner_user(learner)).library
        libraries = (draft.library for draft in self._studio.drafts if draft.name == design)
        return self._studio.share(next(libraries, library), design)

    def _copy_design(self, person: str, challenge: str) -> str:
        """Copy a learner's design of a challenge into the teacher's library and return its ID."""
        design = self._classroom.read_submission(person, challenge)
        name = f"{self._classroom.person(person).name}: {design.name}"
        return self._studio.library.add(design.model_copy(update={"name": name}))


def _follow_changes(classroom: Classroom, refresh: Callable[[], Any]) -> None:
    """Refresh a widget of the page after each change of the workshop."""
    shown = classroom.changes

    def check() -> None:
        nonlocal shown
        changes = classroom.changes
        if shown != changes:
            refresh()
            shown = changes  # only now, so that a change is shown later if this fails

    call_periodically(check, REFRESH_INTERVAL_MS)
