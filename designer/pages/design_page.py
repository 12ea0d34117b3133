"""The page of a design: the design that its link opens, and its life in a tab."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import panel as pn
from bokeh.document import Document
from panel.viewable import Viewable

from meshwave.designer.kit.page_setup import call_periodically, page_argument, prepare_page
from meshwave.designer.lessons.tutor import OpenLesson
from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.jobs import page_callback_scheduler
from meshwave.designer.state.studio import IsShown, Studio
from meshwave.designer.views.runs import REFRESH_INTERVAL_S
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.files import example
from meshwave.engine.runs import Run
from meshwave.engine.runs.run_folder import read_launched_design

Attend = Callable[[Widgets, Draft], Viewable]
STARTS = ("example", "run", "new")
"""Arguments of a link that name the design to start from."""
NEW_DESIGNS = {"pipeline": "03-gpt-on-two-cores", "experts": "16-gpt2-moe"}
"""Examples that new designs start from; their times are in seconds."""
PEOPLE_INTERVAL_MS = 1000
"""Interval of the checks for people who have left a shared design."""


def page(studio: Studio, attend: Attend | None = None) -> pn.viewable.Viewable:
    """Build the page of a tab. Its link names a design of the library, an example, a run or a lesson.

    In a workshop, ``attend`` returns the bar that connects the page with the class.
    """
    document = prepare_page()
    draft = _open_draft(studio, document)
    draft.run = draft.run or page_argument("run")

    def claim() -> None:
        draft.claim()
        _note_opened(studio, draft)
        _set_link(draft.query, keeps_start=True)

    pn.state.onload(claim)  # not before the page is loaded, which makes the tab visible
    pn.state.on_session_destroyed(lambda context: draft.release())
    widgets = Widgets(
        draft.session,
        studio,
        first_run=draft.run,
        on_show_run=draft.save_shown_run,
        on_show_lesson=draft.save_shown_lesson,
        edit_log=draft.edit_log,
        tab=draft,
    )
    if draft.lesson:
        widgets.lessons.resume(OpenLesson(*draft.lesson))
    if page_argument("new") == "experts":
        widgets.show_experts()
    if lesson := page_argument("lesson"):
        widgets.lessons.open(lesson)
    pn.state.on_session_destroyed(lambda context: widgets.stop_jobs())
    call_periodically(widgets.runs.refresh, int(REFRESH_INTERVAL_S * 1000))
    call_periodically(draft.session.follow, PEOPLE_INTERVAL_MS)  # to notice closed tabs of other people
    return widgets.layout(attend(widgets, draft) if attend else None)


def _note_opened(studio: Studio, draft: Draft) -> None:
    """Add the lesson, the user's own design, or the example or run behind the page to the recently opened items."""
    if lesson := page_argument("lesson"):
        studio.library.note_opened("lesson", lesson)
    elif draft.is_own and studio.library.has(draft.name):
        studio.library.note_opened("draft", draft.name)
    elif start := next((each for each in ("example", "run") if page_argument(each)), ""):
        studio.library.note_opened(start, page_argument(start))


def _open_draft(studio: Studio, document: Document) -> Draft:
    """Open the design that the page's link names; the link of a design that is no longer shared opens a new design."""

    def make(requested: str, key: str) -> Draft:
        return Draft(
            studio,
            requested,
            _is_shown(document),
            page_callback_scheduler(document),
            start=_starting_design(studio),
            on_move=_set_link,
            key=key,
        )

    try:
        return make(page_argument("draft"), page_argument("shared"))
    except InputError as error:
        draft = make("", "")
        draft.session.notice = str(error)
        return draft


def _starting_design(studio: Studio) -> Design | None:
    """Return the design of the example, run or new design that the page's link names; None if it names none."""
    name, run, new = (page_argument(each) for each in STARTS)
    with suppress(MeshwaveError):
        if name:
            return load_design(example(name))
        if run:
            return read_launched_design(Run(studio.record, run).folder)
        if new in NEW_DESIGNS:
            return load_design(example(NEW_DESIGNS[new])).model_copy(update={"name": f"New {new} design"})
    return None


def warm_up(studio: Studio, design: Design) -> None:
    """Build a page that is not shown: the first page of a process takes a third of a second longer than the next."""
    widgets = Widgets(Session(design), studio)
    widgets.layout().get_root()
    widgets.stop_jobs()


def _is_shown(document: Document) -> IsShown:
    """Return a function that returns True while a browser is connected to the page."""

    def is_shown() -> bool:
        session = getattr(document.session_context, "session", None)
        return session is not None and session.connection_count > 0

    return is_shown


def _set_link(query: str, *, keeps_start: bool = False) -> None:
    """Set the tab's link to one that opens the design again, without the token.

    The link keeps the example or run that the design starts from, since it is saved with its first edit only.
    """
    if pn.state.location is not None:
        kept = [f"{name}={page_argument(name)}&" for name in STARTS if keeps_start and page_argument(name)]
        pn.state.location.search = f"?{''.join(kept)}{query}"
