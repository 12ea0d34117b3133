"""The inside of a block for the timeline's chart: what each device of its mesh computes and sends, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from designer.views.timeline import Layer, Steps
from engine.lowering.layers import Inside, inside
from engine.moe import Step, StepOp
from engine.predict import Prediction
from engine.program.action import Action, Op
from engine.timeline import Floats

KINDS: Mapping[Op, str] = {
    Op.F: "experts, feed-forward",
    Op.B: "dispatch",
    Op.I: "combine",
    Op.W: "gather and reduce",
    Op.STEP: "attention, gate and others",
}
"""What the colours of computations mean inside a block: the same as on the cards of expert schedules."""


def inside_of(prediction: Prediction, rank: int, action: Action) -> tuple[Layer, list[str]]:
    """The inside of a computation for the chart, and the words that lead to it from the iteration.

    Raises:
        InputError: the design is priced in units.
    """
    found = inside(prediction.design, rank, action.stage, action.op)
    mesh = prediction.design.meshes[rank].name
    return as_layer(found, f"{action} on mesh {mesh}"), ["iteration", f"{action} on mesh {mesh}"]


def as_layer(found: Inside, label: str) -> Layer:
    """The chart's form: lanes as ranks, kinds of steps as ops."""
    op = np.array([_kind(word, step) for word, step in zip(found.words, found.steps, strict=True)], np.int8)
    timeline = found.timeline
    labels = list(dict.fromkeys(found.words))
    number = {each: place for place, each in enumerate(labels)}
    shown = replace(
        timeline,
        op=op,
        stage=timeline.rank.astype(np.int32),
        microbatch=_places(timeline.rank, op, timeline.start),
    )
    devices = {device: place for place, device in enumerate(dict.fromkeys(found.devices))}
    steps = Steps(
        kinds={kind: words for kind, words in KINDS.items() if (op == kind).any()},
        labels=labels,
        label=np.array([number[word] for word in found.words], np.int32),
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


def _places(lane: NDArray[np.int32], op: NDArray[np.int8], start: Floats) -> NDArray[np.int32]:
    """[spans] the place of each among those of its kind on its lane, by time: with these it has a name."""
    order = np.lexsort((start, op, lane))
    group = lane[order].astype(np.int64) * (int(Op.STEP) + 1) + op[order]
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order)) - np.searchsorted(group, group)
    return places
