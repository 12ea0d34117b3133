"""A prediction held against the recording of a run, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.messages.predictions import COVERAGE
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import WORDS, Action, Op
from meshwave.engine.program.timeline import Timeline, check_same_program
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs.accuracy.action_durations import MeasuredRows, keeps_busy, measured_rows
from meshwave.engine.runs.accuracy.block_comparison import Waits, Within, by_name, insides, waits
from meshwave.engine.runs.accuracy.error_causes import Cause, Search
from meshwave.engine.runs.recording import WITHIN, Recording
from meshwave.engine.units import duration, number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DOUBTFUL = 0.05
"""From this share of the shortest transfer on, the clocks' uncertainty is worth a word."""
LONGEST, MIDDLE, SHORTEST = 75, 50, 25
"""The percentiles that say how steps spread."""
COMPILED = "blocks were compiled, of which no prediction knows"
ERROR_IS = "(measured - predicted) / predicted, above 0 where it took longer"


class Compared(NamedTuple):
    """The same thing predicted and measured; seconds are of one of ``number`` such things."""

    predicted_s: float
    measured_s: float
    number: int = 1
    at_most: bool = False
    """A transfer that nobody ever waited for: how long it took is known from above alone."""

    @property
    def error(self) -> float | None:
        """None also where it took at most more than was predicted, which may be less."""
        known = not self.at_most or self.measured_s <= self.predicted_s
        return error(self.predicted_s, self.measured_s) if known else None


def error(predicted: float, measured: float) -> float | None:
    """See ``ERROR_IS``; None where nothing was predicted."""
    return measured / predicted - 1 if predicted else None


class Link(NamedTuple):
    """What is sent from a mesh to another."""

    source: int  # rank
    target: int


class Iteration(NamedTuple):
    """How long a step takes: the median of those that are timed, and the middle half of them."""

    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    steps: int
    warm_up: int  # steps that were left out at the beginning

    @property
    def error(self) -> float | None:
        return error(self.predicted_s, self.measured_s)


class MeshMemory(NamedTuple):
    """The most that a device of a mesh holds at once; measured on the fullest of them."""

    mesh: str
    predicted_bytes: float
    measured_bytes: float
    predicted: Mapping[str, float]  # by category
    measured: Mapping[str, float]  # as far as it can be told apart
    how: str

    @property
    def error(self) -> float | None:
        return error(self.predicted_bytes, self.measured_bytes)

    @property
    def by_category(self) -> dict[str, tuple[float, float]]:
        """Predicted and measured, as finely as both tell it: what comes and goes within a step is measured together."""
        alone = {kind: (size, self.measured[kind]) for kind, size in self.predicted.items() if kind in self.measured}
        together = sum(size for kind, size in self.predicted.items() if kind not in alone)
        rest = {kind: (0.0, size) for kind, size in self.measured.items() if kind not in alone}
        return {**alone, **rest, **({WITHIN: (together, self.measured[WITHIN])} if WITHIN in rest else {})}


class LayerTime(NamedTuple):
    """A step of a layer within one action of a stage, on the average of the devices that compute it together."""

    mesh: str
    action: Action
    name: str
    compared: Compared


@dataclass(frozen=True, eq=False)
class Comparison:
    """A prediction held against the recording of a run of its program."""

    prediction: Prediction
    recording: Recording
    timeline: Timeline  # of the typical step
    predicted_for: str = ""
    """What the prediction is made for where that is not what is drawn, such as other links; a sentence's words."""

    # ---- the step ----

    @property
    def comparable(self) -> bool:
        """Whether there is anything to be off by: units are no seconds, but a rehearsal waits and is read in them."""
        return self.prediction.costs.unit == "s" or self.recording.source == "rehearsed"

    @property
    def unit(self) -> str:
        """Of what was measured: ``s``, or the units that a rehearsal was of."""
        return self.prediction.costs.unit if self.recording.source == "rehearsed" else "s"

    @cached_property
    def iteration(self) -> Iteration:
        took = self.recording.seconds
        low, middle, high = (float(each) for each in np.percentile(took, (SHORTEST, MIDDLE, LONGEST)))
        return Iteration(self.prediction.timeline.makespan, middle, low, high, len(took), self.recording.warm_up)

    @cached_property
    def rows(self) -> MeasuredRows:
        """What every action took."""
        return measured_rows(self.prediction, self.recording)

    # ---- by what it is ----

    @cached_property
    def by_kind(self) -> dict[Op, Compared]:
        """The mean over the actions of each kind; a RECV is a part of its SEND."""
        program = self.prediction.program
        return {Op(int(op)): self._mean(program.op == op) for op in np.unique(program.op[program.spans])}

    @cached_property
    def by_mesh(self) -> dict[int, Compared]:
        """Seconds in which a mesh computes in a step, the optimizer's included, by its rank."""
        program = self.prediction.program
        return {rank: self._total(keeps_busy(program) & (program.rank == rank)) for rank in range(program.ranks)}

    @cached_property
    def by_link(self) -> dict[Link, Compared]:
        """What a transfer takes, from its SEND (or, where that is later, from when its receiver was ready for it)
        to its arrival, on the average of those from a mesh to another."""
        program = self.prediction.program
        sends = program.is_send
        pairs = sorted({*zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)})
        return {
            Link(*pair): self._mean(sends & (program.rank == pair[0]) & (program.peer == pair[1])) for pair in pairs
        }

    @cached_property
    def insides(self) -> list[Within]:
        """The actions of which the run has recorded the inside: of meshes with experts."""
        return [*insides(self.prediction, self.recording)]

    @cached_property
    def by_layer(self) -> list[LayerTime]:
        """The layers of each block of which the run has recorded the inside."""
        return [each for within in self.insides for each in self._layers(within)]

    def _layers(self, within: Within) -> Iterator[LayerTime]:
        expected, took = by_name(within.expected), by_name(within.took)
        for name in dict.fromkeys((*expected, *took)):
            compared = Compared(expected.get(name, 0.0), took.get(name, 0.0))
            yield LayerTime(self.timeline.meshes[within.rank], within.action, name, compared)

    @cached_property
    def waits(self) -> Waits:
        """How long devices stand still within their computations, as far as the run has recorded it."""
        return waits(self.prediction.program, self._predicted, self.rows.seconds, self.insides)

    @cached_property
    def memory(self) -> list[MeshMemory]:
        """The meshes of which memory was measured."""
        return [*_memory(self.prediction, self.recording)]

    @cached_property
    def cause(self) -> Cause | None:
        """Where the error of the step comes from; None where there is none, or nothing to be off by."""
        if not self.comparable:
            return None
        measured_s = self.iteration.measured_s
        return Search(self.prediction, self.rows.seconds, self.waits, self.timeline, self.unit, measured_s).cause

    @property
    def label(self) -> str:
        """What is to be known before anything is compared: that it was a rehearsal, and at which scale; for which links
        the prediction is, where these are not drawn; and what the run did that no prediction knows of."""
        compiled = self.prediction.design.training.compile and self.recording.source == "measured"
        said = (self._rehearsed, self.predicted_for, COMPILED if compiled else "")
        return "; ".join(filter(None, said))

    @property
    def _rehearsed(self) -> str:
        if self.recording.source != "rehearsed":
            return ""
        scale = number(self.recording.scale)
        if self.unit == "s" and self.recording.scale == 1:
            return "rehearsal: computations were waits, as long as they are predicted to take"
        stretched = f"{scale} times as long" if self.unit == "s" else f"{scale} s for a unit"
        return f"rehearsal: computations were waits, {stretched}; times are divided by that"

    @cached_property
    def unmeasured(self) -> list[str]:
        """What its profile has not measured of the design, where calibrated costs have predicted it."""
        return [problem.message for problem in self.prediction.warnings if problem.code in COVERAGE]

    @cached_property
    def doubts(self) -> str:
        """What is to be known of the clocks before two meshes are compared; empty where they were not."""
        words, within = self.recording.clocks.words, self.recording.clocks.uncertainty_s / self.recording.scale
        known = [each.measured_s for each in self.by_link.values() if not each.at_most and each.measured_s > 0]
        if words and within and known and within > DOUBTFUL * min(known):
            least = min(known)
            return f"{words}: a transfer of {duration(least, self.unit)} may be off by {within / least:.0%}"
        return words

    def _mean(self, rows: Bools) -> Compared:
        """Of those that are known; where none is, of all what they took at most."""
        known = rows & self.rows.known
        told = known if known.any() else rows
        each = max(int(told.sum()), 1)
        predicted_s, measured_s = (seconds[told].sum() for seconds in (self._predicted, self.rows.at_most))
        return Compared(float(predicted_s) / each, float(measured_s) / each, int(rows.sum()), at_most=not known.any())

    def _total(self, rows: Bools) -> Compared:
        return Compared(float(self._predicted[rows].sum()), float(self.rows.seconds[rows].sum()))

    @property
    def _predicted(self) -> Floats:
        return self.prediction.costs.seconds

    # ---- as data ----

    def as_data(self) -> dict[str, Any]:
        """What ``meshwave run --json`` prints of it; SI units."""
        iteration, meshes, timelines = self.iteration, self.timeline.meshes, (self.prediction.timeline, self.timeline)
        why = (
            None
            if self.comparable
            else ("the prediction is in units, which are no seconds: there is nothing to be off by; use roofline costs")
        )
        pairs = {"predicted": timelines[0], "measured": timelines[1]}
        return {
            "source": self.recording.source,
            "label": self.label,
            "predicted_for": self.predicted_for or None,
            "unmeasured": self.unmeasured,
            "scale": self.recording.scale,
            "unit": self.prediction.costs.unit,
            "error_is": ERROR_IS,
            "no_error_since": why,
            "predicted_s": iteration.predicted_s,
            "measured_s": iteration.measured_s,
            "error": iteration.error if self.comparable else None,
            "iteration": iteration._asdict(),
            "cause": self.cause.to_json() if self.cause else None,
            "bubble_ratio": {name: each.bubble_ratio for name, each in pairs.items()},
            "exposed_communication_s": {name: each.exposed_communication.tolist() for name, each in pairs.items()},
            "by_kind": {op.name: {"words": WORDS[op.name], **self._as_data(each)} for op, each in self.by_kind.items()},
            "by_mesh": [{"mesh": meshes[rank], **self._as_data(each)} for rank, each in self.by_mesh.items()],
            "by_link": [
                {"from": meshes[link.source], "to": meshes[link.target], **self._as_data(each)}
                for link, each in self.by_link.items()
            ],
            "by_layer": [
                {"mesh": each.mesh, "action": str(each.action), "layer": each.name, **self._as_data(each.compared)}
                for each in self.by_layer
            ],
            "memory": [
                {**each._asdict(), "error": each.error, "by_category": each.by_category} for each in self.memory
            ],
            "clocks": {"words": self.doubts, "uncertainty_s": self.recording.clocks.uncertainty_s},
        }

    def _as_data(self, compared: Compared) -> dict[str, Any]:
        return {
            "predicted_s": compared.predicted_s,
            "measured_s": compared.measured_s,
            "error": compared.error if self.comparable else None,
            "count": compared.number,
            "at_most": compared.at_most,
        }


def compare(prediction: Prediction, recording: Recording, predicted_for: str = "") -> Comparison:
    """``predicted_for`` says what the prediction is made for where that is not what is drawn.

    Raises:
        RunError: no step was recorded by all ranks yet.
        InputError: the run was of another program.
    """
    if recording.steps:
        check_same_program(prediction.program.digest, recording.digest)
        if recording.rows(recording.steps[:1]).shape[1] != len(prediction.program):
            raise RunFolderError(
                f"the spans in {recording.folder} are not those of its program; launch the design again"
            )
    return Comparison(prediction, recording, recording.timeline(), predicted_for)


# ---- memory ----


def _memory(prediction: Prediction, recording: Recording) -> Iterator[MeshMemory]:
    predicted, first = prediction.memory, 0
    for rank, mesh in enumerate(prediction.design.meshes):
        processes = range(first, first := first + len(mesh.devices))
        found = [recording.memory[process] for process in processes if process in recording.memory]
        if found:
            fullest = max(found, key=lambda each: each.peak_bytes)
            by_category = {kind: float(size[rank]) for kind, size in predicted.by_category.items()}
            total = float(predicted.total_bytes[rank])
            yield MeshMemory(mesh.name, total, fullest.peak_bytes, by_category, fullest.by_category, fullest.how)
