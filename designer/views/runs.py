"""Launch the open design and follow it: the Python face of ``static/runs.js``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import param

from designer.canvases._canvas import Canvas, read_static, shared_modules
from designer.session import Session
from designer.words import when
from engine.design import Design, parse_design
from engine.errors import InputError, MeshwaveError, Problem
from engine.launch import Entry, Launcher, Record, Run, State, loss_in_words, reconcile
from engine.launch.texts import LARGEST_UPLOAD_BYTES, keep_text
from engine.palette import WORDS
from engine.predict import Prediction, predict
from engine.recording import read_recording
from engine.timeline import Overlay, Timeline, overlay
from engine.units import quantity

SHOWN_RUNS, SHOWN_LINES, SHOWN_LOSSES = 30, 60, 600
LOOK_EVERY_S = 0.15
LOOK_AROUND_EVERY_S = 2.0
"""How often it is asked whether what launched a run is still there, and what this machine can do."""
READ_SPANS_EVERY_S, SPANS_SHARE = 0.5, 0.05
"""A live timeline is read anew so often, and never for more than this share of the time: each
reading takes in all spans so far."""

MEANS = ("model", "meshes", "pipeline", "cost", "training")
STEERS = {"steps", "seed", "lr"}
"""Of training, what changes no time of a step."""
MANY_TIMES = 10
"""From there on an error is told as a factor: +900 % says less than ten times."""


class LaunchBar(Canvas):
    """The button that runs the open design, and how the run stands."""

    launchable = param.Dict(default={"allowed": False, "label": "Launch", "reason": ""})
    notice = param.String(default="", doc="Why the last launch did not happen.")
    status = param.Dict(default={}, doc="Whether a run is under way, its share of steps done, and words.")

    _esm = read_static("launch.js")
    _importmap: ClassVar = shared_modules("canvas.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("launch.css")]
    _gestures = ("launch", "cancel")

    def __init__(self, launch: Callable[[str | None], Any], cancel: Callable[[], Any], **params: Any) -> None:
        super().__init__(**params)
        self._launch, self._cancel = launch, cancel

    def focus_button(self) -> None:
        self._send_msg({"type": "focus"})

    def _on_launch(self, gesture: Mapping[str, Any]) -> None:
        self.notice = ""
        try:
            self._launch(str(gesture.get("key") or "") or None)
        except MeshwaveError as error:
            self.notice = str(error)
        except Exception as error:
            self.notice = f"the launch went wrong inside Meshwave: {error!r}"
            raise

    def _on_cancel(self, gesture: Mapping[str, Any]) -> None:
        self._cancel()


class RunsPanel(Canvas):
    """One run of the record and how it stands; polled, since a run may be anybody's."""

    run = param.Dict(default={})
    losses = param.List(default=[], doc="At most SHOWN_LOSSES, evenly over the steps; None where it is no number.")
    log = param.String(default="")
    comparison = param.Dict(default={})
    runs = param.List(default=[])
    text = param.Dict(default={}, doc="The name of the design's own text, or None, and how large one may be.")

    _esm = read_static("runs.js")
    _importmap: ClassVar = shared_modules("canvas.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("runs.css")]
    _gestures = ("open", "overlay", "bring_text", "default_text")

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
        self.bar = LaunchBar(self._launch, self._cancel, **params)
        self._laid = True
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
        """The run whose steps are those that are predicted: the one that is shown, unless it was taken off the
        prediction, else the latest that is over."""
        if self._shown is not None and self._shown.is_of(prediction):
            return self._shown.run if self._laid else None
        for entry in self._record.all(SHOWN_RUNS):
            if entry.digest == prediction.program.digest and entry.state.is_over:
                run = _Shown(Run(self._record, entry.id))
                if run.computes(prediction.design):
                    return run.run
        return None

    # ---- gestures ----

    def _launch(self, key: str | None) -> None:
        session = self._session
        if session.errors:
            raise InputError(f"the design cannot run as it stands: {session.errors[0]}")
        prediction = session.prediction
        run = self._launcher.submit(prediction.design, prediction.program, prediction.costs.layers, key=key)
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

    def _on_bring_text(self, gesture: Mapping[str, Any]) -> None:
        name = keep_text(str(gesture.get("name", "")), str(gesture.get("text", "")))
        self._session.edit("training.data", name, f"train on {name}")
        self._follow_design()  # also where the name stays and only the text is another

    def _on_default_text(self, gesture: Mapping[str, Any]) -> None:
        self._session.edit("training.data", None, "train on the text that comes with Meshwave")

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
        self._say_whether_it_can_run()
        self._lay()

    def _say_whether_it_can_run(self) -> None:
        reason = self._refusal()
        processes = sum(len(mesh.devices) for mesh in self._session.design.meshes)
        label = f"Launch {processes} process{'es' if processes != 1 else ''}"
        self.bar.launchable = {"allowed": not reason, "label": label, "reason": reason}

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
        words = f"{done} of {entry.steps} steps" + (f", loss {loss_in_words(last['loss'])}" if last else "")
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
        self.param.update(losses=[], log="", comparison={}, run={})
        self._on_shown(shown.run.id if shown else "")

    def _tell(self, shown: _Shown) -> None:
        self.param.update(run=shown.summary, losses=shown.losses, log=shown.log)
        if shown.read_spans() or (shown.measured is not None and not self.comparison):
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
        self._session.measured = measured if same and self._laid else None
        rows = _compare(expected, measured) if expected else []
        self.comparison = {
            "rows": rows,
            "laid": self._laid and same,
            "same": same,
            "whose": "" if same else " of the run's own design",
        }


class _Shown:
    """A run that is followed: what was read of it so far, each part once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.measured: Timeline | None = None
        self.summary: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.losses: list[float | None] = []  # as they are drawn
        self.log = ""
        self._losses: list[float | None] = []  # of every step
        self._last: dict[str, Any] | None = None
        self.is_over = False
        self._spans = _Spans(run)
        self._design: Design | None = None
        self._prediction: Prediction | None = None

    def read(self) -> None:
        """Take in what is new since the last look; a run that is over is read to its end once."""
        if self.is_over:
            return
        entry = self.run.entry  # first: what is read after its end is all there is
        fresh = self.run.metrics(since=len(self._losses))
        if fresh:
            self._losses += [_number(row["loss"]) for row in fresh]
            self._last = fresh[-1]
            self.losses = reduced(self._losses)
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
            "state": str(entry.state),
            "reason": entry.reason,
            "done": done,
            "total": entry.steps,
            "figures": _figures(self._last, done, entry.steps),
            "notes": [*_diverged(self._losses), *_notes(self.run, entry)],
        }

    def read_spans(self) -> bool:
        """Read the timeline of a step where there is more to read; whether there was."""
        if not self._losses or not self._spans.is_due(self.is_over):
            return False
        found = self._spans.read()
        self.measured = found or self.measured
        return found is not None

    def is_of(self, prediction: Prediction) -> bool:
        """Whether the measured step is the predicted one: the program, and what its actions compute."""
        if self.measured is None or self.measured.digest != prediction.program.digest:
            return False
        return self.computes(prediction.design)

    def computes(self, design: Design) -> bool:
        """Whether a step of the run is a step of a design."""
        return self.design is not None and _meaning(self.design) == _meaning(design)

    @property
    def design(self) -> Design | None:
        """What the run was launched with."""
        if self._design is None:
            try:
                self._design = parse_design((self.run.folder / "design.json").read_bytes())
            except (OSError, MeshwaveError):
                return None  # gone, or of another version
        return self._design

    @property
    def prediction(self) -> Prediction | None:
        """That of the run's own design."""
        if self._prediction is None and self.design is not None:
            try:
                self._prediction = predict(self.design)
            except MeshwaveError:
                return None
        return self._prediction


class _Spans:
    """The recorded spans of a run, read only where they have grown, and the rarer the longer it takes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._size = 0
        self._next_s = 0.0

    def is_due(self, is_over: bool) -> bool:
        return (is_over or time.monotonic() >= self._next_s) and self._bytes() != self._size

    def read(self) -> Timeline | None:
        """The timeline of the typical step so far; None if nothing whole is written."""
        began = time.monotonic()
        self._size = self._bytes()  # before the reading: what comes meanwhile is read next time
        try:
            return read_recording(self._run.folder).timeline()
        except MeshwaveError:
            return None  # the run may have ended before its first step
        finally:
            took = time.monotonic() - began
            self._next_s = time.monotonic() + max(READ_SPANS_EVERY_S, took / SPANS_SHARE)

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
    """What a step computes and what it is priced by."""
    document = design.model_dump(mode="json", include=set(MEANS))
    document["training"] = {key: value for key, value in document["training"].items() if key not in STEERS}
    return document


def _compare(expected: Prediction, measured: Timeline) -> list[list[str]]:
    try:
        return _rows(overlay(expected.timeline, measured), expected.costs.unit)
    except MeshwaveError:
        return []  # this version makes another program of that design than the one that launched it


def _rows(joined: Overlay, unit: str) -> list[list[str]]:
    """The iteration, then every kind of action: predicted, measured, error."""
    kinds = {"iteration": (joined.predicted_s, joined.measured_s)}
    kinds |= {kind: (values["predicted_s"], values["measured_s"]) for kind, values in joined.by_kind.items()}
    return [
        [WORDS.get(kind, kind), *_compared(expected, took, unit)]
        for kind, (expected, took) in kinds.items()
        if expected or took
    ]


def _compared(expected: float, took: float, unit: str) -> tuple[str, str, str]:
    if unit != "s":
        return f"{expected:.3g} units", quantity(took, "s"), "-"
    return quantity(expected, "s"), quantity(took, "s"), _error(expected, took)


def _error(expected: float, took: float) -> str:
    if took <= 1e-7 or expected <= 1e-12:
        return "-"
    times = took / expected
    return f"× {times:.0f}" if times >= MANY_TIMES else f"{times - 1:+.0%}"


def _figures(last: Mapping[str, Any] | None, done: int, total: int) -> list[list[str]]:
    if last is None:
        return [["-", "loss"], ["-", "step"], ["-", "a step"], ["-", "tokens/s"]]
    return [
        [loss_in_words(last["loss"]), "loss"],
        [f"{done} of {total}", "steps"],
        [quantity(last["seconds"], "s"), "a step"],
        [quantity(last["tokens_per_s"], ""), "tokens/s"],
    ]


def _status(entry: Entry, done: int, last: Mapping[str, Any] | None) -> str:
    """One line beside the launch button."""
    state = entry.state
    if state is State.STARTING or (state is State.RUNNING and last is None):
        return "starting ..."
    loss = f", loss {loss_in_words(last['loss'])}" if last else ""
    if state is State.RUNNING:
        return f"step {done} of {entry.steps}{loss}"
    if state is State.SUCCEEDED:
        return f"done: {done} steps{loss}"
    word = str(state).lower()
    return entry.reason if entry.reason.startswith(word) else f"{word}: {entry.reason}".removesuffix(": ")


def _diverged(losses: Sequence[float | None]) -> list[str]:
    if not losses or losses[-1] is not None:
        return []
    since = next((step for step in range(len(losses) - 1, -1, -1) if losses[step] is not None), -1) + 1
    return [f"the loss is not a number since step {since + 1}: try a smaller training.lr, or a training.clip_norm"]


def _notes(run: Run, entry: Entry) -> list[str]:
    """What the run says of where it computes, and what its times are worth there."""
    started = [event for event in run.events() if event.get("event") == "started"]
    notes = run.notes()
    processes, cores = entry.processes, os.cpu_count() or 1
    if processes > cores and any(event.get("device") == "CPU" for event in started):
        notes.append(f"{processes} processes take turns on {cores} cores: computations take longer than predicted")
    return notes
