"""Spans of the same actions in two timelines of one program."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Timeline, check_same_program

Spans = NDArray[np.int64]


def match_spans(predicted: Timeline, measured: Timeline) -> tuple[Spans, Spans]:
    """Return the spans of the actions that both timelines have, in the predicted and in the measured timeline."""
    check_same_program(predicted.digest, measured.digest)
    _, mine, theirs = np.intersect1d(_span_keys(predicted), _span_keys(measured), return_indices=True)
    return mine, theirs


def _span_keys(timeline: Timeline) -> Spans:
    """Return a key for the action and rank of each span, ``[spans]``.

    A rank repeats the UNSHARD and the RESHARD of a stage; they are numbered instead of a microbatch.
    """
    key = timeline.rank.astype(np.int64)
    width = int(timeline.stage.max(initial=0)) + 2
    stages = (timeline.other + 1) * width + timeline.stage + 1
    for column, bits in ((timeline.op, 4), (stages, 24), (timeline.microbatch + 1, 21)):
        key = (key << bits) + column
    repeated = np.flatnonzero(np.isin(timeline.op, (Op.UNSHARD, Op.RESHARD)))
    order = repeated[np.argsort(key[repeated], kind="stable")]
    key[order] += np.arange(len(order)) - np.searchsorted(key[order], key[order])
    return key
