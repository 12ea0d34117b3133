"""The content of the page's timeline: the open design, the inside of one of its blocks, or a run of another design."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

from meshwave.designer.pages.timeline_layers import find_blocked_order, pinned_prediction, run_layers, timeline_layers
from meshwave.designer.state.design_session import Session, progress_text
from meshwave.designer.views.block_layers import block_layers, measured_block
from meshwave.designer.views.followed_runs import RunTimeline
from meshwave.designer.views.timeline import Pin, TimelineChart
from meshwave.designer.views.timeline_columns import Layer
from meshwave.engine.errors import InputError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.blocked_order import BlockedOrder
from meshwave.engine.runs import Run
from meshwave.engine.units import format_count

SOURCES = ["prediction", "problems", "pinned", "measured", "slowed"]
"""Parameters of the session that the timeline shows."""


class TimelineContent:
    """Keeps a timeline up to date with the open design, with an open block, or with the run that replaces it."""

    def __init__(
        self, session: Session, chart: TimelineChart, find_measuring_run: Callable[[Prediction], Run | None]
    ) -> None:
        """Follow a session.

        Args:
            session: the open design.
            chart: the timeline.
            find_measuring_run: returns the run that measured a predicted step; None if there is none.
        """
        self._session, self._chart, self._find_measuring_run = session, chart, find_measuring_run
        self._block: Pin | None = None  # the block whose inside is shown
        self._run: RunTimeline | None = None  # shown instead of the open design
        self._blocked: tuple[Any, Any, BlockedOrder | None] | None = None  # of a design and its problems
        self._sources: tuple[Any, ...] = ()  # the values from which the current layers were made
        session.param.watch(lambda *_: self.refresh(), SOURCES)
        chart.param.watch(lambda *_: self.refresh(), ["show_links", "show_device_links"])

    def refresh(self) -> None:
        """Show the current state."""
        stale = self._stale_reason
        inner = self._block_layers() if self._run is None else run_layers(self._run)
        if inner is not None:
            self._sources = ()
            self._chart.show(inner[0], stale if self._run is None else "", inner[1])
        elif self._are_layers_current():
            self._chart.stale = stale
        else:
            self._chart.show(self._layers(), stale)

    def refresh_stale_reason(self) -> None:
        """Update the reason why the timeline shows an earlier design; the timeline stays unchanged."""
        self._chart.stale = self._stale_reason

    def show_run(self, run: RunTimeline | None) -> None:
        """Show the timeline of a run of another design; None shows the open design again."""
        self._block, self._run = None, run
        self.refresh()

    def show_block(self, block: Pin | None) -> None:
        """Show the inside of a block; None shows the whole step again.

        Raises:
            InputError: the block cannot be shown.
        """
        if block is not None:
            block_layers(pinned_prediction(self._session, block), block.rank, block.action)
        self._block = block
        self.refresh()

    def show_trial_step(self, tried: Prediction | None) -> None:
        """Show the step of an edit that a gesture tries; None shows the current step again."""
        if tried is None:
            self.refresh()
        elif self._block is None:
            self._sources = ()
            self._chart.show(self._layers(tried))

    @property
    def _stale_reason(self) -> str:
        """Return the reason why the timeline shows an earlier design; empty if it shows the current one."""
        session = self._session
        if session.is_computing and not session.progress:
            return "Computing" if session.prediction is None else ""
        if not (session.errors and session.is_stale):
            return ""
        if session.progress:
            shown = "No timeline yet" if session.prediction is None else "Showing the last valid design"
            return f"{progress_text(session.progress)}. {shown}"
        number, first = len(session.errors), str(session.errors[0])
        if session.prediction is None:
            return f"No timeline: the design has {format_count(number, 'problem')}. {first}"
        return first

    def _are_layers_current(self) -> bool:
        """Return True if the timeline shows the current layers, and mark them as shown."""
        session, chart, before = self._session, self._chart, self._sources
        self._sources = (
            session.prediction,
            session.measured,
            session.slowed,
            *session.pinned,
            chart.show_links,
            chart.show_device_links,
            self._blocked_order,
        )
        return len(before) == len(self._sources) and all(map(is_, before, self._sources))

    def _layers(self, tried: Prediction | None = None) -> list[Layer]:
        chart = self._chart
        links, devices = chart.show_links, chart.show_device_links
        return timeline_layers(self._session, tried, links=links, devices=devices, blocked=self._blocked_order)

    @property
    def _blocked_order(self) -> BlockedOrder | None:
        """The order of the open design, if it has a deadlock."""
        design, problems = self._session.design, self._session.problems
        if self._blocked is None or self._blocked[0] is not design or self._blocked[1] is not problems:
            self._blocked = design, problems, find_blocked_order(self._session)
        return self._blocked[2]

    def _block_layers(self) -> tuple[list[Layer], list[str]] | None:
        """Return the layers inside the open block; None if no block is open or the design no longer has it."""
        if self._block is None:
            return None
        rank, action = self._block.rank, self._block.action
        try:
            prediction = pinned_prediction(self._session, self._block)
            run = self._find_measuring_run(prediction) if not self._session.is_stale else None
            measured = measured_block(run, prediction, rank, action) if run else None
            return block_layers(prediction, rank, action, measured)
        except InputError:
            self._block = None
            return None
