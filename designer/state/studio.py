"""State shared by all tabs of one designer, and the drafts in which tabs save their designs."""

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
from meshwave.engine.runs.launchers import Launcher, watch_queues
from meshwave.engine.runs.targets import open_target

_DRAFT = re.compile(r"[0-9a-f]{12}")
IsShown = Callable[[], bool]


DRAFTS_KEPT_S = 30 * 24 * 3600.0
"""Age at which the draft of a closed tab is deleted."""


class Studio:
    """State shared by all tabs of one designer: launchers, the record of runs, drafts on disk, predictions."""

    def __init__(self, first: Design) -> None:
        """Open the folder of drafts and the record of runs; new tabs show ``first``.

        Raises:
            RunError: the folder of drafts and runs cannot be used.
        """
        self._first = first
        self._drafts = home() / "drafts"
        self._open: dict[str, IsShown] = {}
        self.edits = 0
        """Number of edits in all tabs."""
        try:
            self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot save drafts in {self._drafts}: {error.strerror}; set MESHWAVE_HOME to a writable folder"
            raise RunError(message) from None
        self._delete_old_drafts()
        self.record = Record()
        reconcile(self.record)
        self._launchers: dict[str, Launcher] = {}
        self.launcher = self.open_launcher("local")
        self.launcher.warm()
        watch_queues(self.record, self.open_launcher)
        self.calibration = BackgroundCalibration()
        self.predictions = Predictions()

    def _delete_old_drafts(self) -> None:
        for path in (path for kind in ("json", "run", "lesson") for path in self._drafts.glob(f"*.{kind}")):
            with suppress(OSError):  # a file that remains does no harm
                if path.stat().st_mtime < time.time() - DRAFTS_KEPT_S:
                    path.unlink()

    def open_launcher(self, name: str) -> Launcher:
        """Return the launcher of that name, which all tabs share."""
        if name not in self._launchers:
            self._launchers[name] = open_target(self.record, name)
        return self._launchers[name]

    def read_draft(self, draft: str) -> Design:
        """Return the design that a tab saved, or the first one if there is none."""
        path = self._path(draft)
        try:
            return parse_design(path.read_bytes(), draft=True) if path.exists() else self._first
        except (MeshwaveError, OSError):
            return self._first

    def claim_draft(self, draft: str, is_shown: IsShown) -> str:
        """Reserve ``draft`` for a tab and return it, or return a new draft if another visible tab has reserved it.

        A duplicated tab has the same link as the original. A reloaded tab has it too, but its previous page is no
        longer visible.
        """
        other = self._open.get(draft)
        if other is not None and other():
            draft = _new_draft()
        self._open[draft] = is_shown
        return draft

    def release_draft(self, draft: str, is_shown: IsShown) -> None:
        """Cancel the reservation of a closed tab."""
        if self._open.get(draft) is is_shown:
            del self._open[draft]

    def save(self, draft: str, design: Design) -> None:
        """Write the design of a draft, so that it survives a reload or a crash.

        Raises:
            InputError: the file cannot be written, for example because the disk is full.
        """
        save_design(design, self._path(draft))

    def add_draft(self, design: Design) -> str:
        """Save a design as a new draft and return its name, for a link."""
        draft = _new_draft()
        self.save(draft, design)
        return draft

    def read_shown_run(self, draft: str) -> str:
        """Return the ID of the run that a tab shows; empty for none."""
        try:
            return self._path(draft, "run").read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def show_run(self, draft: str, run: str) -> None:
        """Save which run a tab shows."""
        with suppress(OSError):  # without the file a reload shows no run, and the list still has it
            write_private(self._path(draft, "run"), run)

    def read_shown_lesson(self, draft: str) -> tuple[str, Design] | None:
        """Return the lesson that a tab shows, and the design that was open before it; None for none."""
        try:
            lesson, before = self._path(draft, "lesson").read_text("utf-8").split()
        except (OSError, ValueError):
            return None
        return (lesson, self.read_draft(before)) if _DRAFT.fullmatch(before) else None

    def show_lesson(self, draft: str, lesson: str, before: Design) -> None:
        """Save which lesson a tab shows, and the design that was open before it."""
        with suppress(OSError, InputError):  # without the file a reload shows no lesson
            write_private(self._path(draft, "lesson"), f"{lesson} {self.add_draft(before)}")

    def end_lesson(self, draft: str) -> None:
        """Save that a tab shows no lesson; the design from before it remains a draft."""
        with suppress(OSError):
            self._path(draft, "lesson").unlink(missing_ok=True)

    def _path(self, draft: str, kind: str = "json") -> Path:
        return self._drafts / f"{draft}.{kind}"

    def close(self) -> None:
        """Stop a calibration, the launchers and the record of runs."""
        self.calibration.close()
        for launcher in self._launchers.values():
            launcher.close()
        self.record.close()


class Draft:
    """The file in which one tab saves its design; the tab's link names it."""

    def __init__(self, studio: Studio, requested: str, is_shown: IsShown, later: Later | None = None) -> None:
        self._studio, self._is_shown = studio, is_shown
        self._requested = requested if _DRAFT.fullmatch(requested) else ""
        self.name = self._requested or _new_draft()
        self.session = Session(studio.read_draft(self.name), later, studio.predictions)
        self.session.param.watch(lambda *_: self._follow_edit(), "design")
        self.run = studio.read_shown_run(self.name)
        self.lesson = studio.read_shown_lesson(self.name)

    def claim(self) -> str:
        """Reserve the draft once the page is loaded, and return its name."""
        self.name = self._studio.claim_draft(self.name, self._is_shown)
        if self._requested and self.name != self._requested:
            self.save()  # a duplicate tab starts with the design of the original
            self.show_run(self.run)
            if self.lesson is not None:
                self.show_lesson(self.lesson)
        return self.name

    def show_run(self, run: str) -> None:
        """Save which run the tab shows."""
        self.run = run
        self._studio.show_run(self.name, run)

    def show_lesson(self, lesson: tuple[str, Design] | None) -> None:
        """Save the lesson that the tab shows and the design from before it; None for none."""
        self.lesson = lesson
        if lesson is None:
            self._studio.end_lesson(self.name)
        else:
            self._studio.show_lesson(self.name, *lesson)

    def release(self) -> None:
        """Cancel the reservation of the draft."""
        self._studio.release_draft(self.name, self._is_shown)

    def _follow_edit(self) -> None:
        self._studio.edits += 1
        self.save()

    def save(self) -> None:
        """Write the design; if that fails, accept the edit and notify the user."""
        try:
            self._studio.save(self.name, self.session.design)
            self.session.notice = ""
        except InputError as error:
            self.session.notice = f"The latest edits are not saved; reloading the page would discard them: {error}"


def _new_draft() -> str:
    return secrets.token_hex(6)
