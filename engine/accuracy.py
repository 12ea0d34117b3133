"""How near a prediction came to what was measured: one comparison of a design's prediction with a run's recording.

Everything here is a question to two columns of seconds, a row an action of the program: what each action was
predicted to take, and what it took (the median over the steps that are timed). Where the step is off, the
simulator is asked why: it plays the program again with what was measured of one kind of action, or of one mesh,
in place of what was predicted, and the answer is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cost.calibrated import measured as measured_cluster
from engine.cost.crossings import is_direct
from engine.cost.expert_blocks import counts
from engine.cost.fits import fit_line
from engine.cost.kinds import kinds
from engine.cost.profile import ActionTime, LinkLine, Machine, Pair, Profile
from engine.cost.roofline import RooflineModel
from engine.cost.sizes import sizes
from engine.design.cost import RooflineCost
from engine.errors import InputError, MeshwaveError
from engine.lowering.layers import DENSE, Inside, block_of, inside, measured_inside
from engine.palette import WORDS
from engine.predict import Prediction
from engine.program.action import Action, Op
from engine.program.program import Program
from engine.recording import AT_ONCE_NS, WITHIN, Recording, Spans, read_inside
from engine.simulate import simulate
from engine.timeline import Timeline, refuse_another
from engine.units import duration

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_TRIED = 8
"""Meshes, stages or links of which each is tried as the cause of an error: the most promising, since each is a simulation."""
MOST_SPANS = 3_000_000
"""That are looked at for what the actions took: a hundred bytes each."""
MANY_ROWS = 100_000
"""From there on a simulation takes a tenth of a second and more, so that the error is traced to its kind alone."""
NEWTON = 3
LEAST_SPREAD = 0.1
MOSTLY = 0.9
"""A part that makes so much of the effect of the whole is named instead of it."""
AS_PREDICTED = 0.005
"""An error that is not worth a reason."""
DOUBTFUL = 0.05
"""From this share of the shortest transfer on, the clocks' uncertainty is worth a word."""
LONGEST, MIDDLE, SHORTEST = 75, 50, 25
"""The percentiles that say how steps spread."""

_SENDS = (Op.SEND_F, Op.SEND_B)
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
        return error(self.predicted_s, self.measured_s)


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


class Cause(NamedTuple):
    """What makes most of the error of a step."""

    words: str  # the sentence
    name: str  # of what is off; "" where it is the time between the actions
    share: float  # of the error of the step that comes with it alone
    effect_s: float  # by how much the step gets longer with it alone
    times: float | None  # what it took of what was predicted


@dataclass(frozen=True, eq=False)
class Comparison:
    """A prediction held against the recording of a run of its program."""

    prediction: Prediction
    recording: Recording
    timeline: Timeline  # of the typical step

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
        return {rank: self._total(_works(program) & (program.rank == rank)) for rank in range(program.ranks)}

    @cached_property
    def by_link(self) -> dict[Link, Compared]:
        """What a transfer takes, from its SEND (or, where that is later, from when its receiver was ready for it)
        to its arrival, on the average of those from a mesh to another."""
        program = self.prediction.program
        sends = np.isin(program.op, _SENDS)
        pairs = sorted({*zip(program.rank[sends].tolist(), program.peer[sends].tolist(), strict=True)})
        return {
            Link(*pair): self._mean(sends & (program.rank == pair[0]) & (program.peer == pair[1])) for pair in pairs
        }

    @cached_property
    def by_layer(self) -> list[LayerTime]:
        """The layers of each block of which the run has recorded the inside: one with experts."""
        return [*_layers(self.prediction, self.recording)]

    @cached_property
    def memory(self) -> list[MeshMemory]:
        """The meshes of which memory was measured."""
        return [*_memory(self.prediction, self.recording)]

    @cached_property
    def cause(self) -> Cause | None:
        """Where the error of the step comes from; None where there is none, or nothing to be off by."""
        return _Search(self).cause if self.comparable else None

    @property
    def label(self) -> str:
        """That it was a rehearsal, and at which scale; nothing of a run."""
        if self.recording.source != "rehearsed":
            return ""
        scale = f"{self.recording.scale:.3g}"
        stretched = f"{scale} times as long" if self.unit == "s" else f"{scale} s for a unit"
        return f"rehearsal: computations were waits, {stretched}; times are divided by that"

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
        number, total = int(rows.sum()), self._total(rows)
        each = max(number, 1)
        return Compared(total.predicted_s / each, total.measured_s / each, number, total.at_most)

    def _total(self, rows: Bools) -> Compared:
        measured = self.rows
        predicted_s = float(self.prediction.costs.seconds[rows].sum())
        return Compared(predicted_s, float(measured.seconds[rows].sum()), 1, not measured.known[rows].any())

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
            "scale": self.recording.scale,
            "unit": self.prediction.costs.unit,
            "error_is": ERROR_IS,
            "no_error_since": why,
            "predicted_s": iteration.predicted_s,
            "measured_s": iteration.measured_s,
            "error": iteration.error if self.comparable else None,
            "iteration": iteration._asdict(),
            "cause": self.cause._asdict() if self.cause else None,
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


def compare(prediction: Prediction, recording: Recording) -> Comparison:
    """
    Raises:
        RunError: no step was recorded by all ranks yet.
        InputError: the run was of another program.
    """
    if recording.steps:
        refuse_another(prediction.program.digest, recording.digest)
    return Comparison(prediction, recording, recording.timeline())


def _works(program: Program) -> Bools:
    works: Bools = program.is_compute | (program.op == Op.STEP)
    return works


# ---- what every action took ----


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """What each action of a program took, in the sense in which the simulator takes its costs."""

    seconds: Floats  # [rows]
    known: Bools  # [rows] False for a SEND of which it is only known that it took no longer


def measured_rows(prediction: Prediction, recording: Recording) -> MeasuredRows:
    """The median over the steps that are timed.

    A slot's seconds are shared between its two rows as was predicted. A reduction takes from when the last of
    those who share it has begun it, and what its rank reduced before is done, to when its result is there; an
    optimizer step from when all is there that it waits for. A transfer takes from its SEND (of a run, from when
    its receiver was ready for it, where that is later) until it arrived; how long, is known where its receiver stood still for it.
    """
    program, predicted = prediction.program, prediction.costs.seconds
    timed = recording.timed
    most = max(1, MOST_SPANS // max(len(program), 1))
    spans = recording.rows(timed[:: -(-len(timed) // most)])  # evenly over a long run
    start, end = ((spans[column] - spans["start_ns"].min()) / 1e9 for column in ("start_ns", "end_ns"))
    took = end - start
    _share_slots(program, predicted, took)
    reduced = _reductions(prediction, start, end)
    took[:, program.op == Op.REDUCE_GRAD] = reduced
    _steps(program, spans, start, end, took)
    seconds = np.median(took, axis=0)
    known = np.ones(len(program), np.bool_)
    sends, arrived, waited = _transfers(program, spans, start, end, recording)
    seconds[sends], known[sends] = _transfer_seconds(program, sends, arrived, waited, predicted)
    seconds[np.isin(program.op, (Op.RECV_F, Op.RECV_B))] = 0.0
    others = ~program.is_compute  # of a slot the second row may take less than nothing
    seconds[others] = np.maximum(seconds[others], 0.0)
    return MeasuredRows(seconds, known)


def _share_slots(program: Program, predicted: Floats, took: Floats) -> None:
    second = np.flatnonzero(program.fused)
    both = predicted[second - 1] + predicted[second]
    share = np.divide(predicted[second], both, out=np.full(len(second), 0.5), where=both > 0)
    took[:, second - 1] *= 1 - share
    took[:, second] *= share


def _reductions(prediction: Prediction, start: Floats, end: Floats) -> Floats:
    """[steps, reductions] a weight that nobody shares is not reduced at all."""
    program, meshes = prediction.program, prediction.design.meshes
    rows = np.flatnonzero(program.op == Op.REDUCE_GRAD)
    took = np.zeros((len(start), len(rows)))
    before: dict[int, Floats] = {}
    for number, row in enumerate(rows.tolist()):
        rank, stage = int(program.rank[row]), program.stage[row]
        shared = rows[program.stage[rows] == stage]
        if sum(meshes[int(each)].dp for each in program.rank[shared]) > 1:
            begun = start[:, shared].max(axis=1)
            took[:, number] = np.maximum(end[:, row] - np.maximum(begun, before.get(rank, begun)), 0.0)
            before[rank] = end[:, row]
    return took


def _steps(program: Program, spans: Spans, start: Floats, end: Floats, took: Floats) -> None:
    """What the optimizer steps took, which may begin before their weights are touched: with the norm of all gradients."""
    rows = np.flatnonzero(program.op == Op.STEP)
    ready = start[:, rows] - spans["wait_ns"][:, rows] / 1e9
    place = np.searchsorted(program.rank[rows], program.rank)  # of the step of each row's rank
    for row in np.flatnonzero((program.op == Op.REDUCE_GRAD) & (took > 0).any(axis=0)).tolist():
        ready[:, place[row]] = np.maximum(ready[:, place[row]], end[:, row])
    if program.clips and len(rows):
        ready[:] = ready.max(axis=1)[:, None]
    took[:, rows] = np.maximum(end[:, rows] - np.minimum(ready, start[:, rows]), 0.0)


def _transfers(
    program: Program, spans: Spans, start: Floats, end: Floats, recording: Recording
) -> tuple[NDArray[np.intp], Floats, Bools]:
    """The rows of all SENDs; [steps, sends] the seconds of each until it was in hand, and whether its receiver stood
    still for it, so that these are the transfer's own. In a rehearsal a message sets out whoever is ready for it."""
    sends, receives = _matched(program)
    begun = start[:, sends]
    if recording.source != "rehearsed":
        begun = np.maximum(begun, start[:, receives])
    waited = spans["wait_ns"][:, receives] > AT_ONCE_NS
    return sends, end[:, receives] - begun, np.full_like(waited, True) if recording.knows_arrivals else waited


def _matched(program: Program) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows of all SENDs, and the row of the RECV of each."""
    message = (program.op >= Op.SEND_F) & (program.op <= Op.RECV_B)
    rows = np.flatnonzero(message)
    op, stage, other = program.op[rows], program.stage[rows].astype(np.int64), program.other[rows]
    sent, onward = np.isin(op, _SENDS), np.where(np.isin(op, (Op.SEND_F, Op.RECV_F)), 1, -1)
    end = np.where(other >= 0, other, stage + np.where(sent, onward, -onward))
    source, target = np.where(sent, stage, end), np.where(sent, end, stage)
    width = program.stages + 1
    key = (((onward > 0) * width + source) * width + target) * (program.microbatches + 1) + program.microbatch[rows]
    taken = rows[~sent][np.argsort(key[~sent])]
    return rows[sent], taken[np.searchsorted(np.sort(key[~sent]), key[sent])]


def _transfer_seconds(
    program: Program, sends: NDArray[np.intp], until: Floats, waited: Bools, predicted: Floats
) -> tuple[Floats, Bools]:
    """[sends] the median of the steps in which somebody waited for it; of one that nobody waited for what the others of
    its kind and link took, or what was predicted, but no longer than until it was in hand."""
    bound = until.min(axis=0)
    known = np.asarray(waited.any(axis=0))
    seconds = np.minimum(predicted[sends], bound)
    if known.any():
        seconds[known] = np.nanmedian(np.where(waited, until, np.nan)[:, known], axis=0)
    link = program.rank[sends].astype(np.int64) * program.ranks + program.peer[sends]
    link = 2 * link + (program.op[sends] == Op.SEND_F)
    for number in np.unique(link[known]).tolist():
        of_link = link == number
        unseen = of_link & ~known
        seconds[unseen] = np.minimum(np.median(seconds[of_link & known]), bound[unseen])
    return seconds, known


# ---- where the error comes from ----


class _Part(NamedTuple):
    """Actions that may be off together, and what they are called."""

    name: str
    plural: bool
    rows: Bools


class _Search:
    """Plays the program with what was measured of a part of it in place of what was predicted."""

    def __init__(self, comparison: Comparison) -> None:
        prediction = comparison.prediction
        self._program, self._costs = prediction.program, prediction.costs
        self._meshes = comparison.timeline.meshes
        self._unit = comparison.unit
        self._iteration = comparison.iteration
        self._measured = comparison.rows.seconds
        self._error_s = self._iteration.measured_s - self._iteration.predicted_s

    @property
    def cause(self) -> Cause | None:
        predicted = self._iteration.predicted_s
        if not predicted or abs(self._error_s) <= AS_PREDICTED * predicted:
            return None
        part, effect = self._best([*self._kinds(), *self._on_meshes()])
        between = self._iteration.measured_s - self._makespan(np.ones(len(self._program), np.bool_))
        if abs(between) > abs(effect) and between * self._error_s > 0:
            share = between / self._error_s
            words = (
                f"the time between the actions, in which processes post messages and wait for a core, makes {share:.0%} "
                "of the error of the step; the actions themselves come near to what was predicted"
            )
            return Cause(words, "", share, between, None)
        if effect * self._error_s <= 0:
            return None
        if len(self._program) < MANY_ROWS:
            part, effect = self._narrowed(part, effect)
        return self._told(part, effect)

    def _narrowed(self, part: _Part, effect: float) -> tuple[_Part, float]:
        """A part of it that makes nearly all of its effect, and a part of that."""
        for finer in (self._of_kind_and_mesh, self._of_stage):
            parts = [each for each in finer(part) if 0 < each.rows.sum() < part.rows.sum()]
            if parts:
                best, its = self._best(parts)
                if its / effect >= MOSTLY:
                    part, effect = best, its
        return part, effect

    def _kinds(self) -> Iterator[_Part]:
        for op in np.unique(self._program.op[self._program.spans]).tolist():
            yield _Part(*_called(Op(op)), self._program.op == op)

    def _on_meshes(self) -> Iterator[_Part]:
        works = _works(self._program)
        for rank, mesh in enumerate(self._meshes):
            yield _Part(f"computation on mesh {mesh}", False, works & (self._program.rank == rank))

    def _of_kind_and_mesh(self, part: _Part) -> Iterator[_Part]:
        """Each kind of action of it on each mesh, or each link."""
        program = self._program
        for op in np.unique(program.op[part.rows]).tolist():
            name, plural = _called(Op(op))
            of_kind = part.rows & (program.op == op)
            ends = program.peer if Op(op) in _SENDS else np.full(len(program), -1)
            for rank, peer in sorted({*zip(program.rank[of_kind].tolist(), ends[of_kind].tolist(), strict=True)}):
                where = (
                    f"from mesh {self._meshes[rank]} to mesh {self._meshes[peer]}"
                    if peer >= 0
                    else f"on mesh {self._meshes[rank]}"
                )
                yield _Part(f"{name} {where}", plural, of_kind & (program.rank == rank) & (ends == peer))

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
            yield _Part(f"{WORDS[Op(int(ops[0])).name]} of stage {stage}{where}", False, rows)

    def _best(self, parts: Sequence[_Part]) -> tuple[_Part, float]:
        """The one that changes the step most in the direction of its error; of the most promising."""
        off = self._measured - self._costs.seconds
        sign = np.sign(self._error_s)
        promising = sorted(parts, key=lambda part: -sign * float(off[part.rows].sum()))[:MOST_TRIED]
        effects = [self._makespan(part.rows) - self._iteration.predicted_s for part in promising]
        best = max(range(len(promising)), key=lambda number: sign * effects[number])
        return promising[best], effects[best]

    def _makespan(self, rows: Bools) -> float:
        """Of the step, with what was measured in these rows and what was predicted in the others."""
        seconds = np.where(rows, self._measured, self._costs.seconds)
        return simulate(self._program, seconds, self._costs.transfer_model).makespan

    def _told(self, part: _Part, effect: float) -> Cause:
        expected, took = (float(seconds[part.rows].sum()) for seconds in (self._costs.seconds, self._measured))
        times = took / expected if expected else None
        share = effect / self._error_s
        lasted = duration(took, self._unit)
        how = f"{times:.2g} times what was predicted" if times else f"{lasted} where nothing was predicted"
        words = (
            f"{part.name} took {how}; {'they make' if part.plural else 'it makes'} {share:.0%} of the error of the step"
        )
        return Cause(words, part.name, share, effect, times)


def _called(op: Op) -> tuple[str, bool]:
    """What actions of a kind are called together, and whether in the plural."""
    return (f"{WORDS[op.name]}s", True) if op in _SENDS else (WORDS[op.name], False)


# ---- memory and the inside of blocks ----


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


def _layers(prediction: Prediction, recording: Recording) -> Iterator[LayerTime]:
    design, program, first = prediction.design, prediction.program, 0
    for rank, mesh in enumerate(design.meshes):
        processes = [first + place for place in block_of(design, rank)]
        first += len(mesh.devices)
        for action in _first_of_each(program, rank):
            try:
                found = read_inside(recording.folder, processes, action)
                if not any(len(rows) for rows in found.steps):
                    continue
                expected = _by_name(inside(design, rank, action.stage, action.op))
                took = _by_name(measured_inside(design, rank, action.op, found))
            except MeshwaveError:
                return  # no inside was recorded, or units say nothing of it
            for name in dict.fromkeys((*expected, *took)):
                compared = Compared(expected.get(name, 0.0), took.get(name, 0.0))
                yield LayerTime(mesh.name, action._replace(fused=0), name, compared)


def _first_of_each(program: Program, rank: int) -> Iterable[Action]:
    """The first computation of each kind of each stage of a rank."""
    found: dict[tuple[Op, int], Action] = {}
    for action in program.actions(rank):
        if action.op <= Op.W:
            found.setdefault((action.op, action.stage), action)
    return found.values()


def _by_name(found: Inside) -> dict[str, float]:
    """Seconds of each step of each layer with experts, and of all that is dense, on the average of the devices."""
    seconds: dict[str, float] = defaultdict(float)
    took = found.timeline.end - found.timeline.start
    for word, step, each in zip(found.words, found.steps, took.tolist(), strict=True):
        seconds[word.partition(", chunk")[0] if step is not None else DENSE] += each / len(found.block)
    return seconds


# ---- what was measured, as a profile ----


def profile_of(comparison: Comparison, run: str = "") -> Profile:
    """What a run measured, as costs for other designs, and for this one.

    Each kind of action has its median; the time between actions is spread over them, so that the design that ran is
    predicted to take what it took. Messages are a line for each kind of link of which a transfer was waited for.

    Raises:
        InputError: it was a rehearsal, which measures nothing but the prediction that it waits.
    """
    prediction, recording = comparison.prediction, comparison.recording
    if recording.source == "rehearsed":
        raise InputError("a rehearsal waits what was predicted, so it is no measurement of computing; run the design")
    design, program = prediction.design, prediction.program
    links = [*_lines(comparison)]
    bare = Profile(machine=_machine(comparison, run), reference=design.cluster.device, links=tuple(links))
    roofline = _roofline(prediction, bare)
    by_key: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in np.flatnonzero(_is_timed(program) & (roofline > 0)).tolist():
        by_key[_key(prediction, row)].append(row)
    measured, predicted = comparison.rows.seconds, roofline.copy()
    found = {}
    for key, rows in by_key.items():
        ratio = float(np.median(measured[rows] / roofline[rows]))
        if ratio > 0:
            found[key] = float(np.median(roofline[rows]))
            predicted[rows] = ratio * roofline[rows]
    spread = _spread(
        comparison, predicted, np.isin(np.arange(len(program)), [row for rows in by_key.values() for row in rows])
    )
    actions = [
        ActionTime(
            **dict(zip(_KEY, key, strict=True)),
            seconds=spread * float(np.median(predicted[by_key[key]])),
            roofline_s=of_roof,
        )
        for key, of_roof in found.items()
    ]
    return bare.model_copy(update={"actions": tuple(actions)})


_KEY = ("op", "layers", "experts", "first", "last", "tp")


def _is_timed(program: Program) -> Bools:
    timed: Bools = program.is_compute | np.isin(program.op, (Op.REDUCE_GRAD, Op.STEP))
    return timed


def _key(prediction: Prediction, row: int) -> tuple[Any, ...]:
    """What a profile knows of an action: see :class:`engine.cost.profile.ActionTime`."""
    design, program, layers = prediction.design, prediction.program, prediction.costs.layers
    op, rank, stage = Op(int(program.op[row])), int(program.rank[row]), int(program.stage[row])
    stages = program.stages_of(rank) if op == Op.STEP else [stage]
    experts = counts(design, layers)
    return (
        op.name,
        sum(layers[each] for each in stages),
        sum(experts[each] for each in stages),
        0 in stages,
        program.stages - 1 in stages,
        design.meshes[rank].tp,
    )


def _roofline(prediction: Prediction, profile: Profile) -> Floats:
    """[rows] seconds by roofline, on links that are as fast as the profile says."""
    priced = prediction.design.model_copy(update={"cost": RooflineCost()})
    program, layers = prediction.program, prediction.costs.layers
    distinct, held = kinds(program), sizes(priced, program, layers)
    return RooflineModel().seconds(measured_cluster(priced, profile), program, distinct, layers, held)[distinct.of_row]


def _lines(comparison: Comparison) -> Iterator[LinkLine]:
    """A line for messages inside a node, and one for those across; through what somebody waited for."""
    design, program = comparison.prediction.design, comparison.prediction.program
    rows, costs, cluster = comparison.rows, comparison.prediction.costs, design.cluster
    samples: dict[Pair, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(np.isin(program.op, _SENDS) & rows.known & (rows.seconds > 0)).tolist():
        source, target = (design.meshes[int(each[row])] for each in (program.rank, program.peer))
        if is_direct(source, target):
            near = cluster.node_of(source.devices[0]) == cluster.node_of(target.devices[0])
            pair: Pair = "same_node" if near else "across_nodes"
            samples[pair][float(costs.bytes[row])].append(float(rows.seconds[row]))
    for pair, by_size in samples.items():
        points = tuple((size, float(np.median(took))) for size, took in sorted(by_size.items()))
        drawn = cluster.intra_node if pair == "same_node" else cluster.inter_node
        if len(points) > 1:
            yield LinkLine(pair=pair, samples=points, **fit_line(points)._asdict())
        else:  # one size alone does not tell what a message costs at all: at most what is drawn
            ((size, took),) = points
            alpha = min(drawn.latency_s, took)
            yield LinkLine(pair=pair, alpha_s=alpha, beta_s_per_byte=(took - alpha) / size, r2=1.0, samples=points)


def _spread(comparison: Comparison, seconds: Floats, rows: Bools) -> float:
    """How many times longer these actions have to be for the step to take what it took; the step is a convex line of
    that, so that a few steps of Newton's find it."""
    prediction, took = comparison.prediction, comparison.iteration.measured_s

    def makespan(times: float) -> float:
        stretched = np.where(rows, times * seconds, seconds)
        return simulate(prediction.program, stretched, prediction.costs.transfer_model).makespan

    times, slope_at = 1.0, 1e-3
    for _ in range(NEWTON):
        here = makespan(times)
        slope = (makespan(times * (1 + slope_at)) - here) / (times * slope_at)
        times = max(times + (took - here) / slope, times * LEAST_SPREAD) if slope > 0 else times
    return times


def _machine(comparison: Comparison, run: str) -> Machine:
    design, nccl = comparison.prediction.design, comparison.recording.knows_arrivals
    ranks = sum(len(mesh.devices) for mesh in design.meshes)
    per_node = min(ranks, design.cluster.devices_per_node)
    return Machine(ranks=ranks, ranks_per_node=per_node, backend="nccl" if nccl else "gloo", run=run)
