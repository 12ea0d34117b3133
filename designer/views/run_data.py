"""Launch the open design and follow it: the Python face of ``static/panels/runs.js``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshwave.designer.views._loss_curve import LossCurve
from meshwave.designer.views.run_comparison import as_shown
from meshwave.designer.views.run_text import _figures, _meaning, _status
from meshwave.engine.document import Design
from meshwave.engine.errors import MeshwaveError
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs import Bundle, Entry, Run
from meshwave.engine.runs.accuracy import compare
from meshwave.engine.runs.emulation.hosts import predicted_for, predicts_links_of, read_as_run
from meshwave.engine.runs.recording import Recording, read_recording
from meshwave.engine.runs.run_comparison import comparison_of
from meshwave.engine.runs.run_folder import read_drawn

SHOWN_RUNS, SHOWN_LINES = 30, 60
READ_SPANS_EVERY_S, SPANS_SHARE = 0.5, 0.05
"""A live timeline is read anew so often, and never for more than this share of the time: each
reading takes in all spans so far."""


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
        self._metrics = run.follow_metrics()
        self._curve = LossCurve()
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
        fresh = self._metrics.look()
        for row in fresh:
            self._curve.add(row.get("loss"))
        if fresh:
            self._last = fresh[-1]
            self.losses = self._curve.drawn() if "loss" in self._last else []  # a rehearsal has none
        lines = sorted(self.run.log(SHOWN_LINES), key=lambda line: line.process == 0)
        self.log = "\n".join(map(str, lines))  # its end is what is followed: process 0 tells of the steps
        self.summary = self._summary(entry)
        self.status = {
            "running": not entry.state.is_over,
            "share": self._curve.steps / max(entry.steps, 1),
            "words": _status(entry, self._curve.steps, self._last),
        }
        self.is_over = entry.state.is_over and self._metrics.is_at_end

    def _summary(self, entry: Entry) -> dict[str, Any]:
        done = self._curve.steps
        return {
            "id": self.run.id,
            "name": entry.name,
            "manner": entry.manner,
            "state": str(entry.state),
            "reason": entry.reason,
            "done": done,
            "total": entry.steps,
            "figures": _figures(self._last, done, entry.steps, self._typical_s(entry)),
            "notes": [*(self._curve.notes if self.losses else []), *self.run.notes()],
        }

    def read_spans(self) -> bool:
        """Read the timeline of a step where there is more to read; whether there was."""
        if not self._curve.steps or not self._spans.is_due(self.is_over):
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
        return self.bundle is None or predicts_links_of(self.bundle, design)

    def computes(self, design: Design) -> bool:
        """Whether a step of the run is a step of a design; that of a rehearsal takes what it was priced at."""
        if self.design is None or _meaning(self.design) != _meaning(design):
            return False
        if not self.is_rehearsal:
            return True
        bundle = self.bundle
        priced = self.design if bundle is None or not bundle.design.cost.is_in_seconds else bundle.design
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
            except MeshwaveError:
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
