"""The inside of a block for the timeline's chart: what each device of its mesh computes and sends, layer by layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.designer.views.timeline import Layer, Steps
from meshwave.engine.errors import RunError
from meshwave.engine.experts import Step, StepOp
from meshwave.engine.predict.block_timeline import BlockTimeline, align_lanes, block_places, predict_block
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.timeline import Floats
from meshwave.engine.runs import Run
from meshwave.engine.runs.accuracy.measured_block import measured_inside
from meshwave.engine.runs.recording import read_inside
from meshwave.engine.units import when

KINDS: Mapping[Op, str] = {
    Op.F: "experts, feed-forward",
    Op.B: "dispatch",
    Op.I: "combine",
    Op.W: "gather and reduce",
    Op.STEP: "attention, gate and others",
}
"""What the colours of computations mean inside a block: the same as on the cards of expert schedules."""


class MeasuredBlock(NamedTuple):
    """A block of the pipeline from within, as a run has measured it."""

    found: BlockTimeline
    label: str  # which run, and which step of it


def inside_of(
    prediction: Prediction, rank: int, action: Action, measured: MeasuredBlock | None = None
) -> tuple[list[Layer], list[str]]:
    """The inside of a computation for the chart, what was ``measured`` laid over what is predicted; and the
    words that lead to it from the iteration.

    Raises:
        InputError: the design is priced in units.
    """
    found = predict_block(prediction.design, rank, action.stage, action.op)
    words = f"{action} on mesh {prediction.design.meshes[rank].name}"
    numbers = _Numbers()
    if measured is None:
        return [as_layer(found, words, numbers)], ["iteration", words]
    below, above = align_lanes(found, measured.found)
    under = as_layer(below, words, numbers)
    return [under, replace(as_layer(above, measured.label, numbers), over=True)], ["iteration", words]


def measured_block(run: Run, prediction: Prediction, rank: int, action: Action) -> MeasuredBlock | None:
    """What a run of this very design has measured of a block; None where it has recorded no inside."""
    design = prediction.design
    first = sum(len(mesh.devices) for mesh in design.meshes[:rank])  # processes are counted mesh by mesh
    try:
        found = read_inside(run.folder, [first + place for place in block_places(design, rank)], action)
        measured = measured_inside(design, rank, action.op, found)
    except RunError:
        return None
    return MeasuredBlock(measured, f"Run of {when(run.created_s)}, step {found.step + 1}")


def as_layer(found: BlockTimeline, label: str, numbers: _Numbers) -> Layer:
    """The chart's form: lanes as ranks, kinds of steps as ops; equal ``numbers`` name the same step in several."""
    op = np.array([_kind(word, step) for word, step in zip(found.labels, found.steps, strict=True)], np.int8)
    timeline = found.timeline
    labels = list(dict.fromkeys(found.labels))
    number = {each: place for place, each in enumerate(labels)}
    shown = replace(
        timeline,
        op=op,
        stage=timeline.rank.astype(np.int32),
        microbatch=numbers.of(timeline.rank, op, timeline.start, found.labels),
    )
    devices = {device: place for place, device in enumerate(dict.fromkeys(found.devices))}
    steps = Steps(
        kinds={kind: words for kind, words in KINDS.items() if (op == kind).any()},
        labels=labels,
        label=np.array([number[word] for word in found.labels], np.int32),
        bytes=found.sent,
        tones=[devices[device] for device in found.devices],
    )
    return Layer(shown, label, steps=steps)


def _kind(word: str, step: StepOp | None) -> Op:
    if step == StepOp.EXPERTS or (step is None and word.startswith("feed-forward")):
        return Op.F
    if step == StepOp.DISPATCH:
        return Op.B
    if step == StepOp.COMBINE:
        return Op.I
    return Op.W if step is not None and Step(step).collective else Op.STEP


class _Numbers:
    """Numbers the spans of a kind on a lane, so that kind, lane and number name one; the same step, such as the
    second "dispatch 3", has the same number wherever it is asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], dict[tuple[str, int], int]] = defaultdict(dict)

    def of(
        self, lane: NDArray[np.int32], op: NDArray[np.int8], start: Floats, words: Sequence[str]
    ) -> NDArray[np.int32]:
        """[spans] the number of each; equal words are told apart by when they start."""
        numbers = np.empty(len(words), np.int32)
        seen: Counter[tuple[int, int, str]] = Counter()
        for span in np.argsort(start, kind="stable").tolist():
            group = int(lane[span]), int(op[span])
            known, name = self._known[group], words[span]
            numbers[span] = known.setdefault((name, seen[*group, name]), len(known))
            seen[*group, name] += 1
        return numbers
