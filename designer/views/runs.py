"""Launch the open design and follow it: the Python face of ``static/runs.js``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

import param

from designer.canvases._canvas import Canvas, read_static, shared_modules
from designer.session import Session
from engine.errors import InputError, MeshwaveError
from engine.launch import Launcher, Record, Run, State
from engine.predict import predict
from engine.recording import read_recording
from engine.timeline import Overlay, Timeline, overlay
from engine.units import quantity

SHOWN_RUNS, SHOWN_LINES = 30, 60
LOOK_EVERY_S = 0.15
READ_SPANS_EVERY_S = 0.5
"""A live timeline is read anew so often: it costs the reading of all spans so far."""


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
    losses = param.List(default=[], item_type=float)
    log = param.String(default="")
    comparison = param.Dict(default={})
    runs = param.List(default=[])

    _esm = read_static("runs.js")
    _importmap: ClassVar = shared_modules("canvas.js")
    _stylesheets: ClassVar = [read_static("canvas.css"), read_static("runs.css")]
    _gestures = ("open", "overlay")

    def __init__(
        self,
        session: Session,
        launcher: Launcher,
        record: Record,
        on_launch: Callable[[], Any] = lambda: None,
        **params: Any,
    ) -> None:
        """``on_launch`` hears that a run was started here, to bring it to the front."""
        super().__init__(**params)
        self._session, self._launcher, self._record = session, launcher, record
        self._on_launched = on_launch
        self.bar = LaunchBar(self._launch, self._cancel, **params)
        self._shown: Run | None = None
        self._laid = True
        self._measured: Timeline | None = None
        self._spans_read_s = 0.0
        self._over = False
        session.param.watch(lambda *_: self._follow_design(), ["design", "problems"])
        self._follow_design()
        self.look()

    # ---- gestures ----

    def _launch(self, key: str | None) -> None:
        session = self._session
        if session.errors:
            raise InputError(f"the design cannot run as it stands: {session.errors[0]}")
        prediction = session.prediction
        run = self._launcher.submit(prediction.design, prediction.program, prediction.costs.layers, key=key)
        self._show(run)
        self.look()
        self._on_launched()

    def _cancel(self) -> None:
        for entry in self._record.active():
            Run(self._record, entry.id, self._launcher if entry.launcher == self._launcher.name else None).cancel()
        self.look()

    def _on_open(self, gesture: Mapping[str, Any]) -> None:
        self._show(Run(self._record, self._record.get(str(gesture["run"])).id))
        self.look()

    def _on_overlay(self, gesture: Mapping[str, Any]) -> None:
        self._laid = bool(gesture.get("on"))
        self._lay()

    def _show(self, run: Run) -> None:
        self._shown, self._measured, self._over, self._spans_read_s = run, None, False, 0.0
        self.param.update(losses=[], log="", comparison={}, run={})

    # ---- looking at what is there ----

    def _follow_design(self) -> None:
        reason = self._refusal()
        processes = sum(len(mesh.devices) for mesh in self._session.design.meshes)
        label = f"Launch {processes} process{'es' if processes != 1 else ''}"
        self.bar.launchable = {"allowed": not reason, "label": label, "reason": reason}
        self._lay()

    def _refusal(self) -> str:
        if self._session.errors:
            return f"Cannot launch: {self._session.errors[0]}"
        can = self._launcher.probe()
        if not can.can_launch:
            return can.why_not
        return "; ".join(str(problem) for problem in self._launcher.problems(self._session.design))

    def look(self) -> None:
        """Bring the panel up to date; called several times a second."""
        entries = self._record.all(SHOWN_RUNS)
        shown = self._shown.id if self._shown else None
        self.runs = [
            {"id": e.id, "name": e.name, "state": str(e.state), "when": _when(e.created_s), "shown": e.id == shown} for e in entries
        ]
        if self._shown is None:
            active = [entry for entry in entries if not entry.state.is_over]
            if active:
                self._show(Run(self._record, active[0].id))
        if self._shown is not None and not self._over:
            self._follow_run(self._shown)

    def _follow_run(self, run: Run) -> None:
        entry, metrics = run.entry, run.metrics()
        self.losses = [float(row["loss"]) for row in metrics]
        self.log = "\n".join(map(str, run.log(SHOWN_LINES)))
        progress = run.progress
        self.run = {
            "id": run.id,
            "name": entry.name,
            "state": str(entry.state),
            "reason": entry.reason,
            "done": len(metrics),
            "total": progress.total,
            "figures": _figures(metrics, progress.total),
            "notes": _notes(run),
        }
        over = entry.state.is_over
        self.bar.status = {
            "running": not over,
            "share": len(metrics) / max(progress.total, 1),
            "words": _status(entry.state, metrics, progress.total, entry.reason),
        }
        due = time.monotonic() - self._spans_read_s > READ_SPANS_EVERY_S
        if metrics and (over or due):
            self._spans_read_s = time.monotonic()
            self._read_spans(run)
        self._over = over

    def _read_spans(self, run: Run) -> None:
        try:
            self._measured = read_recording(run.folder).timeline()
        except MeshwaveError:
            return  # nothing whole is written yet, or the run ended before its first step
        self._lay()

    def _lay(self) -> None:
        """Lay the measured timeline over the prediction of the same program, or say why not."""
        prediction, measured = self._session.prediction, self._measured
        if measured is None or prediction is None:
            self._session.measured, self.comparison = None, {}
            return
        same = prediction.program.digest == measured.digest
        expected = prediction if same else self._own_prediction()
        joined = overlay(expected.timeline, measured) if expected is not None else None
        self._session.measured = measured if same and self._laid else None
        rows = _rows(joined, expected.costs.unit) if joined and expected else []
        self.comparison = {"rows": rows, "laid": self._laid and same, "step": "" if same else " (the run's own design)"}

    def _own_prediction(self) -> Any:
        from engine.launch import read_bundle

        try:
            return predict(read_bundle(self._shown.folder).design) if self._shown else None
        except MeshwaveError:
            return None


def _rows(joined: Overlay, unit: str) -> list[list[str]]:
    """The iteration, then every kind of action: predicted, measured, error."""
    kinds = {"iteration": (joined.predicted_s, joined.measured_s)}
    kinds |= {kind: (values["predicted_s"], values["measured_s"]) for kind, values in joined.by_kind.items()}
    return [[kind, *_compared(expected, took, unit)] for kind, (expected, took) in kinds.items() if expected or took]


def _compared(expected: float, took: float, unit: str) -> tuple[str, str, str]:
    if unit != "s":
        return f"{expected:.3g} units", quantity(took, "s"), "-"
    error = f"{expected / took - 1:+.0%}" if took > 1e-7 and expected else "-"
    return quantity(expected, "s"), quantity(took, "s"), error


def _figures(metrics: list[dict[str, Any]], total: int) -> list[list[str]]:
    if not metrics:
        return [["-", "loss"], ["-", "step"], ["-", "a step"], ["-", "tokens/s"]]
    last = metrics[-1]
    return [
        [f"{last['loss']:.4g}", "loss"],
        [f"{len(metrics)} of {total}", "steps"],
        [quantity(last["seconds"], "s"), "a step"],
        [quantity(last["tokens_per_s"], ""), "tokens/s"],
    ]


def _status(state: State, metrics: list[dict[str, Any]], total: int, reason: str) -> str:
    """One line beside the launch button."""
    if state is State.STARTING or (state is State.RUNNING and not metrics):
        return "starting ..."
    loss = f", loss {metrics[-1]['loss']:.4g}" if metrics else ""
    if state is State.RUNNING:
        return f"step {len(metrics)} of {total}{loss}"
    if state is State.SUCCEEDED:
        return f"done: {len(metrics)} steps{loss}"
    return f"{str(state).lower()}: {reason}"


def _notes(run: Run) -> list[str]:
    """What the run says of where it computes, and what its times are worth there."""
    started = [event for event in run.events() if event.get("event") == "started"]
    notes = [str(event["note"]) for event in started if event.get("note")]
    processes, cores = run.entry.processes, os.cpu_count() or 1
    if processes > cores and any(event.get("device") == "CPU" for event in started):
        notes.append(f"{processes} processes take turns on {cores} cores: computations take longer than predicted")
    return notes


def _when(seconds: float) -> str:
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%d %b %H:%M}"
