"""Launchers that follow each run in a thread of the process that launched it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.files import write_private
from meshwave.engine.runs.dry_run import Stopped
from meshwave.engine.runs.launchers._base import OwningLauncher
from meshwave.engine.runs.outcome import Verdict, cancelled
from meshwave.engine.runs.run import Run
from meshwave.engine.runs.run_database import Record, State
from meshwave.engine.runs.run_folder import Bundle

CLOSING_S = 1.0
"""How long a launcher that is closed waits for its runs to be ended and written down."""
LOOK_S = 0.05
"""How often it is looked whether somebody wishes a run to end."""


@dataclass
class _Under:
    """A run that is under way."""

    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    why: str = ""  # it is to end


class ThreadedLauncher(OwningLauncher):
    """Sees each run through in a thread. The runs belong to the process that holds this object, and end with it."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._lock = threading.Lock()
        self._own: dict[str, _Under] = {}

    @abstractmethod
    def see_through(self, bundle: Bundle, stop: threading.Event) -> Verdict:
        """Run all steps and return how they ended; called in a thread.

        Raises:
            Stopped: ``stop`` was set, which asks it to end.
        """

    def launch(self, bundle: Bundle) -> None:
        under = _Under()
        under.thread = threading.Thread(target=self._follow, args=(bundle, under), daemon=True, name=bundle.run)
        with self._lock:
            self._own[bundle.run] = under
        self.record.move(bundle.run, State.RUNNING)
        under.thread.start()

    def cancel(self, run: Run) -> None:
        if not run.state.is_over:
            with suppress(OSError):  # without its folder it ends as well
                write_private(run.folder / "cancel", "")

    def close(self) -> None:
        with self._lock:
            own = list(self._own.values())
        for under in own:
            under.why = "Meshwave was closed"
            under.stop.set()
        for under in own:
            if under.thread is not None:
                under.thread.join(CLOSING_S)

    def _follow(self, bundle: Bundle, under: _Under) -> None:
        """See a run through, and write down how it ended."""
        try:
            with _watched(bundle, under):
                verdict = self.see_through(bundle, under.stop)
        except Stopped:
            progress = Run(self.record, bundle.run, self).progress
            verdict = Verdict(State.CANCELLED, cancelled(f"after {progress}", under.why))
        except Exception as error:
            said = str(error) if isinstance(error, MeshwaveError) else repr(error)
            verdict = Verdict(State.FAILED, f"the run went wrong: {said}")
        with self._lock:
            del self._own[bundle.run]
        self.settle(bundle, verdict)


class _watched:
    """Meanwhile a file called ``cancel`` in the folder, or the folder's end, ends the run."""

    def __init__(self, bundle: Bundle, under: _Under) -> None:
        self._folder, self._under = bundle.folder, under
        self._done = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="watch-folder").start()

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            if (self._folder / "cancel").exists() or not self._folder.exists():
                self._under.stop.set()
                return
