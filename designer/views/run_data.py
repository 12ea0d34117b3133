"""Data of a run on the page, read from its folder as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from meshwave.designer.views.run_comparison import comparison_data
from meshwave.designer.views.run_text import describe_status, run_metrics, step_document
from meshwave.designer.views.step_curve import SHOWN_VALUES, StepCurve
from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.findings import Problem
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs import Bundle, Entry, Run
from meshwave.engine.runs.accuracy import MeshMemory, compare
from meshwave.engine.runs.accuracy.stragglers import find_stragglers
from meshwave.engine.runs.attempts import read_attempts
from meshwave.engine.runs.emulation.hosts import matches_links, prediction_links, read_executed_bundle
from meshwave.engine.runs.recording import Recording, read_recording
from meshwave.engine.runs.run_comparison import compare_run
from meshwave.engine.runs.run_folder import read_launched_design
from meshwave.engine.units import format_time

SHOWN_RUNS = 30
READ_SPANS_INTERVAL_S, SPANS_TIME_SHARE = 0.5, 0.05
"""Shortest interval between reads of a live timeline in seconds, and largest fraction of the time for reading. Each
read processes all spans so far.
"""


class RunCurves(NamedTuple):
    """The curves of a run: values at equal distances over its steps; None if a value is not a number."""

    run: str
    name: str
    steps: int
    losses: list[float | None]  # empty for a dry run
    seconds: list[float | None]
    unit: str  # of the step times
    evaluations: list[tuple[int, float]] = []
    """Steps, counted from 1, with the loss on held-out data after them."""
    attempts: list[int] = []
    """First step, counted from 1, of each attempt after the first one."""


class FollowedRun:
    """A run that is being followed, with the data read so far."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.recording: Recording | None = None
        self.measured: Timeline | None = None  # the timeline of the typical step so far
        self.memory: list[MeshMemory] = []  # the result of the last comparison
        self.summary: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.curves = RunCurves(run.id, "", 0, [], [], "s")
        self.log_bytes = 0  # of all processes
        self._begin()
        self.is_over = False
        self._spans = RecordedSpans(run)
        self.stragglers: list[Problem] = []
        self._design: Design | None = None
        self._bundle: Bundle | None = None
        self._comparison_key: tuple[Any, ...] = ()
        self._comparison: dict[str, Any] = {}

    def _begin(self) -> None:
        """Read the metrics from the first step on."""
        self._metrics = self.run.follow_metrics()
        self._loss_curve, self._time_curve = StepCurve(), StepCurve()
        self._evaluations: list[tuple[int, float]] = []
        self._first_step = 0
        self._last: dict[str, Any] | None = None

    def read_new(self) -> None:
        """Read new data of the run; a finished run is read only once."""
        if self.is_over:
            return
        entry = self.run.entry  # read before the files, which are complete if the run is over
        fresh = self._metrics.new_rows()
        if fresh and self._last is not None and fresh[0]["step"] != self._last["step"] + 1:
            self._begin()  # the run was restarted from a checkpoint, so that its last steps were run again
            fresh = self._metrics.new_rows()
        if fresh and self._last is None:
            self._first_step = fresh[0]["step"]
        for row in fresh:
            self._loss_curve.add(row.get("loss"))
            self._time_curve.add(row["seconds"])
            self._add_evaluation(row)
        if fresh:
            self._last = fresh[-1]
        if fresh or not self.curves.name:
            self.curves = self._curves(entry)
        self.log_bytes = sum(path.stat().st_size for path in self.run.folder.glob("rank-*.log"))
        self.summary = self._summary(entry)
        done = self._loss_curve.steps
        self.status = {
            "running": not entry.state.is_over,
            "share": done / max(entry.steps, 1),
            "words": describe_status(entry, done, self._last, self.run.waiting_reason),
        }
        self.is_over = entry.state.is_over and self._metrics.is_at_end

    def _add_evaluation(self, row: dict[str, Any]) -> None:
        if (loss := row.get("eval_loss")) is not None:
            self._evaluations = [*self._evaluations, (row["step"] + 1, loss)]
            if len(self._evaluations) > SHOWN_VALUES:
                self._evaluations = self._evaluations[1::2]

    def _curves(self, entry: Entry) -> RunCurves:
        last = self._last or {}
        losses = self._loss_curve.values() if "loss" in last else []
        name = f"{entry.name}, {format_time(entry.created_s, exact=True)}"
        seconds, unit = self._time_curve.values(), last.get("unit", "s")
        steps = [each.resumed_from - self._first_step + 1 for each in read_attempts(self.run.folder)]
        attempts = [max(1, step) for step in steps]
        return RunCurves(entry.id, name, self._loss_curve.steps, losses, seconds, unit, self._evaluations, attempts)

    def _summary(self, entry: Entry) -> dict[str, Any]:
        done = self._loss_curve.steps
        return {
            "id": self.run.id,
            "name": entry.name,
            "manner": entry.manner,
            "state": str(entry.state),
            "reason": entry.reason,
            "done": done,
            "total": entry.steps,
            "figures": run_metrics(self._last, done, entry.steps, self._median_step_s(entry)),
            "notes": [*(each.message for each in self.stragglers), *self._divergence(), *self.run.notes()],
        }

    def _divergence(self) -> list[str]:
        """Return a note if the loss has diverged, with the step."""
        after = self._loss_curve.diverged_after
        if after is None or not self.curves.losses:
            return []
        return [f"the loss has been NaN since step {after + 1}: use a smaller training.lr, or set training.clip_norm"]

    def read_spans(self) -> bool:
        """Read the timeline of a step if there are new spans or the run has ended; return whether it was read."""
        if not self._loss_curve.steps or not self._spans.is_due(self.is_over):
            return False
        found = self._spans.read_new(self.is_over)
        if found is not None:
            with self._spans.throttle():
                self.recording, self.measured = found, found.timeline()
                self.stragglers = find_stragglers(found)
            self.summary = self._summary(self.run.entry)
        return found is not None

    def _median_step_s(self, entry: Entry) -> float | None:
        """Return the median step time of a run that is over; None while it runs or without a recording."""
        if self.recording is None or not entry.state.is_over:
            return None
        return float(np.median(self.recording.seconds))

    def comparison(self, expected: Prediction) -> dict[str, Any]:
        """Return the comparison of the measured step with a prediction, for the page."""
        key = (self.recording, expected, self.is_over)
        if key != self._comparison_key:
            with self._spans.throttle():
                self._comparison_key, self._comparison = key, self._compare(expected)
        return self._comparison

    def _compare(self, expected: Prediction) -> dict[str, Any]:
        """Compare the run with a prediction; for a finished run, also store the error of its own prediction."""
        assert self.recording is not None, "the spans of the run must be read before they are compared"
        own, bundle = self.prediction, self.bundle
        try:
            if self.is_over and own is not None and bundle is not None:
                compare_run(self.run, bundle, self.recording)
            links = prediction_links(bundle) if bundle is not None and expected is own else ""
            found = compare(expected, self.recording, links)
            self.memory = found.memory
            return comparison_data(found, self.run.contention)
        except MeshwaveError:
            return {"rows": []}  # the version of Meshwave that launched the run lowered the design to another program

    def matches(self, prediction: Prediction) -> bool:
        """Return whether the run measured the predicted step: the same program, work and links."""
        return self.has_same_program(prediction) and self.has_same_links(prediction.design)

    def has_same_program(self, prediction: Prediction) -> bool:
        """Return True if the run executed the predicted program and computations, regardless of its links."""
        if self.measured is None or self.measured.digest != prediction.program.digest:
            return False
        return self.computes_step_of(prediction.design)

    def has_same_links(self, design: Design) -> bool:
        """Return True unless the run emulated other links than the prediction assumes."""
        return self.bundle is None or matches_links(self.bundle, design)

    def computes_step_of(self, design: Design) -> bool:
        """Return True if the run trains the same steps as a design; a dry run must also have the same costs."""
        if self.design is None or step_document(self.design) != step_document(design):
            return False
        if not self.is_dry_run:
            return True
        bundle = self.bundle
        priced = self.design if bundle is None or not bundle.design.cost.is_in_seconds else bundle.design
        return (priced.cost, priced.cluster) == (design.cost, design.cluster)

    @property
    def is_dry_run(self) -> bool:
        """True if the run was a dry run."""
        return self.run.entry.is_rehearsal

    @property
    def design(self) -> Design | None:
        """The design that was launched; None if its file is missing or of another version."""
        if self._design is None:
            try:
                self._design = read_launched_design(self.run.folder)
            except MeshwaveError:
                return None  # gone, or of another version
        return self._design

    @property
    def bundle(self) -> Bundle | None:
        """The contents of the run folder at launch; None if they are missing or of another version."""
        if self._bundle is None:
            try:
                self._bundle = read_executed_bundle(self.run.folder)
            except MeshwaveError:
                return None  # gone, or of another version
        return self._bundle

    @property
    def prediction(self) -> Prediction | None:
        """The prediction of the run's own design on its links; None if its profile is missing."""
        try:
            return None if self.bundle is None else self.bundle.prediction
        except MeshwaveError:
            return None


class RecordedSpans:
    """The recorded spans of a run, read when the file has grown or the run has ended; slow reads are less frequent."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._read = (0, False)  # bytes, and True if the run was over
        self._next_s = 0.0

    def is_due(self, is_over: bool) -> bool:
        """Return True if there may be new spans and the next read is due."""
        return (is_over or time.monotonic() >= self._next_s) and (self._bytes(), is_over) != self._read

    def read_new(self, is_over: bool) -> Recording | None:
        """Return the recording so far; None if it has no complete step."""
        with self.throttle():
            self._read = (
                self._bytes(),
                is_over,
            )  # before reading, so that spans written during the read are read next time
            try:
                found = read_recording(self._run.folder)
            except MeshwaveError:
                return None
            return found if found.steps else None

    @contextmanager
    def throttle(self) -> Iterator[None]:
        """Delay the next read in proportion to the duration of the block."""
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self._next_s = max(self._next_s, time.monotonic() + max(READ_SPANS_INTERVAL_S, took / SPANS_TIME_SHARE))

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._run.folder.glob("spans-*.bin"))
