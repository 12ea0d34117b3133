"""Prediction error of a step time as a sum of parts: one for each kind of action, one for the time between actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.messages import render
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import SENDS, WORDS, Op
from meshwave.engine.runs.accuracy.action_durations import busy_rows
from meshwave.engine.runs.run import Contention

Floats = NDArray[np.float64]

LEAST_SHARE = 1e-3
"""Smallest part of an error that is listed, as a share of the predicted step time."""
LEAST_REST = 1e-6
"""Smallest sum of the parts that are not listed that is a part itself, as a share of the predicted step time."""


class ErrorPart(NamedTuple):
    """Part of the prediction error of a step time."""

    code: str
    params: Mapping[str, Any]
    effect_s: float  # contribution to the step time, in the unit of the prediction

    @property
    def name(self) -> str:
        """Name of the part."""
        return render(self.code, self.params)


def error_parts(
    prediction: Prediction, measured: Floats, measured_s: float, contention: Contention | None
) -> list[ErrorPart]:
    """Return the parts of the prediction error of a step time, largest first; their effects add up to the error.

    The last part is the sum of the parts that are too small to be listed; no part is listed if all are.

    The measured durations of one kind of action after another replace the predicted ones, and the step is simulated
    again each time. The remaining difference is the time between actions.

    Args:
        prediction: the prediction of the run.
        measured: [rows] seconds that each action took.
        measured_s: the measured step time in seconds.
        contention: shared CPU cores; computations then take up to ``processes / cores`` times as long.
    """
    predicted_s = before = prediction.timeline.makespan
    seconds = prediction.costs.seconds.copy()
    parts = []
    for code, params, change in _part_changes(prediction, measured, contention):
        seconds = np.maximum(0.0, seconds + change)
        now = prediction.costs.simulate(prediction.program, seconds).makespan
        parts.append(ErrorPart(code, params, now - before))
        before = now
    parts.append(ErrorPart("error_between_actions", {}, measured_s - before))
    found = [part for part in parts if abs(part.effect_s) > LEAST_SHARE * predicted_s]
    rest_s = measured_s - predicted_s - sum(part.effect_s for part in found)
    has_rest = found and abs(rest_s) > LEAST_REST * predicted_s
    rest = [ErrorPart("error_of_other_parts", {}, rest_s)] if has_rest else []
    return sorted(found, key=lambda part: -abs(part.effect_s)) + rest


def _part_changes(
    prediction: Prediction, measured: Floats, contention: Contention | None
) -> Iterator[tuple[str, dict[str, Any], Floats]]:
    """Yield the code and the parameters of each part, and the durations in seconds, ``[rows]``, that it changes."""
    program, predicted = prediction.program, prediction.simulated_seconds
    change = measured - predicted
    if contention is not None:
        most = predicted * (contention.processes / contention.cores - 1)
        waiting = np.where(busy_rows(program), np.clip(change, 0.0, most), 0.0)
        yield "error_of_contention", contention._asdict(), waiting
        change = change - waiting
    for op in np.unique(program.op[program.spans]).tolist():
        label = {"kind": WORDS[Op(op).name], "transfers": Op(op) in SENDS}
        yield "error_of_kind", label, np.where(program.op == op, change, 0.0)
