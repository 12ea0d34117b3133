"""The Run tab: launch the open design and follow a run; the Python side of ``static/panels/runs.js``."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, style_sheets
from meshwave.designer.kit.canvas import Canvas, plain_text, read_value
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, Session
from meshwave.designer.state.launches import Launches
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.run_comparison import error_history
from meshwave.designer.views.run_data import SHOWN_RUNS, FollowedRun
from meshwave.designer.views.run_text import fixed_stages, mode_prefix
from meshwave.designer.views.target_drawing import draw_target
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs import Entry, Launcher, Options, Record, Run, loss_suffix, reconcile
from meshwave.engine.runs.dry_run import limit_steps
from meshwave.engine.runs.emulation.hosts import default_hosts
from meshwave.engine.runs.launchers import specify_run, usual_launcher
from meshwave.engine.runs.options import PLAIN, REHEARSAL
from meshwave.engine.runs.run_comparison import design_history, save_run_profile
from meshwave.engine.runs.training_texts import LARGEST_UPLOAD_BYTES, keep_text
from meshwave.engine.units import format_count, format_time, quantity

DEFAULT_TARGET = "local"
REFRESH_INTERVAL_S = 0.15
CHECK_INTERVAL_S = 2.0
"""Interval of checks whether launchers still run, and what this machine can run."""
RECONCILE_WAIT_S = 0.1
"""Time to wait for such a check, which is enough for runs of this machine."""


class RunsPanel(Canvas):
    """One recorded run and its progress; polled, because any process may have started it."""

    run = param.Dict(default={})
    losses = param.List(default=[], doc="At most SHOWN_LOSSES losses over all steps; None if not a number.")
    log = param.String(default="")
    comparison = param.Dict(default={}, doc="See comparison_data(), and whether the measured timeline is overlaid.")
    outcomes = param.List(default=[], doc="Prediction errors of the runs of the same design; see error_history().")
    runs = param.List(default=[])
    hosts = param.Dict(
        default={}, doc="For a design with several nodes: whether their network is emulated, and its description."
    )
    text = param.Dict(default={}, doc="Name of the uploaded dataset, or None, and the largest size of one.")

    _esm = module("panels/runs.js")
    _stylesheets: ClassVar = style_sheets("panels/runs.css")
    _gestures = ("open", "overlay", "use_measured", "bring_text", "default_text", "hosts")

    def __init__(
        self,
        session: Session,
        launches: Launches,
        on_launch: Callable[[], Any] = lambda: None,
        on_blocked: Callable[[Sequence[Problem]], Any] = lambda problems: None,
        on_show: Callable[[str], Any] = lambda run: None,
        first: str = "",
        **params: Any,
    ) -> None:
        """Create the panel and show the run ``first`` if it exists.

        Args:
            session: the open design.
            launches: the launch targets, of which ``local`` is used until another one is selected.
            on_launch: called when a run was started here.
            on_blocked: called with the problems that block the launch of a valid design.
            on_show: called with the ID of the run that is shown, empty for none.
            first: ID of the first run to show.
            **params: parameters of the widget.
        """
        super().__init__(**params)
        self._session, self._launches, self._record = session, launches, launches.record
        self._targets = {target.name: target for target in launches.targets()}
        self._chosen = DEFAULT_TARGET
        self._on_launched, self._on_blocked, self._on_shown = on_launch, on_blocked, on_show
        self.bar = LaunchBar(
            self._launch,
            self._launch_dry_run,
            self._cancel,
            self._choose,
            lambda: draw_target(session, self.bar, self._chosen),
            **params,
        )
        places = [
            {"name": target.name, "title": target.title, "drawable": target.options is not None}
            for target in self._targets.values()
        ]
        self.bar.param.update(places=places if len(places) > 1 else [], place=self._chosen)
        self._is_overlaid = True
        self._emulates_hosts = False  # True to emulate the network between nodes
        self._shown_run: FollowedRun | None = None
        self._live: FollowedRun | None = None  # the run in progress, from any launcher
        self._ended: dict[str, str] = {}  # progress of each run that is over
        self._checked_s = 0.0
        self._reconciling: threading.Thread | None = None
        session.param.watch(lambda *_: self._remove_overlay(), "opened")
        session.param.watch(lambda *_: self._follow_design(), ["design", "problems"])
        self._follow_design()
        with suppress(MeshwaveError):  # the run may have been deleted
            self._shown_run = self._follow_entry(self._record.get(first)) if first else None
        self.refresh()

    def find_measured_run(self, prediction: Prediction) -> Run | None:
        """Return the run that measured the predicted step: the shown one, else the latest that is over.

        None if the shown run matches but is not overlaid.
        """
        shown = self._shown_run
        if shown is not None and shown.has_same_program(prediction) and not shown.is_dry_run:
            return shown.run if self._is_overlaid and shown.has_same_links(prediction.design) else None
        for entry in self._record.entries(SHOWN_RUNS):
            if not entry.is_rehearsal and entry.digest == prediction.program.digest and entry.state.is_over:
                run = FollowedRun(Run(self._record, entry.id))
                if run.computes_step_of(prediction.design) and run.has_same_links(prediction.design):
                    return run.run
        return None

    # ---- gestures ----

    def _launch(self, key: str | None) -> None:
        self._start(self._launcher, key, self._add_hosts(PLAIN))

    def _launch_dry_run(self, key: str | None) -> None:
        options = self._add_hosts(REHEARSAL)
        self._start(self._dry_run_launcher(options), key, options)

    def _add_hosts(self, options: Options) -> Options:
        """Add emulated hosts if the user selected them and the design has several nodes."""
        design = self._session.design
        there = self._emulates_hosts and design.cluster.nodes > 1
        return options.model_copy(update={"hosts": default_hosts(design)}) if there else options

    @property
    def _launcher(self) -> Launcher:
        return self._launches.open(self._chosen)

    def _dry_run_launcher(self, options: Options = REHEARSAL) -> Launcher:
        """Return the launcher for a dry run: the selected one, unless the usual one cannot run it."""
        usual = usual_launcher(self._session.design, options)
        return self._launcher if usual == DEFAULT_TARGET else self._launches.open(usual)

    def _start(self, launcher: Launcher, key: str | None, options: Options) -> None:
        session = self._session
        if session.errors:
            raise InputError(f"the design cannot run: {session.errors[0]}")
        prediction = session.prediction
        if options.rehearse:
            prediction = replace(prediction, design=limit_steps(prediction.design))
        run = self._launches.submit(launcher, specify_run(prediction, options), key)
        self._show(FollowedRun(run))
        self.refresh()
        self._on_launched()

    def _cancel(self) -> None:
        active = self._active_run
        if active is not None:
            self._launches.cancel(self._record.get(active.run.id))
        self.refresh()

    def _choose(self, name: str) -> None:
        if name not in self._targets:
            raise Refusal("unknown_place", {"name": name})
        self._chosen = self.bar.place = name
        self._update_launch_buttons()

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        self._show(self._follow_entry(self._record.get(read_value(gesture, "run", plain_text))))
        self.refresh()

    def _on_overlay(self, gesture: Mapping[str, Any]) -> None:
        self._is_overlaid = bool(gesture.get("on"))
        self._update_overlay()

    def _on_use_measured(self, gesture: Mapping[str, Any]) -> None:
        """Set the costs of the open design to those measured by the run, as one undo step."""
        if self._shown_run is None:
            return
        name, design = save_run_profile(self._shown_run.run), self._session.design
        cost = {"kind": "calibrated", "profile": name, "transfer_model": design.cost.transfer_model}
        document = design.model_dump(mode="json")
        document["cost"] = cost
        ran = self._shown_run.prediction
        if ran is not None and self._shown_run.computes_step_of(design):
            document["pipeline"]["stages"] = fixed_stages(parse_design(document), ran)
        self._session.edit("", {key: document[key] for key in ("cost", "pipeline")}, "calibrate from a run")

    def _on_bring_text(self, gesture: Mapping[str, Any]) -> None:
        name = keep_text(str(gesture.get("name", "")), str(gesture.get("text", "")))
        self._session.edit("training.data", name, f"train on {name}")
        self._follow_design()  # since only the contents of the text may have changed

    def _on_default_text(self, gesture: Mapping[str, Any]) -> None:
        self._session.edit("training.data", None, "train on the built-in sample text")

    def _on_hosts(self, gesture: Mapping[str, Any]) -> None:
        self._emulates_hosts = bool(gesture.get("on"))
        self._follow_design()

    # ---- updates ----

    def _remove_overlay(self) -> None:
        """Remove the overlay when the document is replaced, and a run of the previous document if it is over."""
        self._is_overlaid = False
        shown = self._shown_run
        if shown is not None and shown.is_over and not shown.computes_step_of(self._session.design):
            self._show(None)
        self._update_overlay()

    def _follow_design(self) -> None:
        self.text = {"name": self._session.design.training.data, "largest": LARGEST_UPLOAD_BYTES}
        cluster = self._session.design.cluster
        between = f"{quantity(cluster.inter_node.bandwidth, 'B/s')} between {cluster.nodes} hosts"
        self.hosts = {"on": self._emulates_hosts, "words": between} if cluster.nodes > 1 else {}
        self._update_launch_buttons()
        self._update_overlay()

    def _update_launch_buttons(self) -> None:
        reason = self._launch_refusal()
        processes = sum(len(mesh.devices) for mesh in self._session.design.meshes)
        label = f"Launch {format_count(processes, 'process', 'processes')}"
        question = "" if reason else "; ".join(map(str, self._launcher.warnings(self._session.design)))
        self.bar.launchable = {"allowed": not reason, "label": label, "reason": reason, "question": question}
        refused = self._dry_run_refusal()
        self.bar.rehearsable = {"allowed": not refused, "reason": refused}

    def _dry_run_refusal(self) -> str:
        """Return why a dry run is not possible; a model that is too large to train here is no reason."""
        if self._session.errors:
            return f"Dry run not possible: {self._session.errors[0]}"
        return "; ".join(map(str, self._dry_run_launcher().refusals(self._session.design, REHEARSAL)))

    def _launch_refusal(self) -> str:
        session = self._session
        if session.errors:
            self._on_blocked(())
            return f"Launch not possible: {session.errors[0]}"
        if session.is_computing:
            return f"Launch not possible: {COMPUTING_PROBLEM.message}"
        memory = None if session.is_stale else session.prediction.memory
        found = tuple(self._launcher.problems(session.design, memory))
        can = self._launcher.probe()
        if can.refusal is not None:
            found = (can.refusal,)
        self._on_blocked(found)
        return "; ".join(map(str, found))

    def refresh(self) -> None:
        """Update the panel; called several times per second."""
        self._check_surroundings()
        self._choose_live(self._record.active())
        for follower in dict.fromkeys((self._live, self._shown_run)):
            if follower is not None:
                follower.read_new()
        self.bar.status = self._status()
        if self._shown_run is not None:
            self._update_run(self._shown_run)
        self.runs = [self._row(entry) for entry in self._record.entries(SHOWN_RUNS)]

    def _row(self, entry: Entry) -> dict[str, Any]:
        shown = self._shown_run is not None and self._shown_run.run.id == entry.id
        row = {"id": entry.id, "name": entry.name, "state": str(entry.state), "shown": shown}
        return {**row, "words": f"{self._progress(entry)}, {format_time(entry.created_s)}"}

    def _progress(self, entry: Entry) -> str:
        """Return the steps that are done and the last loss."""
        if entry.id in self._ended:
            return self._ended[entry.id]
        last = Run(self._record, entry.id).latest()
        done = int(last["step"]) + 1 if last else 0
        words = f"{mode_prefix(entry)}{done} of {entry.steps} steps{loss_suffix(last)}"
        if entry.state.is_over:
            self._ended[entry.id] = words
        return words

    @property
    def _active_run(self) -> FollowedRun | None:
        """The run that *Cancel* ends: the shown one if it is active or queued, else the one in progress."""
        shown = self._shown_run
        return shown if shown is not None and shown.status.get("running") else self._live

    def _status(self) -> dict[str, Any]:
        """Return the status for the launch bar: of the run in progress, with its name if another one is shown."""
        live, shown = self._active_run, self._shown_run
        if live is None or live is shown or not live.status["running"]:
            return shown.status if shown is not None else {}
        return {**live.status, "words": f"{live.summary['name']}: {live.status['words']}"}

    def _check_surroundings(self) -> None:
        """Check for changes that nothing reports, such as a launcher that was killed or a new dataset."""
        if time.monotonic() - self._checked_s > CHECK_INTERVAL_S:
            self._checked_s = time.monotonic()
            if self._reconciling is None or not self._reconciling.is_alive():  # a cluster may take seconds to answer
                self._reconciling = threading.Thread(target=_reconcile, args=(self._record,), daemon=True)
                self._reconciling.start()
                self._reconciling.join(RECONCILE_WAIT_S)
            self._launches.watch_queues()
            self._update_launch_buttons()

    def _choose_live(self, active: Sequence[Entry]) -> None:
        """Follow the run in progress on this machine, of which there is at most one."""
        if self._live is None or self._live.run.id not in {entry.id for entry in active}:
            self._live = self._follow_entry(active[-1]) if active else None

    def _follow_entry(self, entry: Entry) -> FollowedRun:
        """Return the followed run of an entry; one that is followed already is not read again."""
        known = (follower for follower in (self._live, self._shown_run) if follower and follower.run.id == entry.id)
        return next(known, None) or FollowedRun(Run(self._record, entry.id))

    def _show(self, shown: FollowedRun | None) -> None:
        """Show a run and overlay its timeline."""
        self._shown_run, self._is_overlaid = shown, shown is not None
        self._session.measured = None
        self.param.update(losses=[], log="", comparison={}, outcomes=[], run={})
        self._on_shown(shown.run.id if shown else "")

    def _update_run(self, shown: FollowedRun) -> None:
        has_new_spans = shown.read_spans()  # before the summary, which has the typical step time
        self.param.update(run=shown.summary, losses=shown.losses, log=shown.log)
        if has_new_spans or (shown.measured is not None and not self.comparison):
            self._update_overlay()

    def _update_overlay(self) -> None:
        """Overlay the measured timeline on the prediction if they are of the same step, and update the comparison."""
        shown, prediction = self._shown_run, self._session.prediction
        measured = shown.measured if shown else None
        if shown is None or measured is None:
            self._session.measured, self.comparison = None, {}
            return
        same = prediction is not None and shown.matches(prediction)
        expected = prediction if same else shown.prediction
        plays = prediction is not None and shown.has_same_program(prediction)
        other = ", with the emulated links of the run" if plays else ", for the design as it was launched"
        self._session.measured = measured if same and self._is_overlaid else None
        self.comparison = {
            **(shown.comparison(expected) if expected else {"rows": []}),
            "laid": self._is_overlaid and same,
            "same": same,
            "whose": "" if same else other,
            "usable": measured.source == "measured",
        }
        if shown.is_over and not self.outcomes:
            self.outcomes = error_history(design_history(self._record, shown.run.entry), shown.run.id)


def _reconcile(record: Record) -> None:
    with suppress(MeshwaveError, sqlite3.ProgrammingError):  # the disk is full, or the database was closed
        reconcile(record)


@views.register("run")
class RunView(View):
    """A run of the open design: its progress, loss and comparison with the prediction."""

    title: ClassVar = "Run"
    order: ClassVar = 2

    def make_pane(self) -> RunsPanel:
        """Build the panel of the run."""
        page, studio = self.page, self.page.studio
        return RunsPanel(
            page.session,
            studio.launches,
            on_launch=lambda: page.show_view("run"),
            on_blocked=self._block,
            on_show=page.on_show_run,
            first=page.first_run,
            **FILL,
        )

    def _block(self, found: Sequence[Problem]) -> None:
        problems = self.page.view("problems").pane
        assert isinstance(problems, Problems)
        problems.block(found)
