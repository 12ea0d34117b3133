"""The Log tab: the log lines of each process of the shown run; the Python side of ``static/panels/run_log.js``."""

from __future__ import annotations

from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.followed_runs import FollowedRuns
from meshwave.designer.views.runs import followed_runs

SHOWN_LINES = 60
"""Largest number of lines of each process while all processes are shown."""
MOST_LINES = 1000
"""Largest number of lines of one process, or of a search."""


@widget("panels/run_log.js", "panels/dock.css")
class RunLog(Canvas):
    """Widget with the last log lines of one process or of all processes, or with the lines that contain a text."""

    run = param.String(default="", doc="ID of the shown run; empty for none.")
    processes = param.Integer(default=0, doc="Number of processes of the run.")
    process: Any = param.Integer(
        default=None, allow_None=True, doc="Number of the process that is shown; None for all."
    )
    lines = param.String(default=PlainData([]), doc="Process and text of each line.")

    def __init__(self, followed: FollowedRuns, **params: Any) -> None:
        super().__init__(**params)
        self._followed, self._query = followed, ""
        followed.param.watch(lambda *_: self._show_run(), "run")
        followed.param.watch(lambda *_: self._read_lines(), "log_bytes")
        self._show_run()

    def _show_run(self) -> None:
        shown = self._followed.shown
        if (shown.run.id if shown else "") == self.run:
            return
        entry = shown.run.entry if shown else None
        self.param.update(run=entry.id if entry else "", processes=entry.processes if entry else 0, process=None)
        self._read_lines()

    def _read_lines(self) -> None:
        shown = self._followed.shown
        if shown is None:
            self.lines = PlainData([])
            return
        is_whole = self.process is None and not self._query
        found = shown.run.log(SHOWN_LINES if is_whole else MOST_LINES, self.process, self._query)
        found.sort(key=lambda line: line.process == 0)  # process 0, which logs the steps, comes last
        self.lines = PlainData([list(line) for line in found[-MOST_LINES:]])

    def _on_choose(self, process: int | None = None) -> None:
        self.process = process
        self._read_lines()

    def _on_search(self, query: str) -> None:
        self._query = query
        self._read_lines()


@views.register("log")
class LogView(View):
    """Log lines of each process of the shown run."""

    title: ClassVar = "Log"
    place: ClassVar = "bottom"
    order: ClassVar = 4

    def make_pane(self) -> RunLog:
        """Build the log."""
        return RunLog(followed_runs(self.page), **FILL)
