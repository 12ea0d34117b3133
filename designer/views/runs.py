"""Launch the open design and follow it: the Python face of ``static/panels/runs.js``."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import param

from meshwave.designer.kit.assets import module, read_static
from meshwave.designer.kit.canvas import Canvas, plain_text, value_of
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, Session
from meshwave.designer.views._view import FILL, View, views
from meshwave.designer.views.launch_bar import LaunchBar
from meshwave.designer.views.problems import Problems
from meshwave.designer.views.run_comparison import history_shown
from meshwave.designer.views.run_data import SHOWN_RUNS, _Shown
from meshwave.designer.views.run_text import _manner, _stages
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError, MeshwaveError
from meshwave.engine.findings import Problem, Refusal
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs import Entry, Launcher, Options, Record, Run, loss_of, reconcile
from meshwave.engine.runs.dry_run import shortened
from meshwave.engine.runs.emulation.hosts import default_hosts
from meshwave.engine.runs.launchers import open_run, specify_run, usual_launcher
from meshwave.engine.runs.options import PLAIN, REHEARSAL
from meshwave.engine.runs.run_comparison import design_history, keep_profile
from meshwave.engine.runs.targets import open_target, training_targets
from meshwave.engine.runs.training_texts import LARGEST_UPLOAD_BYTES, keep_text
from meshwave.engine.units import quantity, when

LOOK_EVERY_S = 0.15
LOOK_AROUND_EVERY_S = 2.0
"""How often it is asked whether what launched a run is still there, and what this machine can do."""
RECONCILE_WAIT_S = 0.1
"""How long the page waits for that; for runs of this machine it suffices."""


class RunsPanel(Canvas):
    """One run of the record and how it stands; polled, since a run may be anybody's."""

    run = param.Dict(default={})
    losses = param.List(default=[], doc="At most SHOWN_LOSSES, evenly over the steps; None where it is no number.")
    log = param.String(default="")
    comparison = param.Dict(
        default={}, doc="As meshwave.designer.views.run_comparison tells it, and whether it is laid over."
    )
    outcomes = param.List(default=[], doc="How the predictions of the design of the run came out, run by run.")
    runs = param.List(default=[])
    hosts = param.Dict(
        default={}, doc="Of a design of several nodes: whether runs meet their network, and what that is."
    )
    text = param.Dict(default={}, doc="The name of the design's own text, or None, and how large one may be.")

    _esm = module("panels/runs.js")
    _stylesheets: ClassVar = [read_static("kit/canvas.css"), read_static("panels/runs.css")]
    _gestures = ("open", "overlay", "use_measured", "bring_text", "default_text", "hosts")

    def __init__(
        self,
        session: Session,
        launcher: Launcher,
        record: Record,
        on_launch: Callable[[], Any] = lambda: None,
        on_blocked: Callable[[Sequence[Problem]], Any] = lambda problems: None,
        on_show: Callable[[str], Any] = lambda run: None,
        first: str = "",
        open_launcher: Callable[[str], Launcher] | None = None,
        **params: Any,
    ) -> None:
        """Show the run ``first``, if that is still known, else none until one is launched here or chosen.

        ``on_launch`` hears that a run was started here, to bring it to the front, ``on_blocked`` what of
        a sound design keeps it from being launched, and ``on_show`` which run is shown, "" for none.
        ``launcher`` is used until a person chooses another one, which ``open_launcher`` returns by its name.
        """
        super().__init__(**params)
        self._session, self._record = session, record
        self._open_launcher = open_launcher or (lambda name: open_target(record, name))
        self._launchers = {launcher.name: launcher}
        self._chosen = self._default = launcher.name
        self._on_launched, self._on_blocked, self._on_shown = on_launch, on_blocked, on_show
        self.bar = LaunchBar(self._launch, self._rehearse, self._cancel, self._choose, **params)
        places = [{"name": target.name, "title": target.title} for target in training_targets()]
        self.bar.param.update(places=places if len(places) > 1 else [], place=self._chosen)
        self._laid = True
        self._emulates = False  # whether runs of a design of several nodes meet its network
        self._shown: _Shown | None = None
        self._live: _Shown | None = None  # the one that is under way, whoever launched it
        self._ended: dict[str, str] = {}  # how far each run came that is over, in words
        self._looked_around_s = 0.0
        self._reconciling: threading.Thread | None = None
        session.param.watch(lambda *_: self._take_off(), "opened")
        session.param.watch(lambda *_: self._follow_design(), ["design", "problems"])
        self._follow_design()
        with suppress(MeshwaveError):  # its folder may be gone
            self._shown = self._followed(record.get(first)) if first else None
        self.look()

    def of_design(self, prediction: Prediction) -> Run | None:
        """The run that computed the steps that are predicted: the one that is shown, unless it was taken off the
        prediction, else the latest that is over."""
        shown = self._shown
        if shown is not None and shown.plays(prediction) and not shown.is_rehearsal:
            return shown.run if self._laid and shown.meets(prediction.design) else None
        for entry in self._record.all(SHOWN_RUNS):
            if not entry.is_rehearsal and entry.digest == prediction.program.digest and entry.state.is_over:
                run = _Shown(Run(self._record, entry.id))
                if run.computes(prediction.design) and run.meets(prediction.design):
                    return run.run
        return None

    # ---- gestures ----

    def _launch(self, key: str | None) -> None:
        self._start(self._launcher, key, self._where(PLAIN))

    def _rehearse(self, key: str | None) -> None:
        options = self._where(REHEARSAL)
        self._start(self._rehearser(options), key, options)

    def _where(self, options: Options) -> Options:
        """On emulated hosts where a person wants that, of a design that has several."""
        design = self._session.design
        there = self._emulates and design.cluster.nodes > 1
        return options.model_copy(update={"hosts": default_hosts(design)}) if there else options

    @property
    def _launcher(self) -> Launcher:
        return self._launcher_called(self._chosen)

    def _launcher_called(self, name: str) -> Launcher:
        if name not in self._launchers:
            self._launchers[name] = self._open_launcher(name)
        return self._launchers[name]

    def _rehearser(self, options: Options = REHEARSAL) -> Launcher:
        """What rehearses the open design: the chosen launcher, unless the usual one cannot."""
        usual = usual_launcher(self._session.design, options)
        return self._launcher if usual == self._default else self._launcher_called(usual)

    def _start(self, launcher: Launcher, key: str | None, options: Options) -> None:
        session = self._session
        if session.errors:
            raise InputError(f"the design cannot run as it stands: {session.errors[0]}")
        prediction = session.prediction
        if options.rehearse:
            prediction = replace(prediction, design=shortened(prediction.design))
        run = launcher.submit(specify_run(prediction, options), key=key)
        self._show(_Shown(run))
        self.look()
        self._on_launched()

    def _cancel(self) -> None:
        live = self._live
        if live is not None:
            entry = self._record.get(live.run.id)
            known = self._launchers.get(entry.launcher)
            run = Run(self._record, entry.id, known) if known else open_run(self._record, entry.id)
            run.cancel()
        self.look()

    def _choose(self, name: str) -> None:
        if name not in [place["name"] for place in self.bar.places]:
            raise Refusal("unknown_place", {"name": name})
        self._chosen = self.bar.place = name
        self._say_whether_it_can_run()

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        self._show(self._followed(self._record.get(value_of(gesture, "run", plain_text))))
        self.look()

    def _on_overlay(self, gesture: Mapping[str, Any]) -> None:
        self._laid = bool(gesture.get("on"))
        self._lay()

    def _on_use_measured(self, gesture: Mapping[str, Any]) -> None:
        """Price the open design by what the run measured; one step of undo."""
        if self._shown is None:
            return
        name, design = keep_profile(self._shown.run), self._session.design
        cost = {"kind": "calibrated", "profile": name, "transfer_model": design.cost.transfer_model}
        document = design.model_dump(mode="json")
        document["cost"] = cost
        ran = self._shown.prediction
        if ran is not None and self._shown.computes(design):
            document["pipeline"]["stages"] = _stages(parse_design(document), ran)
        self._session.edit("", {key: document[key] for key in ("cost", "pipeline")}, "use what was measured")

    def _on_bring_text(self, gesture: Mapping[str, Any]) -> None:
        name = keep_text(str(gesture.get("name", "")), str(gesture.get("text", "")))
        self._session.edit("training.data", name, f"train on {name}")
        self._follow_design()  # also where the name stays and only the text is another

    def _on_default_text(self, gesture: Mapping[str, Any]) -> None:
        self._session.edit("training.data", None, "train on the text that comes with Meshwave")

    def _on_hosts(self, gesture: Mapping[str, Any]) -> None:
        self._emulates = bool(gesture.get("on"))
        self._follow_design()

    # ---- looking at what is there ----

    def _take_off(self) -> None:
        """Over another document nobody has asked yet to see a run; one that is over leaves with its own."""
        self._laid = False
        shown = self._shown
        if shown is not None and shown.is_over and not shown.computes(self._session.design):
            self._show(None)
        self._lay()

    def _follow_design(self) -> None:
        self.text = {"name": self._session.design.training.data, "largest": LARGEST_UPLOAD_BYTES}
        cluster = self._session.design.cluster
        between = f"{quantity(cluster.inter_node.bandwidth, 'B/s')} between {cluster.nodes} hosts"
        self.hosts = {"on": self._emulates, "words": between} if cluster.nodes > 1 else {}
        self._say_whether_it_can_run()
        self._lay()

    def _say_whether_it_can_run(self) -> None:
        reason = self._refusal()
        processes = sum(len(mesh.devices) for mesh in self._session.design.meshes)
        label = f"Launch {processes} process{'es' if processes != 1 else ''}"
        self.bar.launchable = {"allowed": not reason, "label": label, "reason": reason}
        refused = self._no_rehearsal()
        self.bar.rehearsable = {"allowed": not refused, "reason": refused}

    def _no_rehearsal(self) -> str:
        """What keeps the design from being rehearsed; that it is too large to be trained here does not."""
        if self._session.errors:
            return f"Cannot rehearse: {self._session.errors[0]}"
        return "; ".join(map(str, self._rehearser().refusals(self._session.design, REHEARSAL)))

    def _refusal(self) -> str:
        session = self._session
        if session.errors:
            self._on_blocked(())
            return f"Cannot launch: {session.errors[0]}"
        if session.is_computing:
            return f"Cannot launch: {COMPUTING_PROBLEM.message}"
        memory = None if session.stale else session.prediction.memory
        found = tuple(self._launcher.problems(session.design, memory))
        can = self._launcher.probe()
        if can.refusal is not None:
            found = (can.refusal,)
        self._on_blocked(found)
        return "; ".join(map(str, found))

    def look(self) -> None:
        """Bring the panel up to date; called several times a second."""
        self._look_around()
        self._choose_live(self._record.active())
        for follower in dict.fromkeys((self._live, self._shown)):
            if follower is not None:
                follower.read()
        self.bar.status = self._status()
        if self._shown is not None:
            self._tell(self._shown)
        self.runs = [self._row(entry) for entry in self._record.all(SHOWN_RUNS)]

    def _row(self, entry: Entry) -> dict[str, Any]:
        shown = self._shown is not None and self._shown.run.id == entry.id
        row = {"id": entry.id, "name": entry.name, "state": str(entry.state), "shown": shown}
        return {**row, "words": f"{self._progress(entry)}, {when(entry.created_s)}"}

    def _progress(self, entry: Entry) -> str:
        """Steps done of those that were asked for, and the last loss."""
        if entry.id in self._ended:
            return self._ended[entry.id]
        last = Run(self._record, entry.id).latest()
        done = int(last["step"]) + 1 if last else 0
        words = f"{_manner(entry)}{done} of {entry.steps} steps{loss_of(last)}"
        if entry.state.is_over:
            self._ended[entry.id] = words
        return words

    def _status(self) -> dict[str, Any]:
        """What the bar says: of the run under way, by its name where another one is shown, else of the shown one."""
        live, shown = self._live, self._shown
        if live is None or live is shown or not live.status["running"]:
            return shown.status if shown is not None else {}
        return {**live.status, "words": f"{live.summary['name']}: {live.status['words']}"}

    def _look_around(self) -> None:
        """What changes without a word to us: a launcher elsewhere was killed, a text was put into its folder."""
        if time.monotonic() - self._looked_around_s > LOOK_AROUND_EVERY_S:
            self._looked_around_s = time.monotonic()
            if self._reconciling is None or not self._reconciling.is_alive():  # a cluster may take seconds to answer
                self._reconciling = threading.Thread(target=_reconcile, args=(self._record,), daemon=True)
                self._reconciling.start()
                self._reconciling.join(RECONCILE_WAIT_S)
            self._say_whether_it_can_run()

    def _choose_live(self, active: Sequence[Entry]) -> None:
        """There is one run under way at a time on this machine, whoever launched it and whatever is shown."""
        if self._live is None or self._live.run.id not in {entry.id for entry in active}:
            self._live = self._followed(active[-1]) if active else None

    def _followed(self, entry: Entry) -> _Shown:
        """A run that is read already, if it is one of those: reading a long one anew takes time."""
        known = (follower for follower in (self._live, self._shown) if follower and follower.run.id == entry.id)
        return next(known, None) or _Shown(Run(self._record, entry.id))

    def _show(self, shown: _Shown | None) -> None:
        """A person launched or chose it: it is laid over the prediction, until another document is opened."""
        self._shown, self._laid = shown, shown is not None
        self._session.measured = None
        self.param.update(losses=[], log="", comparison={}, outcomes=[], run={})
        self._on_shown(shown.run.id if shown else "")

    def _tell(self, shown: _Shown) -> None:
        fresh = shown.read_spans()  # first: they say what a typical step of a run is that is over
        self.param.update(run=shown.summary, losses=shown.losses, log=shown.log)
        if fresh or (shown.measured is not None and not self.comparison):
            self._lay()

    def _lay(self) -> None:
        """Lay the measured timeline over the prediction of the same step; of another one, only compare."""
        shown, prediction = self._shown, self._session.prediction
        measured = shown.measured if shown else None
        if shown is None or measured is None:
            self._session.measured, self.comparison = None, {}
            return
        same = prediction is not None and shown.is_of(prediction)
        expected = prediction if same else shown.prediction
        plays = prediction is not None and shown.plays(prediction)
        self._session.measured = measured if same and self._laid else None
        self.comparison = {
            **(shown.compared(expected) if expected else {"rows": []}),
            "laid": self._laid and same,
            "same": same,
            "whose": "" if same else " over the links of the run" if plays else " of the run's own design",
            "usable": measured.source == "measured",
        }
        if shown.is_over and not self.outcomes:
            self.outcomes = history_shown(design_history(self._record, shown.run.entry), shown.run.id)


def _reconcile(record: Record) -> None:
    with suppress(MeshwaveError, sqlite3.ProgrammingError):  # the disk is full, or the record was closed
        reconcile(record)


@views.register("run")
class RunView(View):
    """A run of the open design: its progress, its loss, and how it compares with the prediction."""

    title: ClassVar = "Run"
    order: ClassVar = 2

    def make(self) -> RunsPanel:
        page, studio = self.page, self.page.studio
        return RunsPanel(
            page.session,
            studio.launcher,
            studio.record,
            on_launch=lambda: page.turn_to("run"),
            on_blocked=self._block,
            on_show=page.on_show_run,
            first=page.first_run,
            open_launcher=studio.open_launcher,
            **FILL,
        )

    def _block(self, found: Sequence[Problem]) -> None:
        problems = self.page.view("problems").pane
        assert isinstance(problems, Problems)
        problems.block(found)
