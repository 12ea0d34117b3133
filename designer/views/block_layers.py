"""The inside of a block in the timeline: compute and communication of each device of its mesh, layer by layer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwave.designer.views.lane_groups import group_block_lanes
from meshwave.designer.views.timeline_columns import BlockSteps, Layer
from meshwave.engine.errors import RunError
from meshwave.engine.experts import Step, StepOp
from meshwave.engine.predict.block_timeline import BlockTimeline, align_lanes, representative_places
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.predict.slot_timeline import predict_action
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.timeline import Floats
from meshwave.engine.runs import Run
from meshwave.engine.runs.accuracy.measured_block import measured_block_timeline
from meshwave.engine.runs.recording import read_layer_steps
from meshwave.engine.units import format_time

KINDS: Mapping[Op, str] = {
    Op.F: "experts, feed-forward",
    Op.B: "dispatch",
    Op.I: "combine",
    Op.W: "gather and reduce",
    Op.STEP: "attention, gate, other",
}
"""Kinds of steps by colour, with the same colours as on the cards of expert schedules."""


class MeasuredBlock(NamedTuple):
    """Layers of a block with their measured times."""

    found: BlockTimeline
    label: str  # names the run and its step


def block_layers(
    prediction: Prediction, rank: int, action: Action, measured: MeasuredBlock | None = None
) -> tuple[list[Layer], list[str]]:
    """Return the layers of a block for the chart, measured over predicted, and the navigation path to the block.

    Raises:
        InputError: the costs of the design are in units.
    """
    found = predict_action(prediction, rank, action)
    words = f"{action} on mesh {prediction.design.meshes[rank].name}"
    numbers = _SpanNumbers()
    if measured is None:
        return [block_layer(found, words, numbers)], ["iteration", words]
    below, above = align_lanes(found, measured.found)
    under = block_layer(below, words, numbers)
    return [under, replace(block_layer(above, measured.label, numbers), over=True)], ["iteration", words]


def measured_block(run: Run, prediction: Prediction, rank: int, action: Action) -> MeasuredBlock | None:
    """Return the layers of a block as a run of the design measured them; None if the run did not record them."""
    design = prediction.design
    first = sum(len(mesh.devices) for mesh in design.meshes[:rank])  # processes are numbered mesh by mesh
    try:
        found = read_layer_steps(run.folder, [first + place for place in representative_places(design, rank)], action)
        measured = measured_block_timeline(design, rank, action.op, found)
    except RunError:
        return None
    return MeasuredBlock(measured, f"Run of {format_time(run.created_s)}, step {found.step + 1}")


def block_layer(found: BlockTimeline, label: str, numbers: _SpanNumbers) -> Layer:
    """Return a layer with lanes as ranks and kinds of steps as ops.

    Layers with the same ``numbers`` use the same identifiers for the same steps.
    """
    op = np.array([_palette_op(word, step) for word, step in zip(found.labels, found.steps, strict=True)], np.int8)
    timeline = found.timeline
    labels = list(dict.fromkeys(found.labels))
    number = {each: place for place, each in enumerate(labels)}
    shown = replace(
        timeline,
        op=op,
        stage=timeline.rank.astype(np.int32),
        microbatch=numbers.assign(timeline.rank, op, timeline.start, found.labels),
    )
    devices = {device: place for place, device in enumerate(dict.fromkeys(found.devices))}
    steps = BlockSteps(
        kinds={kind: words for kind, words in KINDS.items() if (op == kind).any()},
        labels=labels,
        label=np.array([number[word] for word in found.labels], np.int32),
        bytes=found.sent,
        tones=[devices[device] for device in found.devices],
    )
    return Layer(shown, label, steps=steps, groups=group_block_lanes(shown, found.devices))


def _palette_op(word: str, step: StepOp | None) -> Op:
    if step == StepOp.EXPERTS or (step is None and word.startswith("feed-forward")):
        return Op.F
    if step == StepOp.DISPATCH:
        return Op.B
    if step == StepOp.COMBINE:
        return Op.I
    return Op.W if step is not None and Step(step).collective else Op.STEP


class _SpanNumbers:
    """Numbers of the spans of each kind on each lane; kind, lane and number together identify a span.

    The same step, such as the second "dispatch 3", gets the same number in every layer.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], dict[tuple[str, int], int]] = defaultdict(dict)

    def assign(
        self, lane: NDArray[np.int32], op: NDArray[np.int8], start: Floats, words: Sequence[str]
    ) -> NDArray[np.int32]:
        """Return the number of each span; spans with equal labels are numbered by their start."""
        numbers = np.empty(len(words), np.int32)
        seen: Counter[tuple[int, int, str]] = Counter()
        for span in np.argsort(start, kind="stable").tolist():
            group = int(lane[span]), int(op[span])
            known, name = self._known[group], words[span]
            numbers[span] = known.setdefault((name, seen[*group, name]), len(known))
            seen[*group, name] += 1
        return numbers
