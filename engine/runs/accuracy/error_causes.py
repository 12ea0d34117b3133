"""Where the error of a step comes from: the simulator plays the program again, with what was measured of a part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import SENDS, WORDS, Op
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs.accuracy.action_durations import keeps_busy
from meshwave.engine.runs.accuracy.block_comparison import Waits
from meshwave.engine.units import duration, number

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_TRIED = 8
"""Meshes, stages or links of which each is tried as the cause of an error: the most promising, since each is a simulation."""
MANY_ROWS = 100_000
"""From there on a simulation takes a tenth of a second and more, so that the error is traced to its kind alone."""
MOSTLY = 0.9
"""A part that makes so much of the effect of the whole is named instead of it."""
MANY_TIMES = 2.0
"""From there on an error is told as a factor."""
TAKEN_BACK = 1.05
"""A share from which on it is said that others make up for what it is too much."""
AS_PREDICTED = 0.005
"""An error that is not worth a reason."""


class Cause(NamedTuple):
    """What makes most of the error of a step."""

    words: str  # the sentence
    name: str  # of what is off; "" where it is the time between the actions
    share: float  # of the error of the step that comes with it alone
    effect_s: float  # by how much the step gets longer with it alone
    times: float | None  # what it took of what was predicted


class _Pair(NamedTuple):
    """[rows] something of each action, predicted and measured; and what it is called in actions that have a name."""

    predicted: Floats
    measured: Floats
    words: str = "{}"


class _Part(NamedTuple):
    """Actions that may be off together, in what is compared of them, and what that is called."""

    name: str
    plural: bool
    rows: Bools
    of: _Pair


class Search:
    """Plays the program with what was measured of a part of it in place of what was predicted."""

    def __init__(
        self, prediction: Prediction, measured: Floats, waits: Waits, timeline: Timeline, unit: str, measured_s: float
    ) -> None:
        """Take what was predicted and what was measured.

        Args:
            measured: [rows] seconds that each action took.
            waits: [rows] of them, the seconds in which exchanges of expert layers were waited for.
            timeline: the measured timeline.
            unit: what its times are in.
            measured_s: seconds of the measured step.
        """
        self._design, self._program, self._costs = prediction.design, prediction.program, prediction.costs
        self._meshes = timeline.meshes
        self._unit = unit
        self._predicted_s, self._measured_s = prediction.timeline.makespan, measured_s
        self._error_s = self._measured_s - self._predicted_s
        predicted = prediction.simulated_seconds
        self._all = _Pair(predicted, measured)
        self._waits = _Pair(*waits, "waiting for exchanges of expert layers in the {}")
        self._computed = _Pair(predicted - waits.predicted, measured - waits.measured, "computation of the {}")
        self._has_waits = (waits.predicted > 0) | (waits.measured > 0)

    @property
    def cause(self) -> Cause | None:
        predicted = self._predicted_s
        if not predicted or abs(self._error_s) <= AS_PREDICTED * predicted:
            return None
        part, effect = self._best([*self._kinds(), *self._on_meshes()])
        everything = _Part("", True, np.ones(len(self._program), np.bool_), self._all)
        between = self._measured_s - self._makespan(everything)
        if abs(between) > abs(effect) and between * self._error_s > 0:
            share = between / self._error_s
            words = (
                f"the time between the actions, in which processes post messages and wait for a core, makes "
                f"{_share(share)}; the actions themselves come near to what was predicted"
            )
            return Cause(words, "", share, between, None)
        if effect * self._error_s <= 0:
            return None
        if len(self._program) < MANY_ROWS:
            part, effect = self._narrowed(part, effect)
        return self._told(part, effect)

    def _narrowed(self, part: _Part, effect: float) -> tuple[_Part, float]:
        """A part of it that makes nearly all of its effect, and a part of that."""
        for finer in (self._of_kind_and_mesh, self._of_stage, self._of_inside):
            parts = [each for each in finer(part) if 0 < each.rows.sum() < part.rows.sum() or each.of is not part.of]
            if parts:
                best, its = self._best(parts)
                if its / effect >= MOSTLY:
                    part, effect = best, its
        return part, effect

    def _kinds(self) -> Iterator[_Part]:
        for op in np.unique(self._program.op[self._program.spans]).tolist():
            yield _Part(*_called(Op(op)), self._program.op == op, self._all)

    def _on_meshes(self) -> Iterator[_Part]:
        works = keeps_busy(self._program)
        for rank, mesh in enumerate(self._meshes):
            of_mesh = self._program.rank == rank
            waits = bool(self._has_waits[of_mesh].any())
            what = self._computing(rank, waits=waits)
            computed = self._computed if waits else self._all
            yield _Part(f"{_listed(what)} on mesh {mesh}", len(what) > 1, works & of_mesh, computed)
            if waits:
                name = f"waiting for exchanges of expert layers on mesh {mesh}"
                yield _Part(name, False, of_mesh & self._has_waits, self._waits)
        if self._has_waits.any():
            yield _Part("waiting for exchanges of expert layers", False, self._has_waits, self._waits)

    def _computing(self, rank: int, *, waits: bool) -> list[str]:
        """What a mesh is busy with while it computes, as far as that cannot be told apart; ``waits``: those for experts
        can."""
        what = ["computation"]
        what += ["all-reduces"] if self._design.meshes[rank].tp > 1 else []
        return what + (["exchanges of experts"] if self._design.model.moe and not waits else [])

    def _of_kind_and_mesh(self, part: _Part) -> Iterator[_Part]:
        """Each kind of action of it on each mesh, or each link."""
        program = self._program
        for op in np.unique(program.op[part.rows]).tolist():
            name, plural = _called(Op(op))
            of_kind = part.rows & (program.op == op)
            ends = program.peer if Op(op) in SENDS else np.full(len(program), -1)
            for rank, peer in sorted({*zip(program.rank[of_kind].tolist(), ends[of_kind].tolist(), strict=True)}):
                where = (
                    f"from mesh {self._meshes[rank]} to mesh {self._meshes[peer]}"
                    if peer >= 0
                    else f"on mesh {self._meshes[rank]}"
                )
                named = part.of.words.format(f"{name} {where}")
                yield _Part(named, plural, of_kind & (program.rank == rank) & (ends == peer), part.of)

    def _of_stage(self, part: _Part) -> Iterator[_Part]:
        """Each stage of it, where that is computation."""
        program = self._program
        ops = np.unique(program.op[part.rows])
        if len(ops) != 1 or ops[0] > Op.W:
            return
        for stage in np.unique(program.stage[part.rows]).tolist():
            rows = part.rows & (program.stage == stage)
            meshes = {self._meshes[rank] for rank in program.rank[rows].tolist()}
            where = f" on mesh {meshes.pop()}" if len(meshes) == 1 else ""
            named = part.of.words.format(f"{WORDS[Op(int(ops[0])).name]} of stage {stage}{where}")
            yield _Part(named, False, rows, part.of)

    def _of_inside(self, part: _Part) -> Iterator[_Part]:
        """What is computed in it, and how long its devices wait for messages within, where that is known."""
        if part.of is self._all and (part.rows & self._has_waits).any():
            for of in (self._computed, self._waits):
                yield _Part(of.words.format(part.name), False, part.rows, of)

    def _best(self, parts: Sequence[_Part]) -> tuple[_Part, float]:
        """The one that changes the step most in the direction of its error; of the most promising."""
        sign = np.sign(self._error_s)

        def longer(part: _Part) -> float:
            return float(sign * (part.of.measured - part.of.predicted)[part.rows].sum())

        promising = sorted(parts, key=longer, reverse=True)[:MOST_TRIED]
        effects = [self._makespan(part) - self._predicted_s for part in promising]
        best = max(range(len(promising)), key=lambda number: sign * effects[number])
        return promising[best], effects[best]

    def _makespan(self, part: _Part) -> float:
        """Of the step, with what was measured of it and what was predicted of all else."""
        change = np.where(part.rows, part.of.measured - part.of.predicted, 0.0)
        sends = self._program.is_send  # a message that was faster than alone is free
        seconds = np.where(sends, np.maximum(0.0, self._costs.seconds + change), self._costs.seconds + change)
        return self._costs.play(self._program, seconds).makespan

    def _told(self, part: _Part, effect: float) -> Cause:
        expected, took = (float(seconds[part.rows].sum()) for seconds in part.of[:2])
        times = took / expected if expected else None
        share = effect / self._error_s
        how = _how(times) if times is not None else f"{duration(took, self._unit)} where nothing was predicted"
        words = f"{part.name} took {how}; {'they make' if part.plural else 'it makes'} {_share(share)}"
        return Cause(words, part.name, share, effect, times)


def _how(times: float) -> str:
    """``4.52% longer than predicted``"""
    if times >= MANY_TIMES:
        return f"{number(times)} times what was predicted"
    return f"{100 * abs(times - 1):.3g}% {'longer' if times >= 1 else 'less'} than predicted"


def _share(share: float) -> str:
    more = ", of which others take a part back" if share > TAKEN_BACK else ""
    return f"{share:.0%} of the error of the step{more}"


def _called(op: Op) -> tuple[str, bool]:
    """What actions of a kind are called together, and whether in the plural."""
    return (f"transfers of {WORDS[op.name]}s", True) if op in SENDS else (WORDS[op.name], False)


def _listed(names: Sequence[str]) -> str:
    """``computation, all-reduces and exchanges``"""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
