"""Launch the open design and follow it: the Python face of ``static/runs.js``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np
import param

from designer.assets import module, read_static
from designer.canvases._canvas import Canvas
from designer.session import Session
from designer.views._compared import as_shown, history_shown
from designer.views._launch_bar import LaunchBar
from designer.words import when
from engine.accuracy import compare
from engine.cost import layers_per_stage
from engine.design import Design, parse_design
from engine.errors import InputError, MeshwaveError, Problem
from engine.launch import (
    Bundle,
    Entry,
    Launcher,
    Options,
    Record,
    Run,
    State,
    launchers,
    loss_in_words,
    loss_of,
    reconcile,
    step_time,
)
from engine.launch.bundle import read_drawn
from engine.launch.compared import STEERS, comparison_of, history, keep_profile
from engine.launch.hosts import drawn, meets, predicted_for, read_as_run
from engine.launch.options import PLAIN, REHEARSAL
from engine.launch.texts import LARGEST_UPLOAD_BYTES, keep_text
from engine.launch.threads import usual_rehearser
from engine.predict import Prediction
from engine.recording import Recording, read_recording
from engine.rehearse import shortened
from engine.timeline import Timeline
from engine.units import quantity

SHOWN_RUNS, SHOWN_LINES, SHOWN_LOSSES = 30, 60, 600
LOOK_EVERY_S = 0.15
LOOK_AROUND_EVERY_S = 2.0
"""How often it is asked whether what launched a run is still there, and what this machine can do."""
READ_SPANS_EVERY_S, SPANS_SHARE = 0.5, 0.05
"""A live timeline is read anew so often, and never for more than this share of the time: each
reading takes in all spans so far."""

MEANS = ("model", "meshes", "pipeline", "training")


class RunsPanel(Canvas):
    """One run of the record and how it stands; polled, since a run may be anybody's."""

    run = param.Dict(default={})
    losses = param.List(default=[], doc="At most SHOWN_LOSSES, evenly over the steps; None where it is no number.")
    log = param.String(default="")
    comparison = param.Dict(default={}, doc="As designer.views._compared tells it, and whether it is laid over.")
    outcomes = param.List(default=[], doc="How the predictions of the design of the run came out, run by run.")
    runs = param.List(default=[])
    hosts = param.Dict(
        default={}, doc="Of a design of several nodes: whether runs meet their network, and what that is."
    )
    text = param.Dict(default={}, doc="The name of the design's own text, or None, and how large one may be.")

    _esm = module("runs.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("runs.css")]
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
        **params: Any,
    ) -> None:
        """Show the run ``first``, if that is still known, else none until one is launched here or chosen.

        ``on_launch`` hears that a run was started here, to bring it to the front, ``on_blocked`` what of
        a sound design keeps it from being launched, and ``on_show`` which run is shown, "" for none.
        """
        super().__init__(**params)
        self._session, self._launcher, self._record = session, launcher, record
        self._on_launched, self._on_blocked, self._on_shown = on_launch, on_blocked, on_show
        self.bar = LaunchBar(self._launch, self._rehearse, self._cancel, **params)
        self._laid = True
        self._emulates = False  # whether runs of a design of several nodes meet its network
        self._shown: _Shown | None = None
        self._live: _Shown | None = None  # the one that is under way, whoever launched it
        self._ended: dict[str, str] = {}  # how far each run came that is over, in words
        self._looked_around_s = 0.0
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
        self._start(self._launcher if options.hosts else self._rehearser(), key, options)

    def _where(self, options: Options) -> Options:
        """On emulated hosts where a person wants that, of a design that has several."""
        design = self._session.design
        there = self._emulates and design.cluster.nodes > 1
        return options.model_copy(update={"hosts": drawn(design)}) if there else options

    def _rehearser(self) -> Launcher:
        """What rehearses the open design; threads where there is no torch, or more devices than processes can be."""
        name = usual_rehearser(self._session.design)
        return self._launcher if name == self._launcher.name else launchers[name](self._record)

    def _start(self, launcher: Launcher, key: str | None, options: Options) -> None:
        session = self._session
        if session.errors:
            raise InputError(f"the design cannot run as it stands: {session.errors[0]}")
        prediction = session.prediction
        design = shortened(prediction.design) if options.rehearse else prediction.design
        run = launcher.submit(design, prediction.program, prediction.costs.layers, key=key, options=options)
        self._show(_Shown(run))
        self.look()
        self._on_launched()

    def _cancel(self) -> None:
        for entry in self._record.active():
            Run(self._record, entry.id, self._launcher if entry.launcher == self._launcher.name else None).cancel()
        self.look()

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        self._show(self._followed(self._record.get(str(gesture["run"]))))
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
        memory = None if session.stale else session.prediction.memory
        found = tuple(self._launcher.problems(session.design, memory))
        can = self._launcher.probe()
        if not can.can_launch:
            found = (Problem("", "launcher", can.why_not),)
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
            reconcile(self._record)
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
            self.outcomes = history_shown(history(self._record, shown.run.entry), shown.run.id)


class _Shown:
    """A run that is followed: what was read of it so far, each part once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.recording: Recording | None = None
        self.measured: Timeline | None = None  # the typical step so far
        self.summary: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.losses: list[float | None] = []  # as they are drawn
        self.log = ""
        self._losses: list[float | None] = []  # of every step
        self._last: dict[str, Any] | None = None
        self.is_over = False
        self._spans = _Spans(run)
        self._design: Design | None = None
        self._bundle: Bundle | None = None
        self._asked: tuple[Any, ...] = ()
        self._compared: dict[str, Any] = {}

    def read(self) -> None:
        """Take in what is new since the last look; a run that is over is read to its end once."""
        if self.is_over:
            return
        entry = self.run.entry  # first: what is read after its end is all there is
        fresh = self.run.metrics(since=len(self._losses))
        if fresh:
            self._losses += [_number(row.get("loss")) for row in fresh]
            self._last = fresh[-1]
            self.losses = reduced(self._losses) if "loss" in self._last else []  # a rehearsal has none
        lines = sorted(self.run.log(SHOWN_LINES), key=lambda line: line.process == 0)
        self.log = "\n".join(map(str, lines))  # its end is what is followed: process 0 tells of the steps
        self.summary = self._summary(entry)
        self.status = {
            "running": not entry.state.is_over,
            "share": len(self._losses) / max(entry.steps, 1),
            "words": _status(entry, len(self._losses), self._last),
        }
        self.is_over = entry.state.is_over

    def _summary(self, entry: Entry) -> dict[str, Any]:
        done = len(self._losses)
        return {
            "id": self.run.id,
            "name": entry.name,
            "manner": entry.manner,
            "state": str(entry.state),
            "reason": entry.reason,
            "done": done,
            "total": entry.steps,
            "figures": _figures(self._last, done, entry.steps, self._typical_s(entry)),
            "notes": [*(_diverged(self._losses) if self.losses else []), *self.run.notes()],
        }

    def read_spans(self) -> bool:
        """Read the timeline of a step where there is more to read; whether there was."""
        if not self._losses or not self._spans.is_due(self.is_over):
            return False
        found = self._spans.read()
        if found is not None:
            self.recording, self.measured = found, found.timeline()
            self.summary = self._summary(self.run.entry)
        return found is not None

    def _typical_s(self, entry: Entry) -> float | None:
        """The step of a run that is over as its comparison tells it; None while it runs, or where none is recorded."""
        if self.recording is None or not entry.state.is_over:
            return None
        return float(np.median(self.recording.seconds))

    def compared(self, expected: Prediction) -> dict[str, Any]:
        """What was measured so far beside a prediction, as it is shown."""
        asked = (self.recording, expected, self.is_over)
        if asked != self._asked:
            with self._spans.slowly():
                self._asked, self._compared = asked, self._compare(expected)
        return self._compared

    def _compare(self, expected: Prediction) -> dict[str, Any]:
        """Of a run that is over it is also kept how its own prediction came out."""
        assert self.recording is not None, "spans were read"
        own, bundle = self.prediction, self.bundle
        try:
            if self.is_over and own is not None and bundle is not None:
                comparison_of(self.run, bundle, self.recording)
            links = predicted_for(bundle) if bundle is not None and expected is own else ""
            return as_shown(compare(expected, self.recording, links))
        except MeshwaveError:
            return {"rows": []}  # this version makes another program of that design than the one that launched it

    def is_of(self, prediction: Prediction) -> bool:
        """Whether the measured step is the predicted one: the program, what its actions compute, and its links."""
        return self.plays(prediction) and self.meets(prediction.design)

    def plays(self, prediction: Prediction) -> bool:
        """Whether the measured step is the predicted one, over whatever links: the program, and what its actions compute."""
        if self.measured is None or self.measured.digest != prediction.program.digest:
            return False
        return self.computes(prediction.design)

    def meets(self, design: Design) -> bool:
        """Whether its links were those that a design is predicted for, where they were emulated."""
        return self.bundle is None or meets(self.bundle, design)

    def computes(self, design: Design) -> bool:
        """Whether a step of the run is a step of a design; that of a rehearsal takes what it was priced at."""
        if self.design is None or _meaning(self.design) != _meaning(design):
            return False
        if not self.is_rehearsal:
            return True
        bundle = self.bundle
        priced = self.design if bundle is None or bundle.design.cost.kind == "unit" else bundle.design
        return (priced.cost, priced.cluster) == (design.cost, design.cluster)

    @property
    def is_rehearsal(self) -> bool:
        return self.run.entry.is_rehearsal

    @property
    def design(self) -> Design | None:
        """What was drawn when the run was launched."""
        if self._design is None:
            try:
                self._design = read_drawn(self.run.folder)
            except (OSError, MeshwaveError):
                return None  # gone, or of another version
        return self._design

    @property
    def bundle(self) -> Bundle | None:
        """What the run was launched with."""
        if self._bundle is None:
            try:
                self._bundle = read_as_run(self.run.folder)
            except MeshwaveError:
                return None  # gone, or of another version
        return self._bundle

    @property
    def prediction(self) -> Prediction | None:
        """That of the run's own design, on the links that it has."""
        try:
            return None if self.bundle is None else self.bundle.prediction
        except MeshwaveError:
            return None  # its profile is gone


class _Spans:
    """The recorded spans of a run, read only where they have grown, and the rarer the longer it takes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._size = 0
        self._next_s = 0.0

    def is_due(self, is_over: bool) -> bool:
        return (is_over or time.monotonic() >= self._next_s) and self._bytes() != self._size

    def read(self) -> Recording | None:
        """What was recorded so far; None if nothing whole is written."""
        with self.slowly():
            self._size = self._bytes()  # before the reading: what comes meanwhile is read next time
            try:
                found = read_recording(self._run.folder)
            except MeshwaveError:
                return None
            return found if found.steps else None  # the run may have ended before its first step

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """The longer something takes, the later spans are read anew."""
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self._next_s = max(self._next_s, time.monotonic() + max(READ_SPANS_EVERY_S, took / SPANS_SHARE))

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._run.folder.glob("spans-*.bin"))


def reduced(losses: Sequence[float | None], most: int = SHOWN_LOSSES) -> list[float | None]:
    """At most ``most`` of the values, evenly over all, that draw the same line.

    Of every stretch the lowest and the highest stay, as they came; the first and the last value stay too.
    """
    if len(losses) <= most:
        return list(losses)
    kept: list[float | None] = []
    stretches = most // 2
    for number in range(stretches):
        stretch = losses[number * len(losses) // stretches : (number + 1) * len(losses) // stretches]
        known = [(value, place) for place, value in enumerate(stretch) if value is not None]
        ends = sorted((min(known), max(known)), key=lambda end: end[1]) if known else ((None, 0), (None, 0))
        kept += [value for value, _ in ends]
    return [losses[0], *kept[1:-1], losses[-1]]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _meaning(design: Design) -> dict[str, Any]:
    """What a step computes."""
    document = design.model_dump(mode="json", include=set(MEANS))
    document["training"] = {key: value for key, value in document["training"].items() if key not in STEERS}
    return document


def _stages(design: Design, ran: Prediction) -> list[int] | None:
    """The layers of each stage: open as before where that comes to what ran, else written down."""
    given = design.pipeline.stages
    if given:
        return list(given)
    return None if layers_per_stage(design) == ran.costs.layers else list(ran.costs.layers)


def _figures(last: Mapping[str, Any] | None, done: int, total: int, typical_s: float | None) -> list[list[str]]:
    """Each a value and its name: the step is the last one until a typical one is known."""
    if last is None:
        return [["-", "loss"], ["-", "steps"], ["-", "last step"], ["-", "tokens/s"]]
    step = last
    if typical_s:
        step = {**last, "seconds": typical_s, "tokens_per_s": last["tokens_per_s"] * last["seconds"] / typical_s}
    return [
        [loss_in_words(last["loss"]), "loss"] if "loss" in last else ["rehearsed", "no loss"],
        [f"{done} of {total}", "steps"],
        [step_time(step), "typical step" if typical_s else "last step"],
        [quantity(step["tokens_per_s"], ""), "tokens/s" if last.get("unit", "s") == "s" else "tokens a unit"],
    ]


def _status(entry: Entry, done: int, last: Mapping[str, Any] | None) -> str:
    """One line beside the launch button."""
    state = entry.state
    if state is State.STARTING or (state is State.RUNNING and last is None):
        return "starting ..."
    manner = _manner(entry)
    if state is State.RUNNING:
        return f"{manner}step {done} of {entry.steps}{loss_of(last)}"
    if state is State.SUCCEEDED:
        return f"{manner}done: {done} steps{loss_of(last)}"
    word = str(state).lower()
    return entry.reason if entry.reason.startswith(word) else f"{word}: {entry.reason}".removesuffix(": ")


def _manner(entry: Entry) -> str:
    """How a run differs from plain training, before what else is said of it."""
    return f"{entry.manner}: " if entry.manner else ""


def _diverged(losses: Sequence[float | None]) -> list[str]:
    if not losses or losses[-1] is not None:
        return []
    since = next((step for step in range(len(losses) - 1, -1, -1) if losses[step] is not None), -1) + 1
    return [f"the loss is not a number since step {since + 1}: try a smaller training.lr, or a training.clip_norm"]
