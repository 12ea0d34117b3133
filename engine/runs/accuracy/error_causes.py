"""Main cause of a prediction error: the part of the program whose measured durations explain most of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.messages import render
from meshwave.engine.messages.accuracy import part_name
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import SENDS, WORDS, Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs.accuracy.action_durations import busy_rows
from meshwave.engine.runs.accuracy.block_comparison import BlockWaits

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_TRIED = 8
"""Maximum number of meshes, stages or links that are tried as the cause; each of them takes a simulation."""
MANY_ROWS = 100_000
"""Number of actions above which a cause is only a kind of action, because a simulation takes 0.1 s or more."""
DOMINANT_SHARE = 0.9
"""Share of the effect of a larger part above which a smaller part is named as the cause."""
AS_PREDICTED = 0.005
"""Maximum relative error at which a step time counts as predicted correctly."""


class Cause(NamedTuple):
    """Main cause of the prediction error of the step time."""

    code: str
    params: Mapping[str, Any]
    share: float  # of the prediction error
    effect_s: float  # change of the step time with this part alone
    times: float | None = None  # measured divided by predicted time

    @property
    def description(self) -> str:
        """Sentence that describes the cause."""
        return render(self.code, self.params)

    @property
    def name(self) -> str:
        """Name of the part with the error; empty for the time between actions."""
        return part_name(**self.params["part"]) if "part" in self.params else ""

    def to_json(self) -> dict[str, Any]:
        """Return the cause as a JSON object for ``--json``."""
        return {"words": self.description, "name": self.name, **self._asdict(), "params": dict(self.params)}


class _Pair(NamedTuple):
    """Predicted and measured seconds of each action, ``[rows]`` each: total time or one component of it."""

    predicted: Floats
    measured: Floats
    measure: str = "time"


class _Part(NamedTuple):
    """Set of actions whose times may deviate together.

    The fields are parameters of :func:`meshwave.engine.messages.accuracy.part_name`.
    """

    label: Mapping[str, Any]
    rows: Bools
    seconds: _Pair

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the name of the part."""
        return {**self.label, "measure": self.seconds.measure}


class CauseSearch:
    """Search for the cause of a prediction error; simulates a part with measured times, the rest with predicted times."""

    def __init__(
        self,
        prediction: Prediction,
        measured: Floats,
        waits: BlockWaits,
        timeline: Timeline,
        unit: str,
        measured_s: float,
    ) -> None:
        """Initialize the search from the predicted and the measured times.

        Args:
            prediction: the prediction of the run.
            measured: [rows] seconds that each action took.
            waits: [rows] the seconds of these that were spent waiting for exchanges of expert layers.
            timeline: the measured timeline.
            unit: the unit of the times.
            measured_s: the measured step time in seconds.
        """
        self._design, self._program, self._costs = prediction.design, prediction.program, prediction.costs
        self._meshes = timeline.meshes
        self._unit = unit
        self._predicted_s, self._measured_s = prediction.timeline.makespan, measured_s
        self._error_s = self._measured_s - self._predicted_s
        predicted = prediction.simulated_seconds
        self._all = _Pair(predicted, measured)
        self._waits = _Pair(*waits, "waiting")
        self._computed = _Pair(predicted - waits.predicted, measured - waits.measured, "computation")
        self._has_waits = (waits.predicted > 0) | (waits.measured > 0)

    @property
    def cause(self) -> Cause | None:
        """Main cause of the error; None if there is no error, or if no part explains it."""
        predicted = self._predicted_s
        if not predicted or abs(self._error_s) <= AS_PREDICTED * predicted:
            return None
        part, effect = self._most_effective_part([*self._parts_by_kind(), *self._parts_by_mesh()])
        everything = _Part({}, np.ones(len(self._program), np.bool_), self._all)
        between = self._measured_s - self._makespan(everything)
        if abs(between) > abs(effect) and between * self._error_s > 0:
            share = between / self._error_s
            return Cause("time_between_actions", {"share": share}, share, between)
        if effect * self._error_s <= 0:
            return None
        if len(self._program) < MANY_ROWS:
            part, effect = self._narrow_down(part, effect)
        return self._cause_of_part(part, effect)

    def _narrow_down(self, part: _Part, effect: float) -> tuple[_Part, float]:
        """Return the smallest sub-part that explains nearly all of the effect of a part, and its own effect."""
        for finer in (self._split_by_link, self._split_by_stage, self._split_compute_and_waits):
            parts = [
                each
                for each in finer(part)
                if 0 < each.rows.sum() < part.rows.sum() or each.seconds is not part.seconds
            ]
            if parts:
                best, best_effect = self._most_effective_part(parts)
                if best_effect / effect >= DOMINANT_SHARE:
                    part, effect = best, best_effect
        return part, effect

    def _parts_by_kind(self) -> Iterator[_Part]:
        for op in np.unique(self._program.op[self._program.spans]).tolist():
            yield _Part(_kind_label(Op(op)), self._program.op == op, self._all)

    def _parts_by_mesh(self) -> Iterator[_Part]:
        works = busy_rows(self._program)
        for rank, mesh in enumerate(self._meshes):
            of_mesh = self._program.rank == rank
            waits = bool(self._has_waits[of_mesh].any())
            label = {"activities": self._inseparable_activities(rank, waits=waits), "mesh": mesh}
            yield _Part(label, works & of_mesh, self._computed if waits else self._all)
            if waits:
                yield _Part({"mesh": mesh}, of_mesh & self._has_waits, self._waits)
        if self._has_waits.any():
            yield _Part({}, self._has_waits, self._waits)

    def _inseparable_activities(self, rank: int, *, waits: bool) -> list[str]:
        """Return the activities of a mesh that are timed together; ``waits`` is True if exchanges are separate."""
        found = ["computation"]
        found += ["all-reduces"] if self._design.meshes[rank].tp > 1 else []
        return found + (["expert exchanges"] if self._design.model.moe and not waits else [])

    def _split_by_link(self, part: _Part) -> Iterator[_Part]:
        """Split a part by kind of action and mesh; split sends also by the mesh that receives them."""
        program = self._program
        for op in np.unique(program.op[part.rows]).tolist():
            of_kind = part.rows & (program.op == op)
            ends = program.peer if Op(op) in SENDS else np.full(len(program), -1)
            for rank, peer in sorted({*zip(program.rank[of_kind].tolist(), ends[of_kind].tolist(), strict=True)}):
                label = {**_kind_label(Op(op)), "mesh": self._meshes[rank]}
                label |= {"target": self._meshes[peer]} if peer >= 0 else {}
                yield _Part(label, of_kind & (program.rank == rank) & (ends == peer), part.seconds)

    def _split_by_stage(self, part: _Part) -> Iterator[_Part]:
        """Split a part by stage if it is one kind of computation; otherwise yield nothing."""
        program = self._program
        ops = np.unique(program.op[part.rows])
        if len(ops) != 1 or ops[0] > Op.W:
            return
        for stage in np.unique(program.stage[part.rows]).tolist():
            rows = part.rows & (program.stage == stage)
            meshes = {self._meshes[rank] for rank in program.rank[rows].tolist()}
            mesh = {"mesh": meshes.pop()} if len(meshes) == 1 else {}
            yield _Part({**_kind_label(Op(int(ops[0]))), "stage": stage, **mesh}, rows, part.seconds)

    def _split_compute_and_waits(self, part: _Part) -> Iterator[_Part]:
        """Split a part into its computation and its waits for messages of expert layers, if these are known."""
        if part.seconds is self._all and (part.rows & self._has_waits).any():
            for seconds in (self._computed, self._waits):
                yield _Part(part.label, part.rows, seconds)

    def _most_effective_part(self, parts: Sequence[_Part]) -> tuple[_Part, float]:
        """Return the part that changes the step time most in the direction of the error, and the change in seconds."""
        sign = np.sign(self._error_s)

        def error(part: _Part) -> float:
            return float(sign * (part.seconds.measured - part.seconds.predicted)[part.rows].sum())

        promising = sorted(parts, key=error, reverse=True)[:MOST_TRIED]
        effects = [self._makespan(part) - self._predicted_s for part in promising]
        best = max(range(len(promising)), key=lambda number: sign * effects[number])
        return promising[best], effects[best]

    def _makespan(self, part: _Part) -> float:
        """Return the step time with measured times for one part and predicted times for all others."""
        change = np.where(part.rows, part.seconds.measured - part.seconds.predicted, 0.0)
        sends = self._program.is_send  # a message cannot take less than no time
        seconds = np.where(sends, np.maximum(0.0, self._costs.seconds + change), self._costs.seconds + change)
        return self._costs.simulate(self._program, seconds).makespan

    def _cause_of_part(self, part: _Part, effect: float) -> Cause:
        predicted, measured = (float(seconds[part.rows].sum()) for seconds in part.seconds[:2])
        times, share = measured / predicted if predicted else None, effect / self._error_s
        params = {"part": part.params, "times": times, "measured": measured, "unit": self._unit, "share": share}
        return Cause("part_of_error", params, share, effect, times)


def _kind_label(op: Op) -> dict[str, Any]:
    """Return the parameters that name a kind of action in messages."""
    return {"kind": WORDS[op.name], "transfers": op in SENDS}
