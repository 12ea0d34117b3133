"""Launchers that follow each run in a thread of the process that launched it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import write_private
from meshwave.engine.messages import render
from meshwave.engine.runs.dry_run import Stopped
from meshwave.engine.runs.launchers._owning import OwningLauncher
from meshwave.engine.runs.outcome import Verdict, cancel_reason, cancelled_verdict
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record
from meshwave.engine.runs.run_entry import State
from meshwave.engine.runs.run_folder import Bundle

CLOSING_S = 1.0
"""Maximum time, in seconds, for which closing a launcher waits for its runs to end."""
LOOK_S = 0.05
"""Interval, in seconds, between two checks of whether a run is to be cancelled."""


@dataclass
class _ActiveRun:
    """Run that a thread follows."""

    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    why: str = ""  # reason of the cancellation


class ThreadedLauncher(OwningLauncher):
    """Launcher that follows each run in a thread; the runs end with the process that created it."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._lock = threading.Lock()
        self._own: dict[str, _ActiveRun] = {}

    @abstractmethod
    def run_steps(self, bundle: Bundle, stop: threading.Event) -> Verdict:
        """Run all steps and return the verdict; called in a thread of its own.

        Raises:
            Stopped: ``stop`` was set because the run is cancelled.
        """

    def launch(self, bundle: Bundle) -> None:
        active = _ActiveRun()
        active.thread = threading.Thread(target=self._follow, args=(bundle, active), daemon=True, name=bundle.run)
        with self._lock:
            self._own[bundle.run] = active
        self.record.change_state(bundle.run, State.RUNNING)
        active.thread.start()

    def end_run(self, run: Run, why: str) -> None:
        if not run.state.is_over:
            with suppress(OSError):  # a run whose folder was removed ends as well
                write_private(run.folder / "cancel", why)

    def close(self) -> None:
        super().close()
        with self._lock:
            own = list(self._own.values())
        for active in own:
            active.why = render("meshwave_closed", {})
            active.stop.set()
        for active in own:
            if active.thread is not None:
                active.thread.join(CLOSING_S)

    def _follow(self, bundle: Bundle, active: _ActiveRun) -> None:
        """Run all steps, and record the verdict."""
        try:
            with _FolderWatch(bundle, active.stop):
                verdict = self.run_steps(bundle, active.stop)
        except Stopped:
            verdict = cancelled_verdict(
                Run(self.record, bundle.run, self).progress, active.why or cancel_reason(bundle.folder)
            )
        except Exception as error:
            reason = str(error) if isinstance(error, MeshwaveError) else repr(error)
            verdict = Verdict(State.FAILED, "run_failed", {"reason": reason})
        with self._lock:
            del self._own[bundle.run]
        self.finish_or_restart(bundle, verdict)


class _FolderWatch:
    """Watcher that sets ``stop`` when the run folder contains a file named ``cancel``, or is removed."""

    def __init__(self, bundle: Bundle, stop: threading.Event) -> None:
        self._folder, self._stop = bundle.folder, stop
        self._done = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="watch-folder").start()

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            if (self._folder / "cancel").exists() or not self._folder.exists():
                self._stop.set()
                return
