"""The Run tab: launch the open design and follow a run; the Python side of ``static/panels/runs.js``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import param

from meshwave.designer.kit.canvas import Canvas, widget
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, Session
from meshwave.designer.state.launches import Launches
from meshwave.designer.views._view import FILL, Page, View, views
from meshwave.designer.views.followed_runs import FollowedRuns, mirror_params
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.run_data import FollowedRun
from meshwave.designer.views.run_text import fixed_stages
from meshwave.designer.views.target_drawing import draw_target
from meshwave.engine.document import parse_design
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.hugging_face.checkpoint_folders import list_checkpoints
from meshwave.engine.imports import Trace
from meshwave.engine.people.people_file import Role
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Launcher, Options, Run
from meshwave.engine.runs.dry_run import limit_steps
from meshwave.engine.runs.emulation.hosts import default_hosts
from meshwave.engine.runs.launchers import default_launcher, resumed_launch, specify_run
from meshwave.engine.runs.options import PLAIN, REHEARSAL
from meshwave.engine.runs.run_comparison import save_run_profile
from meshwave.engine.runs.run_folder import RunSpec
from meshwave.engine.runs.training_texts import LARGEST_UPLOAD_BYTES, save_text
from meshwave.engine.units import format_count, quantity

DEFAULT_TARGET = "local"
REFRESH_INTERVAL_S = 0.15
CHECK_INTERVAL_S = 2.0
"""Interval of the checks for launchers that have ended and for changes of the machine."""
CHECK_WAIT_S = 0.1
"""Longest wait for a check of the launchers; checks of runs on this machine are faster."""


@widget("panels/runs.js", "panels/dock.css")
class RunsPanel(Canvas):
    """Widget with the shown run, and with the training text and the emulated network of the next launch."""

    run = param.Dict(default={}, doc="Summary of the shown run.")
    measured = param.Dict(
        default={},
        doc="For a run with a measured timeline: whether it is of the open design, is overlaid, and can calibrate the design.",
    )
    is_editing_order = param.Boolean(default=False, doc="True in edit mode, which hides the measured timeline.")
    hosts = param.Dict(
        default={}, doc="For a design with several nodes: whether their network is emulated, and its description."
    )
    text = param.Dict(
        default={}, doc="Name of the uploaded dataset or None, and the largest size of a dataset in bytes."
    )

    weights = param.Dict(
        default={"names": [], "name": ""},
        doc="Names of the checkpoints that training can start from, and the chosen one; empty for random weights.",
    )

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
            launches: the launch targets; ``local`` is selected at first if it is offered.
            on_launch: called when a run was started from this page.
            on_blocked: called with the problems that block the launch of a valid design.
            on_show: called with the ID of the run that is shown, empty for none.
            first: ID of the first run to show.
            **params: parameters of the widget.
        """
        super().__init__(**params)
        self._session, self.launches, self._record = session, launches, launches.record
        self._targets = {target.name: target for target in launches.targets()}
        self._chosen = DEFAULT_TARGET if DEFAULT_TARGET in self._targets else next(iter(self._targets), DEFAULT_TARGET)
        self._on_launched, self._on_blocked = on_launch, on_blocked
        self.bar = LaunchBar(
            self._launch,
            self._launch_dry_run,
            self._cancel,
            self._choose,
            self._draw,
            session.later,
            **params,
        )
        places = [
            {"name": target.name, "title": target.title, "drawable": self.launches.may_measure(target.name)}
            for target in self._targets.values()
        ]
        self.bar.param.update(places=places, place=self._chosen)
        self._checkpoints: dict[str, Path] = {}
        self._emulates_hosts = False  # True to emulate the network between nodes
        self._checked_s = 0.0
        self.followed = FollowedRuns(session, self._record, on_show, first)
        mirror_params(self.followed, self, "run", "measured")
        mirror_params(self.followed, self.bar, "status")
        session.param.watch(lambda *_: self._follow_design(), ["design", "problems"])
        self._follow_design()
        self.refresh()

    # ---- gestures ----

    def _launch(self, key: str | None) -> None:
        chosen = self._checkpoints.get(self.weights["name"])
        options = PLAIN.model_copy(update={"initial_weights": str(chosen) if chosen is not None else None})
        self._start(self._launcher, key, self._with_emulated_hosts(options))

    def _launch_dry_run(self, key: str | None) -> None:
        options = self._with_emulated_hosts(REHEARSAL)
        self._start(self._dry_run_launcher(options), key, options)

    def _with_emulated_hosts(self, options: Options) -> Options:
        """Add emulated hosts if the user selected them and the design has several nodes."""
        design = self._session.design
        there = self._emulates_hosts and design.cluster.nodes > 1
        return options.model_copy(update={"hosts": default_hosts(design)}) if there else options

    @property
    def _launcher(self) -> Launcher:
        return self.launches.open(self._chosen)

    def _dry_run_launcher(self, options: Options = REHEARSAL) -> Launcher:
        """Return the launcher for a dry run: the selected one, or the one for designs with many devices."""
        usual = default_launcher(self._session.design, options)
        return self._launcher if usual == DEFAULT_TARGET else self.launches.open(usual)

    def _start(self, launcher: Launcher, key: str | None, options: Options) -> None:
        session = self._session
        session.check_editable()
        if session.errors:
            raise Refusal("invalid_design", {"purpose": "run", "reason": str(session.errors[0])})
        prediction = session.prediction
        if options.rehearse:
            prediction = replace(prediction, design=limit_steps(prediction.design))
        self._submit(launcher, specify_run(prediction, options), key)

    def _submit(self, launcher: Launcher, spec: RunSpec, key: str | None, data: Path | None = None) -> None:
        work = partial(self.launches.submit, launcher, spec, key, data)
        self.bar.call_target("Starting …", work, self._show_launched)

    def resume(self, run: str) -> None:
        """Launch the design of a run again, from its newest checkpoint and on its launch target if that is offered."""
        self._session.check_editable()
        design, options, text = resumed_launch(self._record.folder(run))
        target = self._record.get(run).place.target
        launcher = self.launches.open(target if target in self._targets else default_launcher(design, options))
        self._submit(launcher, specify_run(predict(design), options), None, text)

    def add_trace_run(self, trace: Trace) -> None:
        """Add a trace of another tool as a run of the open design, and show its timeline over the prediction."""
        self._session.check_editable()
        prediction = self._session.current_prediction("compare with a trace")
        self._show_launched(self.launches.add_trace_run(prediction, trace))

    def _show_launched(self, run: Run) -> None:
        self.followed.show(FollowedRun(run))
        self.refresh()
        self._on_launched()

    def _cancel(self) -> None:
        self._session.check_editable()
        active = self.followed.active
        if active is not None:
            work = partial(self.launches.cancel, self._record.get(active.run.id))
            self.bar.call_target("Cancelling …", work, lambda _: self.refresh())

    def _draw(self) -> None:
        if not self.launches.may_measure(self._chosen):  # the limits may have changed since the page was opened
            raise Refusal("launch_target", {"target": self._chosen})
        draw_target(self._session, self.bar, self._chosen)

    def _choose(self, name: str) -> None:
        if name not in self._targets:
            raise Refusal("unknown_place", {"name": name})
        self._chosen = self.bar.place = name
        self._update_launch_buttons()

    def _on_overlay(self, on: bool = False) -> None:
        self.followed.set_overlay(on)

    def _on_use_measured(self) -> None:
        """Set the costs of the open design to the costs that the run measured, as one undo step."""
        self._session.check_editable()
        shown = self.followed.shown
        if shown is None:
            return
        self.launches.user.check(Role.LAUNCHER, "store_profile")
        name, design = save_run_profile(shown.run), self._session.design
        cost = {"kind": "calibrated", "profile": name, "transfer_model": design.cost.transfer_model}
        document = design.model_dump(mode="json")
        document["cost"] = cost
        ran = shown.prediction
        if ran is not None and shown.computes_step_of(design):
            document["pipeline"]["stages"] = fixed_stages(parse_design(document), ran)
        self._session.edit("", {key: document[key] for key in ("cost", "pipeline")}, "calibrate from a run")

    def _on_bring_text(self, name: str = "", text: str = "") -> None:
        self._session.check_editable()
        self.launches.user.check(Role.LAUNCHER, "store_text")
        saved = save_text(name, text)
        self._session.edit("training.data", saved, f"train on {saved}")
        self._follow_design()  # the name may be unchanged although the file was missing

    def _on_default_text(self) -> None:
        """Train on the built-in sample text, which has no tokenizer."""
        training = self._session.design.training.model_dump(mode="json") | {
            "data": None,
            "tokenizer": None,
            "end_of_text": None,
            "document_end": None,
            "document_lengths": None,
            "pad_documents": False,
        }
        self._session.edit("training", training, "train on the built-in sample text")

    def _on_weights(self, name: str) -> None:
        """Choose the checkpoint that the next training starts from; empty for random weights."""
        if name and name not in self._checkpoints:
            raise Refusal("unknown_checkpoint", {"name": name})
        self.weights = {**self.weights, "name": name}

    def _on_hosts(self, on: bool = False) -> None:
        self._emulates_hosts = on
        self._follow_design()

    # ---- updates ----

    def _list_checkpoints(self) -> None:
        """Offer the checkpoints that exist now, and the chosen one; if it was deleted, its launch is refused."""
        name = self.weights["name"]
        chosen = {name: self._checkpoints[name]} if name else {}
        self._checkpoints = list_checkpoints() | chosen
        self.weights = {"names": list(self._checkpoints), "name": name}

    def _follow_design(self) -> None:
        self.text = {"name": self._session.design.training.data, "largest": LARGEST_UPLOAD_BYTES}
        cluster = self._session.design.cluster
        between = f"{quantity(cluster.inter_node.bandwidth, 'B/s')} between {cluster.nodes} hosts"
        self.hosts = {"on": self._emulates_hosts, "words": between} if cluster.nodes > 1 else {}
        self._update_launch_buttons()

    def _update_launch_buttons(self) -> None:
        reason = _refusal_text(self._launch_refusal)
        processes = sum(len(mesh.devices) for mesh in self._session.design.meshes)
        label = f"Launch {format_count(processes, 'process', 'processes')}"
        question = "" if reason else "; ".join(map(str, self._launcher.warnings(self._session.design)))
        self.bar.launchable = {"allowed": not reason, "label": label, "reason": reason, "question": question}
        refused = _refusal_text(self._dry_run_refusal)
        self.bar.rehearsable = {"allowed": not refused, "reason": refused}

    def _dry_run_refusal(self) -> str:
        """Return the reason why a dry run is not possible; empty if it is possible.

        Raises:
            Refusal: the user may not launch dry runs, or may not use the target.
        """
        self.launches.check_role(is_dry_run=True)
        if self._session.errors:
            return f"Dry run not possible: {self._session.errors[0]}"
        return "; ".join(map(str, self._dry_run_launcher().refusals(self._session.design, REHEARSAL)))

    def _launch_refusal(self) -> str:
        """Return the reason why training cannot be launched; empty if it can.

        Raises:
            Refusal: the user may not launch training, or may not use the target.
        """
        session = self._session
        self.launches.check_role(is_dry_run=False)
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
        self._check_environment()
        self.followed.refresh()

    def _check_environment(self) -> None:
        """Check for changes outside the page: launchers that were killed, new datasets and checkpoints."""
        if time.monotonic() - self._checked_s > CHECK_INTERVAL_S:
            self._checked_s = time.monotonic()
            self.launches.check_runs(CHECK_WAIT_S)
            self._list_checkpoints()
            self._update_launch_buttons()


def _refusal_text(find_reason: Callable[[], str]) -> str:
    """Return the reason that a function returns, or the refusal that it raises."""
    try:
        return find_reason()
    except Refusal as refusal:
        return str(refusal)


@views.register("run")
class RunView(View):
    """The shown run and its progress, and the training text, initial weights and emulated network of the next launch."""

    title: ClassVar = "Run"
    order: ClassVar = 2

    def make_pane(self) -> RunsPanel:
        """Build the panel of the run."""
        page, studio = self.page, self.page.studio
        return RunsPanel(
            page.session,
            studio.launches,
            on_launch=lambda: page.show_view("run"),
            on_blocked=self._show_blockers,
            on_show=page.on_show_run,
            first=page.first_run,
            **FILL,
        )

    def _show_blockers(self, found: Sequence[Problem]) -> None:
        problems = self.page.view("problems").pane
        assert isinstance(problems, Problems)
        problems.show_blockers(found)


def runs_panel(page: Page) -> RunsPanel:
    """Return the panel of runs of a page."""
    panel = page.view("run").pane
    assert isinstance(panel, RunsPanel)
    return panel


def followed_runs(page: Page) -> FollowedRuns:
    """Return the runs that a page follows."""
    return runs_panel(page).followed
