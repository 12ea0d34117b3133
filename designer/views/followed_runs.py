"""The runs that a page follows: the shown run, the run in progress, and the runs that are compared with the shown one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import param

from meshwave.designer.state.design_session import Session
from meshwave.designer.views.run_comparison import error_history
from meshwave.designer.views.run_data import SHOWN_RUNS, FollowedRun, RunCurves
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs import Entry, Record, Run
from meshwave.engine.runs.accuracy import MeshMemory
from meshwave.engine.runs.run_comparison import ErrorRange, design_history, error_range

MOST_COMPARED = 7
"""Most runs that are compared with the shown one: together they have the colours of the palette."""


class RunTimeline(NamedTuple):
    """The measured timeline of a run, and the prediction of its design; None if it can no longer be predicted."""

    name: str
    measured: Timeline
    prediction: Prediction | None


class FollowedRuns(param.Parameterized):
    """The runs that a page follows. They are polled, because other processes can start runs, too."""

    run = param.Dict(default={}, doc="Summary of the shown run; empty for none.")
    curves = param.List(default=[], item_type=RunCurves, doc="Curves of the shown run and of those compared with it.")
    comparison = param.Dict(
        default={},
        doc="Comparison with the prediction as comparison_data() returns it, and the design of the prediction.",
    )
    measured = param.Dict(
        default={},
        doc="For a run with a measured timeline: whether it is of the open design, is overlaid, and can calibrate the design.",
    )
    memory = param.List(
        default=[], item_type=MeshMemory, doc="Peak memory of the shown run, if its meshes are those of the design."
    )
    own = param.Parameter(
        default=None, doc="RunTimeline of the shown run while the timeline shows it instead of the open design."
    )
    stragglers = param.List(default=[], item_type=Problem, doc="Stragglers of the shown run; see find_stragglers().")
    outcomes = param.List(default=[], doc="Prediction errors of the runs of the same design.")
    log_bytes = param.Integer(
        default=0, doc="Size of the logs of the shown run in bytes, by which new lines are noticed."
    )
    entries = param.List(default=[], item_type=Entry, doc="Entries of the latest runs.")
    status = param.Dict(default={}, doc="Status of the run in progress, or else of the shown run, for the launch bar.")
    compared = param.List(default=[], item_type=str, doc="IDs of the runs that are compared with the shown one.")

    def __init__(self, session: Session, record: Record, on_show: Callable[[str], Any], first: str) -> None:
        """Show the run ``first`` if it exists; ``on_show`` is called with the ID of each run that is shown."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record
        self.session, self._on_shown = session, on_show
        self._is_overlaid = True
        self._shows_own = False  # True if the timeline of a run of another design replaces that of the open design
        self.shown: FollowedRun | None = None
        self.live: FollowedRun | None = None  # the run in progress on this machine, whichever process started it
        self._others: list[FollowedRun] = []  # compared with the shown one
        session.param.watch(lambda *_: self._remove_overlay(), "opened")
        session.param.watch(self._follow_design, ["design", "problems"])
        with suppress(MeshwaveError):  # the run may have been deleted
            self.shown = self._follow_entry(record.get(first)) if first else None

    @property
    def active(self) -> FollowedRun | None:
        """The run that *Cancel* ends: the shown run if it is active or queued, else the run in progress."""
        return self.shown if self.shown is not None and self.shown.status.get("running") else self.live

    def find_measuring_run(self, prediction: Prediction) -> Run | None:
        """Return the run that measured the predicted step: the shown run, else the latest finished run.

        None if the shown run matches but is not overlaid.
        """
        shown = self.shown
        if shown is not None and shown.has_same_program(prediction) and not shown.is_dry_run:
            return shown.run if self._is_overlaid and shown.has_same_links(prediction.design) else None
        for entry in self.record.entries(SHOWN_RUNS):
            if not entry.is_rehearsal and entry.digest == prediction.program.digest and entry.state.is_over:
                run = FollowedRun(Run(self.record, entry.id))
                if run.computes_step_of(prediction.design) and run.has_same_links(prediction.design):
                    return run.run
        return None

    def find_errors(self, prediction: Prediction) -> ErrorRange | None:
        """Return the errors of the predictions of finished runs of a design; None if there are none."""
        return error_range(self.record, prediction.design, prediction.program.digest, self.entries)

    # ---- what is shown ----

    def open(self, run: str) -> None:
        """Show a run of the record; the timeline of a run of another design replaces that of the open design."""
        self.show(self._follow_entry(self.record.get(run)))
        self._shows_own = True
        self.refresh()

    def show(self, shown: FollowedRun | None) -> None:
        """Show a run and overlay its timeline."""
        self.shown, self._is_overlaid = shown, shown is not None
        self.session.measured = None
        self._shows_own = False
        self._others = [each for each in self._others if shown is None or each.run.id != shown.run.id]
        self.compared = [each.run.id for each in self._others]
        self.param.update(
            comparison={}, measured={}, memory=[], own=None, stragglers=[], outcomes=[], run={}, curves=[]
        )
        self._on_shown(shown.run.id if shown else "")

    def compare(self, run: str, *, on: bool) -> None:
        """Add a run to the runs whose curves are compared with the shown run, or remove it."""
        others = [each for each in self._others if each.run.id != run]
        if on:
            if len(others) >= MOST_COMPARED:
                raise Refusal("too_many_compared_runs", {"maximum": MOST_COMPARED + 1})
            others.append(self._follow_entry(self.record.get(run)))
        self._others = others
        self.compared = [each.run.id for each in others]
        self.refresh()

    def set_overlay(self, on: bool) -> None:
        """Overlay the measured timeline on the prediction, or remove it."""
        self._is_overlaid = on
        self.update_overlay()

    def _follow_design(self, *changes: param.parameterized.Event) -> None:
        self._shows_own &= all(change.name != "design" for change in changes)
        self.update_overlay()

    def show_open_design(self) -> None:
        """Show the timeline of the open design again."""
        self._shows_own = False
        self.update_overlay()

    def stop_following(self, run: str) -> None:
        """Stop following a run that was deleted."""
        self.compare(run, on=False)
        if self.shown is not None and self.shown.run.id == run:
            self.show(None)

    def _remove_overlay(self) -> None:
        """Remove the overlay after the document was replaced; a finished run of the old document is hidden."""
        self._is_overlaid = False
        shown = self.shown
        if shown is not None and shown.is_over and not shown.computes_step_of(self.session.design):
            self.show(None)
        self.update_overlay()

    # ---- updates ----

    def refresh(self) -> None:
        """Read new data of the runs; called several times per second."""
        self._follow_active(self.record.active_runs())
        for follower in dict.fromkeys((self.live, self.shown, *self._others)):
            if follower is not None:
                follower.read_new()
        if self.shown is not None:
            self._update_shown(self.shown)
        drawn = [self.shown, *self._others] if self.shown is not None else self._others
        self.curves = [each.curves for each in drawn]
        entries = self.record.entries(SHOWN_RUNS)
        if entries != self.entries:  # param would report equal entries as changed
            self.entries = entries
        self.status = self._status()

    def _status(self) -> dict[str, Any]:
        """Return the status of the run in progress, with its name if another run is shown."""
        active, shown = self.active, self.shown
        if active is None or active is shown or not active.status["running"]:
            return shown.status if shown is not None else {}
        return {**active.status, "words": f"{active.summary['name']}: {active.status['words']}"}

    def _follow_active(self, active: Sequence[Entry]) -> None:
        """Follow the run in progress on this machine, of which there is at most one."""
        if self.live is None or self.live.run.id not in {entry.id for entry in active}:
            self.live = self._follow_entry(active[-1]) if active else None

    def _follow_entry(self, entry: Entry) -> FollowedRun:
        """Return the followed run of an entry; if it is followed already, its files are not read again."""
        known = (each for each in (self.live, self.shown, *self._others) if each and each.run.id == entry.id)
        return next(known, None) or FollowedRun(Run(self.record, entry.id))

    def _update_shown(self, shown: FollowedRun) -> None:
        has_new_spans = shown.read_spans()  # before the summary, which has the typical step time
        self.param.update(run=shown.summary, log_bytes=shown.log_bytes)
        if shown.stragglers != self.stragglers:  # param takes equal findings for changed ones
            self.stragglers = shown.stragglers
        if has_new_spans or (shown.measured is not None and not self.comparison):
            self.update_overlay()

    def update_overlay(self) -> None:
        """Overlay the measured timeline on the prediction if they are of the same step, and update the comparison."""
        shown, prediction = self.shown, self.session.prediction
        measured = shown.measured if shown else None
        if shown is None or measured is None:
            self.session.measured = None
            self.param.update(comparison={}, measured={}, memory=[], own=None)
            return
        same = prediction is not None and shown.matches(prediction)
        expected = prediction if same else shown.prediction
        plays = prediction is not None and shown.has_same_program(prediction)
        self.session.measured = measured if same and self._is_overlaid else None
        other = ", with the emulated links of the run" if plays else ", for the design as it was launched"
        whose = "" if same else other
        self.param.update(
            comparison={**(shown.comparison(expected) if expected else {"rows": []}), "whose": whose},
            memory=shown.memory if same else [],
            own=None if same or not self._shows_own else RunTimeline(shown.curves.name, measured, shown.prediction),
            measured={
                "same": same,
                "overlaid": self._is_overlaid and same,
                "calibrates": measured.source == "measured",
            },
        )
        if shown.is_over and not self.outcomes:
            self.outcomes = error_history(design_history(self.record, shown.run.entry), shown.run.id)


def mirror_params(source: param.Parameterized, target: param.Parameterized, *names: str) -> None:
    """Keep parameters of ``target`` equal to those of ``source`` with the same names."""

    def copy(*_: object) -> None:
        target.param.update(**{name: getattr(source, name) for name in names})

    source.param.watch(copy, list(names))
    copy()
