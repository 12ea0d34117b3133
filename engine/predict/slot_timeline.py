"""Predicted timeline inside a shared slot, which overlap while one of them waits for collectives."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwave.engine.costs.cost_model import layers_per_stage
from meshwave.engine.costs.models.roofline import operator_costs
from meshwave.engine.costs.overlapped_slots import Pieces, PlacedPiece, place_overlapped_pieces, scale_pieces
from meshwave.engine.costs.slot_pieces import SlotPieces
from meshwave.engine.document import Design
from meshwave.engine.experts import StepOp
from meshwave.engine.predict.block_timeline import (
    INTER,
    INTRA,
    BlockSpan,
    BlockTimeline,
    BlockTimelineBuilder,
    predict_block,
)
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.program.action import Action
from meshwave.engine.program.program import Program

MIN_PART = 1e-9
"""Smallest share of a span that is drawn as a separate part; smaller shares are rounding errors."""


def predict_action(prediction: Prediction, rank: int, action: Action) -> BlockTimeline:
    """Predict the timeline inside an action; if it shares a slot, together with the other action of the slot.

    Raises:
        InputError: the design has unit costs, which do not describe the inside of a block.
    """
    design, slot = prediction.design, slot_actions(prediction.program, rank, action)
    if len(slot) == 1:
        return predict_block(design, rank, action.stage, action.op)
    return _predict_slot(design, rank, slot, action)


def slot_actions(program: Program, rank: int, action: Action) -> list[Action]:
    """Return the one or two actions in the slot of an action, in order."""
    actions = program.actions(rank)
    place = next(n for n, each in enumerate(actions) if each._replace(fused=0) == action._replace(fused=0))
    first = place - actions[place].fused
    return [each for n, each in enumerate(actions[first : first + 2]) if n == 0 or each.fused]


class Section(NamedTuple):
    """Part of an action, with its times alone and in the slot."""

    begin: float  # seconds from the start of the action alone
    end: float
    shift: float  # seconds to add for its start in the slot
    computes: bool


def _predict_slot(design: Design, rank: int, slot: Sequence[Action], shown: Action) -> BlockTimeline:
    """Return the spans of both actions of a slot; only labels of the action that is not shown include its name."""
    alone = [predict_block(design, rank, action.stage, action.op) for action in slot]
    spans, tp = BlockTimelineBuilder(design, rank, shown.op), design.meshes[rank].tp
    reduction_lane = INTER if len({design.cluster.node_of(device) for device in spans.block[:tp]}) > 1 else INTRA
    for action, found, sections in zip(slot, alone, _slot_sections(design, rank, slot, alone), strict=True):
        suffix = "" if action._replace(fused=0) == shown._replace(fused=0) else f" of {action}"
        _add_spans(spans, found, sections, suffix, reduction_lane)
    return spans.build("predicted")


def _slot_sections(
    design: Design, rank: int, slot: Sequence[Action], alone: Sequence[BlockTimeline]
) -> list[list[Section]]:
    """Return the sections of both actions: one after the other without overlap, or with the maximum overlap."""
    model, seconds = operator_costs(design), [found.timeline.makespan for found in alone]
    if not model.overlap_share(design):
        return [[Section(0.0, seconds[0], 0.0, True)], [Section(0.0, seconds[1], seconds[0], True)]]
    pieces_of = SlotPieces(design, model.prices(design), layers_per_stage(design))
    first, second = (
        scale_pieces(pieces_of.find(rank, action.stage, action.op), each)
        for action, each in zip(slot, seconds, strict=True)
    )
    return [
        list(_sections(*each)) for each in zip((first, second), place_overlapped_pieces(first, second), strict=True)
    ]


def _sections(pieces: Pieces, placed: Sequence[PlacedPiece]) -> Iterator[Section]:
    begin = 0.0
    for (compute, wait), (start, collective_start, _) in zip(pieces, placed, strict=True):
        if compute > 0:
            yield Section(begin, begin + compute, start - begin, True)
        begin += compute
        if wait > 0:
            yield Section(begin, begin + wait, collective_start - begin, False)
        begin += wait


class TimedPart(NamedTuple):
    """Part of a span; times are in seconds from the start of the slot."""

    start: float
    end: float
    computes: bool


def _add_spans(
    spans: BlockTimelineBuilder, found: BlockTimeline, sections: Sequence[Section], suffix: str, reduction_lane: int
) -> None:
    """Add the spans of an action to those of the slot.

    Args:
        spans: spans of the slot.
        found: spans of the action alone.
        sections: sections of the action.
        suffix: text at the end of the labels.
        reduction_lane: lane of the reductions that the spans of dense parts include.
    """
    timeline, last = found.timeline, dict[int, int]()
    for span in timeline.start.argsort(kind="stable").tolist():
        device, lane = found.lanes[timeline.rank[span]]
        label, step, sent = found.labels[span] + suffix, found.steps[span], float(found.sent[span])
        begins, ends = float(timeline.start[span]), float(timeline.end[span])
        cause = last.get(int(timeline.cause[span]), -1)
        for start, end, computes in (_split_dense_part if step is None else _move_step)(sections, begins, ends):
            last[span] = number = len(spans)
            if step is None and not computes:
                spans.add(
                    BlockSpan(device, reduction_lane, start, end, f"reduction of {label}", StepOp.REDUCE, 0.0, cause)
                )
            else:
                spans.add(BlockSpan(device, lane, start, end, label, step, sent, cause))
            cause = number


def _split_dense_part(sections: Sequence[Section], start: float, end: float) -> Iterator[TimedPart]:
    """Yield the computation and reduction parts of a dense span, at their times in the slot."""
    first, last = (_section_at(sections, time) for time in (start, end))
    for each in sections[first : last + 1]:
        begin, stop = max(start, each.begin), min(end, each.end)
        if stop - begin > MIN_PART * (end - start):
            yield TimedPart(begin + each.shift, stop + each.shift, each.computes)


def _move_step(sections: Sequence[Section], start: float, end: float) -> Iterator[TimedPart]:
    """Yield the span of a step of an expert layer, undivided, at its time in the slot."""
    shift = sections[_section_at(sections, (start + end) / 2)].shift
    yield TimedPart(start + shift, end + shift, True)


def _section_at(sections: Sequence[Section], time: float) -> int:
    return max(0, bisect_right(sections, time, key=lambda each: each.begin) - 1)
