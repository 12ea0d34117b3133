"""What all tabs of one designer share, and where each keeps its design."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.jobs import Later
from meshwave.designer.state.predictions import Predictions
from meshwave.engine.document import Design, parse_design, save_design
from meshwave.engine.errors import InputError, MeshwaveError, RunError
from meshwave.engine.files import home, write_private
from meshwave.engine.runs import Record, reconcile
from meshwave.engine.runs.launchers import Launcher
from meshwave.engine.runs.targets import open_target

_DRAFT = re.compile(r"[0-9a-f]{12}")
IsShown = Callable[[], bool]


DRAFTS_KEPT_S = 30 * 24 * 3600.0


class Studio:
    """What all tabs of one designer share: the launcher, the record of runs, and drafts on disk."""

    def __init__(self, first: Design) -> None:
        """Start with ``first`` in every new tab.

        Raises:
            RunError: the folder of drafts and runs cannot be used.
        """
        self._first = first
        self._drafts = home() / "drafts"
        self._open: dict[str, IsShown] = {}
        self.edits = 0
        """Changes of a design in all tabs so far."""
        try:
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot keep drafts in {self._drafts}: {error.strerror}; set MESHWAVE_HOME to a folder that you may write"
            raise RunError(message) from None
        self._forget_old_drafts()
        self.record = Record()
        reconcile(self.record)
        self._launchers: dict[str, Launcher] = {}
        self.launcher = self.open_launcher("local")
        self.launcher.warm()
        self.calibrating = BackgroundCalibration()
        self.predictions = Predictions()

    def _forget_old_drafts(self) -> None:
        for path in (path for kind in ("json", "run", "lesson") for path in self._drafts.glob(f"*.{kind}")):
            with suppress(OSError):  # one that stays does no harm
                if path.stat().st_mtime < time.time() - DRAFTS_KEPT_S:
                    path.unlink()

    def open_launcher(self, name: str) -> Launcher:
        """The launcher of that name, one for all tabs."""
        if name not in self._launchers:
            self._launchers[name] = open_target(self.record, name)
        return self._launchers[name]

    def open(self, draft: str) -> Design:
        """The design that a tab had open before it was reloaded, else the first one."""
        path = self._path(draft)
        try:
            return parse_design(path.read_bytes(), draft=True) if path.exists() else self._first
        except (MeshwaveError, OSError):
            return self._first

    def claim(self, draft: str, is_shown: IsShown) -> str:
        """The draft that a tab writes from now on: ``draft``, or a new one where another tab shows that.

        A tab that was duplicated has the same link as the first; a tab that was reloaded has it
        too, but nobody looks at what it was before.
        """
        other = self._open.get(draft)
        if other is not None and other():
            draft = _new_draft()
        self._open[draft] = is_shown
        return draft

    def release(self, draft: str, is_shown: IsShown) -> None:
        """A tab is gone for good."""
        if self._open.get(draft) is is_shown:
            del self._open[draft]

    def keep(self, draft: str, design: Design) -> None:
        """Write a draft, so that neither a reload nor a crash loses it.

        Raises:
            InputError: it cannot be written, as where the disk is full.
        """
        save_design(design, self._path(draft))

    def add_draft(self, design: Design) -> str:
        """Keep a design as a new draft and return its name, which a link can hold."""
        draft = _new_draft()
        self.keep(draft, design)
        return draft

    def shown_run(self, draft: str) -> str:
        """The run that a tab shows, since it was launched or chosen there; "" for none."""
        try:
            return self._path(draft, "run").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def show_run(self, draft: str, run: str) -> None:
        """Remember which run a tab shows."""
        with suppress(OSError):  # then a reload shows none; it is in the list
            write_private(self._path(draft, "run"), run)

    def shown_lesson(self, draft: str) -> tuple[str, Design] | None:
        """Return the lesson that a tab shows, and the design that was open before it; None for none."""
        try:
            lesson, before = self._path(draft, "lesson").read_text("utf-8").split()
        except (OSError, ValueError):
            return None
        return (lesson, self.open(before)) if _DRAFT.fullmatch(before) else None

    def show_lesson(self, draft: str, lesson: str, before: Design) -> None:
        """Remember which lesson a tab shows, and keep the design that was open before it."""
        with suppress(OSError, InputError):  # then a reload shows none
            write_private(self._path(draft, "lesson"), f"{lesson} {self.add_draft(before)}")

    def end_lesson(self, draft: str) -> None:
        """Forget which lesson a tab shows; the design from before stays among the drafts."""
        with suppress(OSError):
            self._path(draft, "lesson").unlink(missing_ok=True)

    def _path(self, draft: str, kind: str = "json") -> Path:
        return self._drafts / f"{draft}.{kind}"

    def close(self) -> None:
        self.calibrating.close()
        for launcher in self._launchers.values():
            launcher.close()
        self.record.close()


class Draft:
    """Where one tab keeps its design: a file, named in the tab's link."""

    def __init__(self, studio: Studio, given: str, is_shown: IsShown, later: Later | None = None) -> None:
        self._studio, self._is_shown = studio, is_shown
        self._given = given if _DRAFT.fullmatch(given) else ""
        self.name = self._given or _new_draft()
        self.session = Session(studio.open(self.name), later, studio.predictions)
        self.session.param.watch(lambda *_: self._follow_edit(), "design")
        self.run = studio.shown_run(self.name)
        self.lesson = studio.shown_lesson(self.name)

    def shown(self) -> str:
        """The page stands and a page that it replaced is gone: the name of the draft from here on."""
        self.name = self._studio.claim(self.name, self._is_shown)
        if self._given and self.name != self._given:
            self.keep()  # a duplicate starts with what the first had
            self.show_run(self.run)
            if self.lesson is not None:
                self.show_lesson(self.lesson)
        return self.name

    def show_run(self, run: str) -> None:
        self.run = run
        self._studio.show_run(self.name, run)

    def show_lesson(self, lesson: tuple[str, Design] | None) -> None:
        """Remember the lesson of the tab and the design from before it; None for none."""
        self.lesson = lesson
        if lesson is None:
            self._studio.end_lesson(self.name)
        else:
            self._studio.show_lesson(self.name, *lesson)

    def gone(self) -> None:
        self._studio.release(self.name, self._is_shown)

    def _follow_edit(self) -> None:
        self._studio.edits += 1
        self.keep()

    def keep(self) -> None:
        """Write the design; an edit is not refused for it, but the page says what is at stake."""
        try:
            self._studio.keep(self.name, self.session.design)
            self.session.notice = ""
        except InputError as error:
            self.session.notice = f"A reload would lose your last edits: {error}"


def _new_draft() -> str:
    return secrets.token_hex(6)
