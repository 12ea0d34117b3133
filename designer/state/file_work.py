"""Processing of the files that a page opens or exports, one file at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from meshwave.designer.state.job_processes import Done, Failed, JobUpdate
from meshwave.designer.state.jobs import Job, Later, Listener
from meshwave.engine.errors import InputError
from meshwave.engine.findings import Refusal

T = TypeVar("T")


class FileWork:
    """Processes a file at once or by a job; a new file stops the job of the previous one."""

    def __init__(self, later: Later | None, show_notice: Callable[[str], object]) -> None:
        """Create the work of a page.

        Args:
            later: schedules a callback in the page's event loop; without it, all files are processed at once.
            show_notice: shows a notice to the user; an empty one removes it.
        """
        self._later, self._show_notice = later, show_notice
        self._job: Listener | None = None

    def process(self, words: str, work: Callable[[], T], then: Callable[[T], None], *, at_once: bool) -> None:
        """Process a file and call ``then`` with the result: ``at_once``, or by a job while the page shows ``words``."""
        self.stop()
        if at_once or self._later is None:
            then(work())
            return
        self._show_notice(words)
        self._job = Job(work, words).add_listener(self._later, partial(self._receive_update, then))

    def _receive_update(self, then: Callable[[T], None], update: JobUpdate) -> None:
        if not isinstance(update, Done | Failed):
            return
        self.stop()
        try:
            if isinstance(update, Failed):
                raise Refusal("error", {"reason": update.reason})
            then(update.value)
        except InputError as error:
            self._show_notice(str(error))

    def stop(self) -> None:
        """Stop the job, if there is one, and remove its notice."""
        if self._job is not None:
            self._job.stop()
            self._job = None
            self._show_notice("")
