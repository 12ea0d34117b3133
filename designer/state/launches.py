"""Launches from the page: the launch targets that a tab offers, and which runs it may start and cancel."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path

from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Refusal
from meshwave.engine.imports import Trace
from meshwave.engine.people.limits import MACHINE_TARGETS, Limits, check_disk, check_launch, overdue_runs
from meshwave.engine.people.people_file import OWNER, Role, User
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.runs import Entry, Launcher, Record, Run
from meshwave.engine.runs.dry_run import limit_steps
from meshwave.engine.runs.imported_trace import add_trace_run
from meshwave.engine.runs.launchers import PlaceChecks, default_launcher, open_run, specify_run
from meshwave.engine.runs.options import REHEARSAL
from meshwave.engine.runs.run_folder import RunSpec, process_count
from meshwave.engine.runs.targets import Target, find_target, training_targets

_log = logging.getLogger(__name__)


class Launches:
    """The launchers that all tabs share; each is opened when it is first used."""

    def __init__(self, record: Record, user: User = OWNER) -> None:
        self.record, self.user = record, user
        self.names: Callable[[], Mapping[str, str]] = dict
        """Function that returns the names of people by their IDs, where several people share the server."""
        self._launchers: dict[str, Launcher] = {}
        self._opened: dict[str, Target] = {}  # the targets of these launchers as they were when they were opened
        self._opening = threading.Lock()
        self._checks = PlaceChecks(record, self.open)
        self._cancelling: dict[str, threading.Thread] = {}  # the latest attempts to cancel runs, by ID
        self.failures: dict[str, str] = {}
        """Reasons why runs could not be cancelled by the server or an administrator, by ID."""

    def check_role(self, *, is_dry_run: bool) -> None:
        """Check that the role of the user allows to launch training or a dry run.

        Raises:
            Refusal: the role does not allow it.
        """
        self.user.check(Role.DESIGNER if is_dry_run else Role.LAUNCHER, "dry_run" if is_dry_run else "launch")

    def targets(self) -> list[Target]:
        """Return the launch targets of the menu."""
        return training_targets()

    def may_measure(self, name: str) -> bool:
        """Return whether the tab may start a job that measures the cluster of a target."""
        return True

    def open(self, name: str) -> Launcher:
        """Return the launcher of a target.

        Raises:
            Refusal: there is no such target, a target file is invalid, or the target is not offered.
        """
        with self._opening:
            known = self._launchers.get(name)
            if known is not None and not known.runs_survive:  # it holds the processes of its runs
                return known
            target = find_target(name)
            if known is None or target != self._opened[name]:
                self._launchers[name], self._opened[name] = target.open(self.record), target
            return self._launchers[name]

    def submit(self, launcher: Launcher, spec: RunSpec, key: str | None, data: Path | None = None) -> Run:
        """Launch or queue a run; see :meth:`Launcher.submit`."""
        return launcher.submit(spec, data=data, key=key)

    def dry_run(self, design: Design) -> Run:
        """Launch or queue a dry run of a design on this machine."""
        prediction = predict(limit_steps(design))
        launcher = self.open(default_launcher(design, REHEARSAL))
        return self.submit(launcher, specify_run(prediction, REHEARSAL), None)

    def add_trace_run(self, prediction: Prediction, trace: Trace) -> Run:
        """Add a trace of another tool as a run of a predicted design.

        Raises:
            Refusal: the trace has other computations than the program of the design.
        """
        return Run(self.record, add_trace_run(self.record, prediction, trace).id)

    def cancel(self, entry: Entry, why: str = "") -> None:
        """Cancel a run, including runs that another process launched.

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

    def check_runs(self, wait_s: float) -> None:
        """Record the active runs that have ended, and start queued runs as soon as they can run.

        Threads do so, because a cluster may take seconds to respond; ``wait_s`` is the longest wait for them.
        """
        with suppress(MeshwaveError, sqlite3.ProgrammingError):  # the disk is full, or the database was closed
            self._checks.start(wait_s)

    def cancel_overdue(self, limits: Limits, unlimited: Container[str] = frozenset()) -> None:
        """Start to cancel the runs of people that take too long, except those of people without limits."""
        for entry in overdue_runs(limits, self.record, time.time(), unlimited):
            self.start_cancelling(entry, f"it reached the time limit of this server, {limits.minutes:g} min")

    def start_cancelling(self, entry: Entry, why: str) -> None:
        """Cancel a run in a thread of its own, because a cluster may take seconds to respond."""
        self._cancelling = {run: thread for run, thread in self._cancelling.items() if thread.is_alive()}
        if entry.id not in self._cancelling:
            thread = threading.Thread(target=self._cancel_or_log, args=(entry, why), daemon=True)
            self._cancelling[entry.id] = thread
            thread.start()

    def _cancel_or_log(self, entry: Entry, why: str) -> None:
        """Cancel a run; if that fails, log the reason unless it is known."""
        with suppress(sqlite3.ProgrammingError):  # the database was closed
            try:
                self.cancel(entry, why)
            except MeshwaveError as error:
                if self.failures.get(entry.id) != str(error):
                    self.failures[entry.id] = str(error)
                    _log.warning("run %s cannot be cancelled (%s): %s", entry.id, why, error)

    def close(self) -> None:
        """Close the launchers, which ends their runs."""
        for launcher in self._launchers.values():
            launcher.close()


class PersonLaunches(Launches):
    """The launches of one of several people, restricted by the person's role and limits."""

    def __init__(self, shared: Launches, user: User, limits: Callable[[], Limits]) -> None:
        """Create the launches of a person; ``limits`` returns the current limits."""
        super().__init__(shared.record, user)
        self.names = shared.names
        self._shared, self._limits = shared, limits
        self._is_unlimited = user.role.includes(Role.ADMIN)

    def targets(self) -> list[Target]:
        """Return the launch targets that the person may use."""
        return [target for target in self._shared.targets() if self._may_use(target.name)]

    def _may_use(self, target: str) -> bool:
        may_leave_machine = self.user.role.includes(Role.LAUNCHER)
        is_allowed = target in self._limits().targets and (may_leave_machine or target in MACHINE_TARGETS)
        return self._is_unlimited or is_allowed

    def may_measure(self, name: str) -> bool:
        """Return whether the person may measure the cluster of a target; only administrators may measure the server itself."""
        return self._may_use(name) and (self._is_unlimited or name not in MACHINE_TARGETS)

    def open(self, name: str) -> Launcher:
        """Return the launcher of a target.

        Raises:
            Refusal: the person may not use it.
        """
        if not self._may_use(name):
            raise Refusal("launch_target", {"target": name})
        return self._shared.open(name)

    def submit(self, launcher: Launcher, spec: RunSpec, key: str | None, data: Path | None = None) -> Run:
        """Launch or queue a run as the person.

        Raises:
            Refusal: the role does not allow it, or it exceeds the limits.
        """
        self.check_role(is_dry_run=spec.options.rehearse is not None)
        if not self._is_unlimited:
            check_launch(self._limits(), self.record, self.user.id, process_count(spec.drawn))
        return launcher.submit(spec, data=data, key=key, person=self.user.id)

    def add_trace_run(self, prediction: Prediction, trace: Trace) -> Run:
        """Add a trace of another tool as a run of the person.

        Raises:
            Refusal: the role does not allow it, the runs use too much disk space, or the trace has other computations
                than the program of the design.
        """
        self.user.check(Role.DESIGNER, "add_trace_run")
        if not self._is_unlimited:  # a trace starts no processes
            check_disk(self._limits(), self.record, self.user.id)
        return Run(self.record, add_trace_run(self.record, prediction, trace, self.user.id).id)

    def cancel(self, entry: Entry, why: str = "") -> None:
        """Cancel a run.

        Raises:
            Refusal: somebody else launched it, and the person is not an administrator.
        """
        self.check_ownership(entry)
        self._shared.cancel(entry, why)

    def check_ownership(self, entry: Entry) -> None:
        """Check that the person may change a run.

        Raises:
            Refusal: somebody else launched it, and the person is not an administrator.
        """
        if entry.person != self.user.id and not self._is_unlimited:
            raise Refusal("other_run", {})

    def check_runs(self, wait_s: float) -> None:
        """Record the active runs of all people that have ended, and start queued ones."""
        self._shared.check_runs(wait_s)
