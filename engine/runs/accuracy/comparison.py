"""Comparison of a prediction with the recording of a run: step time, actions, meshes, links, layers and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.messages import render
from meshwave.engine.messages.predictions import COVERAGE
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import WORDS, Action, Op
from meshwave.engine.program.timeline import Timeline, check_same_program
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs.accuracy.action_durations import MeasuredDurations, busy_rows, measured_durations
from meshwave.engine.runs.accuracy.block_comparison import (
    BlockWaits,
    RecordedLayers,
    block_waits,
    compare_recorded_blocks,
    step_seconds,
)
from meshwave.engine.runs.accuracy.error_breakdown import ErrorPart, error_parts
from meshwave.engine.runs.accuracy.error_causes import Cause, CauseSearch
from meshwave.engine.runs.recording import WITHIN, Recording
from meshwave.engine.runs.run import Contention
from meshwave.engine.units import duration, format_number, percent

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CLOCK_NOTE_SHARE = 0.05
"""Smallest clock uncertainty, as a share of the shortest transfer, for which a note is shown."""
QUARTILES = (25, 50, 75)
"""Percentiles of the step time that are reported."""
COMPILED_NOTE = "blocks were compiled with torch.compile, which predictions do not model"
ERROR_DEFINITION = "(measured - predicted) / predicted; positive if the run took longer"


class ComparedDuration(NamedTuple):
    """Predicted and measured duration, each the mean of ``number`` occurrences."""

    predicted_s: float
    measured_s: float
    number: int = 1
    at_most: bool = False
    """True if no receiver waited for the transfers, so that the measured duration is an upper bound."""

    @property
    def error(self) -> float | None:
        """Relative error; None if it is unknown, for example for an upper bound above the prediction."""
        known = not self.at_most or self.measured_s <= self.predicted_s
        return relative_error(self.predicted_s, self.measured_s) if known else None


def relative_error(predicted: float, measured: float) -> float | None:
    """Return the relative error of ``ERROR_DEFINITION``, measured / predicted - 1; None if ``predicted`` is 0."""
    return measured / predicted - 1 if predicted else None


class Link(NamedTuple):
    """Link between two meshes, given by the ranks of the source and the target."""

    source: int
    target: int


class Iteration(NamedTuple):
    """Predicted step time, and median and quartiles of the timed steps."""

    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    steps: int
    warm_up: int  # untimed steps at the beginning
    memory_steps: int = 0  # steps that measured memory, which are not timed

    @property
    def error(self) -> float | None:
        """Relative error."""
        return relative_error(self.predicted_s, self.measured_s)


class MeshMemory(NamedTuple):
    """Peak memory per device of a mesh, in bytes; measured on the device with the highest peak."""

    mesh: str
    predicted_bytes: float
    measured_bytes: float
    predicted: Mapping[str, float]  # bytes by category
    measured: Mapping[str, float]  # bytes by category, for categories that can be measured separately
    how: str

    @property
    def error(self) -> float | None:
        """Relative error."""
        return relative_error(self.predicted_bytes, self.measured_bytes)

    @property
    def by_category(self) -> dict[str, tuple[float, float]]:
        """Predicted and measured bytes by category; categories that can only be measured together are summed."""
        alone = {kind: (size, self.measured[kind]) for kind, size in self.predicted.items() if kind in self.measured}
        together = sum(size for kind, size in self.predicted.items() if kind not in alone)
        rest = {kind: (0.0, size) for kind, size in self.measured.items() if kind not in alone}
        return {**alone, **rest, **({WITHIN: (together, self.measured[WITHIN])} if WITHIN in rest else {})}


class LayerTime(NamedTuple):
    """Duration of a step of an expert layer in an action of a stage, averaged over the devices of the mesh."""

    mesh: str
    action: Action
    name: str
    compared: ComparedDuration


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of a prediction with the recording of a run of its program."""

    prediction: Prediction
    recording: Recording
    timeline: Timeline  # of the representative step
    predicted_for: str = ""
    """Text that names the links of the prediction, if they differ from the design's; otherwise empty."""

    # ---- the step ----

    @property
    def is_comparable(self) -> bool:
        """True if prediction and measurement have the same unit: seconds, or the units of a dry run."""
        return self.prediction.costs.unit == "s" or self.recording.source == "rehearsed"

    @property
    def unit(self) -> str:
        """Unit of measured times: ``s``, or the unit of cost of a dry run."""
        return self.prediction.costs.unit if self.recording.source == "rehearsed" else "s"

    @cached_property
    def iteration(self) -> Iteration:
        """Predicted and measured step time."""
        seconds = self.recording.seconds
        low, median, high = (float(each) for each in np.percentile(seconds, QUARTILES))
        left_out = self.recording.warm_up, self.recording.memory_steps
        return Iteration(self.prediction.timeline.makespan, median, low, high, len(seconds), *left_out)

    @cached_property
    def rows(self) -> MeasuredDurations:
        """Measured duration of every action."""
        return measured_durations(self.prediction, self.recording)

    # ---- by kind, mesh, link and layer ----

    @cached_property
    def by_kind(self) -> dict[Op, ComparedDuration]:
        """Mean duration of each kind of action; a SEND includes its RECV."""
        program = self.prediction.program
        return {Op(int(op)): self._mean_duration(program.op == op) for op in np.unique(program.op[program.spans])}

    @cached_property
    def by_mesh(self) -> dict[int, ComparedDuration]:
        """Computation time of each mesh per step in seconds, including the optimizer step, by rank."""
        program = self.prediction.program
        return {
            rank: self._total_duration(busy_rows(program) & (program.rank == rank)) for rank in range(program.ranks)
        }

    @cached_property
    def by_link(self) -> dict[Link, ComparedDuration]:
        """Mean duration of the transfers of each link, from the SEND to the arrival.

        A transfer starts later than its SEND if its receiver becomes ready later.
        """
        program = self.prediction.program
        sends = program.is_send
        pairs = sorted({*zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)})
        return {
            Link(*pair): self._mean_duration(sends & (program.rank == pair[0]) & (program.peer == pair[1]))
            for pair in pairs
        }

    @cached_property
    def compared_blocks(self) -> list[RecordedLayers]:
        """Actions whose inner layers the run has recorded, on meshes with experts."""
        return [*compare_recorded_blocks(self.prediction, self.recording)]

    @cached_property
    def by_layer(self) -> list[LayerTime]:
        """Duration of each step of the recorded expert layers."""
        return [each for within in self.compared_blocks for each in self._layer_times(within)]

    def _layer_times(self, within: RecordedLayers) -> Iterator[LayerTime]:
        predicted, measured = step_seconds(within.predicted), step_seconds(within.measured)
        for name in dict.fromkeys((*predicted, *measured)):
            compared = ComparedDuration(predicted.get(name, 0.0), measured.get(name, 0.0))
            yield LayerTime(self.timeline.meshes[within.rank], within.action, name, compared)

    @cached_property
    def waits(self) -> BlockWaits:
        """Seconds for which computations wait for messages inside them, as far as recorded."""
        return block_waits(self.prediction.program, self._predicted_seconds, self.rows.seconds, self.compared_blocks)

    @cached_property
    def memory(self) -> list[MeshMemory]:
        """Peak memory of each mesh on which it was measured."""
        return [*_mesh_memory(self.prediction, self.recording)]

    @cached_property
    def cause(self) -> Cause | None:
        """Main cause of the prediction error of the step time; None if there is no error, or no common unit."""
        if not self.is_comparable:
            return None
        measured_s = self.iteration.measured_s
        return CauseSearch(self.prediction, self.rows.seconds, self.waits, self.timeline, self.unit, measured_s).cause

    def error_parts(self, contention: Contention | None = None) -> list[ErrorPart]:
        """Return the parts of the prediction error of the step time, largest first; empty without a common unit."""
        if not self.is_comparable:
            return []
        return error_parts(self.prediction, self.rows.seconds, self.iteration.measured_s, contention)

    @property
    def label(self) -> str:
        """Notes about the comparison (dry run, links of the prediction, compiled blocks); empty if there are none."""
        is_compiled = self.prediction.design.training.compile and self.recording.source == "measured"
        notes = (self._dry_run_note, self.predicted_for, COMPILED_NOTE if is_compiled else "")
        return "; ".join(filter(None, notes))

    @property
    def _dry_run_note(self) -> str:
        if self.recording.source != "rehearsed":
            return ""
        scale = format_number(self.recording.scale)
        if self.unit == "s" and self.recording.scale == 1:
            return "dry run: actions waited for their predicted times"
        dilation = f"{scale} times their predicted times" if self.unit == "s" else f"{scale} s per unit"
        return f"dry run: actions waited for {dilation}; measured times are divided by this factor"

    @cached_property
    def coverage_warnings(self) -> list[str]:
        """Return warnings on parts of the design that its calibration profile does not cover; empty for other costs."""
        return [problem.message for problem in self.prediction.warnings if problem.code in COVERAGE]

    @cached_property
    def clock_note(self) -> str:
        """Note on the accuracy of comparisons between meshes, given the clocks; empty if clocks were not compared."""
        note, error_s = self.recording.clocks.note, self.recording.clocks.uncertainty_s / self.recording.scale
        known = [each.measured_s for each in self.by_link.values() if not each.at_most and each.measured_s > 0]
        if note and error_s and known and error_s > CLOCK_NOTE_SHARE * min(known):
            least = min(known)
            return (
                f"{note}: a transfer of {duration(least, self.unit)} has an error of up to {percent(error_s / least)}"
            )
        return note

    def _mean_duration(self, rows: Bools) -> ComparedDuration:
        """Return the mean of the rows with known durations; if none is known, the mean of the upper bounds."""
        known = rows & self.rows.known
        counted = known if known.any() else rows
        each = max(int(counted.sum()), 1)
        predicted_s, measured_s = (seconds[counted].sum() for seconds in (self._predicted_seconds, self.rows.at_most))
        return ComparedDuration(
            float(predicted_s) / each, float(measured_s) / each, int(rows.sum()), at_most=not known.any()
        )

    def _total_duration(self, rows: Bools) -> ComparedDuration:
        return ComparedDuration(float(self._predicted_seconds[rows].sum()), float(self.rows.seconds[rows].sum()))

    @property
    def _predicted_seconds(self) -> Floats:
        return self.prediction.simulated_seconds

    # ---- as JSON ----

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in SI units, as a JSON object for ``meshwave run --json``."""
        iteration, meshes, timelines = self.iteration, self.timeline.meshes, (self.prediction.timeline, self.timeline)
        why = None if self.is_comparable else render("prediction_in_units", {})
        pairs = {"predicted": timelines[0], "measured": timelines[1]}
        return {
            "source": self.recording.source,
            "label": self.label,
            "predicted_for": self.predicted_for or None,
            "unmeasured": self.coverage_warnings,
            "scale": self.recording.scale,
            "unit": self.prediction.costs.unit,
            "error_is": ERROR_DEFINITION,
            "no_error_since": why,
            "predicted_s": iteration.predicted_s,
            "measured_s": iteration.measured_s,
            "error": iteration.error if self.is_comparable else None,
            "iteration": iteration._asdict(),
            "cause": self.cause.to_json() if self.cause else None,
            "bubble_ratio": {name: each.bubble_ratio for name, each in pairs.items()},
            "exposed_communication_s": {name: each.exposed_communication.tolist() for name, each in pairs.items()},
            "by_kind": {
                op.name: {"words": WORDS[op.name], **self._compared_json(each)} for op, each in self.by_kind.items()
            },
            "by_mesh": [{"mesh": meshes[rank], **self._compared_json(each)} for rank, each in self.by_mesh.items()],
            "by_link": [
                {"from": meshes[link.source], "to": meshes[link.target], **self._compared_json(each)}
                for link, each in self.by_link.items()
            ],
            "by_layer": [
                {
                    "mesh": each.mesh,
                    "action": str(each.action),
                    "layer": each.name,
                    **self._compared_json(each.compared),
                }
                for each in self.by_layer
            ],
            "memory": [
                {**each._asdict(), "error": each.error, "by_category": each.by_category} for each in self.memory
            ],
            "clocks": {"words": self.clock_note, "uncertainty_s": self.recording.clocks.uncertainty_s},
        }

    def _compared_json(self, compared: ComparedDuration) -> dict[str, Any]:
        return {
            "predicted_s": compared.predicted_s,
            "measured_s": compared.measured_s,
            "error": compared.error if self.is_comparable else None,
            "count": compared.number,
            "at_most": compared.at_most,
        }


def compare(prediction: Prediction, recording: Recording, predicted_for: str = "") -> Comparison:
    """Compare a prediction with a recording.

    ``predicted_for`` names the links of the prediction if they differ from the design's.

    Raises:
        RunError: not every rank has recorded a step yet.
        InputError: the recording is of another program.
    """
    if recording.steps:
        check_same_program(prediction.program.digest, recording.digest)
        if recording.rows(recording.steps[:1]).shape[1] != len(prediction.program):
            raise RunFolderError("spans_of_another_program", {"folder": str(recording.folder)})
    return Comparison(prediction, recording, recording.timeline(), predicted_for)


# ---- memory ----


def _mesh_memory(prediction: Prediction, recording: Recording) -> Iterator[MeshMemory]:
    predicted, first = prediction.memory, 0
    for rank, mesh in enumerate(prediction.design.meshes):
        processes = range(first, first := first + len(mesh.devices))
        found = [recording.memory[process] for process in processes if process in recording.memory]
        if found:
            highest = max(found, key=lambda each: each.peak_bytes)
            by_category = {kind: float(size[rank]) for kind, size in predicted.by_category.items()}
            total = float(predicted.total_bytes[rank])
            yield MeshMemory(mesh.name, total, highest.peak_bytes, by_category, highest.by_category, highest.how)
