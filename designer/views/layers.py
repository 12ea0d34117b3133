"""The inside of a block for the timeline's chart: what each device of its mesh computes and sends, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from designer.views.timeline import Layer, Steps
from engine.program.action import Op
from engine.timeline import Floats, Timeline

KINDS: Mapping[Op, str] = {
    Op.F: "experts",
    Op.B: "dispatch",
    Op.I: "combine",
    Op.W: "gather and reduce",
    Op.STEP: "attention, gate, order",
}
"""What the colours of computations mean inside a block: the same as on the cards of expert schedules."""


def as_layer(
    timeline: Timeline, kinds: Sequence[Op], words: Sequence[str], sent: Floats, tones: Sequence[int]
) -> Layer:
    """The chart's form of a timeline whose ranks are lanes and whose spans are steps.

    ``kinds`` and ``words`` are of each span, ``sent`` the bytes that it sends, ``tones`` the device of each lane.
    """
    labels = list(dict.fromkeys(words))
    number = {label: place for place, label in enumerate(labels)}
    op = np.array([int(kind) for kind in kinds], np.int8)
    shown = replace(
        timeline,
        op=op,
        peer=np.full(len(op), -1, np.int32),
        stage=timeline.rank.astype(np.int32),
        microbatch=_places(timeline.rank, op, timeline.start),
        fused=np.zeros(len(op), np.bool_),
    )
    label = np.array([number[each] for each in words], np.int32)
    met = {kind: KINDS[kind] for kind in KINDS if (op == kind).any()}
    return Layer(shown, "", steps=Steps(met, labels, label, sent, list(tones)))


def _places(lane: NDArray[np.int32], op: NDArray[np.int8], start: Floats) -> NDArray[np.int32]:
    """[spans] the place of each among those of its kind on its lane, by time: with these it has a name."""
    order = np.lexsort((start, op, lane))
    group = lane[order].astype(np.int64) * (int(Op.STEP) + 1) + op[order]
    first = np.searchsorted(group, group)
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order)) - first
    return places
