"""Launches from the page: the launch targets that a tab offers, and which runs it may start and cancel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from meshwave.engine.document import Design
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import Trace
from meshwave.engine.lessons.launch_limits import LaunchLimits, check_launch, overdue_runs
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Entry, Launcher, Record, Run
from meshwave.engine.runs.dry_run import limit_steps
from meshwave.engine.runs.imported_trace import enter_trace
from meshwave.engine.runs.launchers import default_launcher, open_run, specify_run, watch_queues
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.run_folder import RunSpec, process_count
from meshwave.engine.runs.targets import Target, open_target, training_targets

MACHINE_TARGETS = ("local", "threads")
"""Targets on this machine: one for training and dry runs, one for dry runs of designs with many devices."""


class Launches:
    """The launchers that all tabs share; each is opened when it is first used."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.names: Callable[[], Mapping[str, str]] = dict
        """Function that returns the names of the people of a workshop by their IDs."""
        self._launchers: dict[str, Launcher] = {}

    def targets(self) -> list[Target]:
        """Return the launch targets of the menu."""
        return training_targets()

    def open(self, name: str) -> Launcher:
        """Return the launcher of a target.

        Raises:
            Refusal: there is no such target, or it is not offered.
        """
        if name not in self._launchers:
            self._launchers[name] = open_target(self.record, name)
        return self._launchers[name]

    def submit(self, launcher: Launcher, spec: RunSpec, key: str | None, data: Path | None = None) -> Run:
        """Launch or queue a run; see :meth:`Launcher.submit`."""
        return launcher.submit(spec, data=data, key=key)

    def dry_run(self, design: Design) -> Run:
        """Launch or queue a dry run of a design on this machine."""
        prediction = predict(limit_steps(design))
        launcher = self.open(default_launcher(design, REHEARSAL))
        return self.submit(launcher, specify_run(prediction, REHEARSAL), None)

    def enter_trace(self, prediction: Prediction, trace: Trace) -> Run:
        """Enter a trace of another tool as a run of a predicted design.

        Raises:
            Refusal: the trace has other computations than the program of the design.
        """
        return Run(self.record, enter_trace(self.record, prediction, trace).id)

    def cancel(self, entry: Entry, why: str = "") -> None:
        """Cancel a run, also one that another process launched.

        Raises:
            Refusal: the tab is not allowed to cancel the run.
        """
        known = self._launchers.get(entry.launcher)
        (Run(self.record, entry.id, known) if known else open_run(self.record, entry.id)).cancel(why)

    def check_ownership(self, entry: Entry) -> None:
        """Check that the tab may change a run.

        Raises:
            Refusal: somebody else launched it.
        """

    def watch_queues(self) -> None:
        """Start the queued runs of all targets in their order, each as soon as it can run."""
        watch_queues(self.record, self.open)

    def cancel_overdue(self, limits: LaunchLimits) -> None:
        """Cancel the runs of learners that take too long."""
        for entry in overdue_runs(limits, self.record, time.time()):
            self.cancel(entry, f"the limit of the workshop is {limits.minutes:g} min")

    def close(self) -> None:
        """Close the launchers, which ends their runs."""
        for launcher in self._launchers.values():
            launcher.close()


class LearnerLaunches(Launches):
    """The launches of one learner of a workshop: on this machine and within limits."""

    def __init__(self, shared: Launches, person: str, limits: LaunchLimits) -> None:
        super().__init__(shared.record)
        self.names = shared.names
        self._shared, self._person, self._limits = shared, person, limits

    def targets(self) -> list[Target]:
        """Return the launch targets of this machine."""
        return [target for target in self._shared.targets() if target.name in MACHINE_TARGETS]

    def open(self, name: str) -> Launcher:
        """Return the launcher of a target of this machine.

        Raises:
            Refusal: the target is not this machine.
        """
        if name not in MACHINE_TARGETS:
            raise Refusal("workshop_target", {"target": name})
        return self._shared.open(name)

    def submit(self, launcher: Launcher, spec: RunSpec, key: str | None, data: Path | None = None) -> Run:
        """Launch or queue a run as the learner.

        Raises:
            Refusal: it exceeds the limits of the workshop.
        """
        check_launch(self._limits, self.record, self._person, process_count(spec.drawn))
        return launcher.submit(spec, data=data, key=key, person=self._person)

    def enter_trace(self, prediction: Prediction, trace: Trace) -> Run:
        """Enter a trace of another tool as a run of the learner.

        Raises:
            Refusal: it exceeds the limits of the workshop, or has other computations than the program of the design.
        """
        check_launch(self._limits, self.record, self._person, process_count(prediction.design))
        return Run(self.record, enter_trace(self.record, prediction, trace, self._person).id)

    def cancel(self, entry: Entry, why: str = "") -> None:
        """Cancel a run of the learner.

        Raises:
            Refusal: somebody else launched it.
        """
        self.check_ownership(entry)
        self._shared.cancel(entry, why)

    def check_ownership(self, entry: Entry) -> None:
        """Check that the learner launched a run.

        Raises:
            Refusal: somebody else launched it.
        """
        if entry.person != self._person:
            raise Refusal("workshop_other_run", {})

    def watch_queues(self) -> None:
        """Start the queued runs of all learners."""
        self._shared.watch_queues()
