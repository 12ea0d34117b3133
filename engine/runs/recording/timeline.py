"""Timeline of a recorded step: the spans of all ranks, connected by their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import RECEIVES, SENDS, Action, MessageKey, Op, message_key
from meshwave.engine.program.timeline import Timeline
from meshwave.engine.runs.recording.spans import Spans, Track

OVERHEAD_NS = 50_000
"""Longest wait, in nanoseconds, that counts as overhead of taking an input that had already arrived."""
OVERHEAD_SHARE = 0.1
"""Longest wait, as a share of the transfer time, that counts as overhead; it matters on a busy machine."""
Int64s = NDArray[np.int64]


def has_waited(wait_ns: Any, transit_ns: Any = 0, scale: float = 1.0) -> Any:
    """Return True where a wait was for an input that had not arrived, rather than overhead; elementwise.

    ``transit_ns`` are the transfer times from start to end. Waits and transfer times are modelled times of a dry run
    with the time-dilation factor ``scale``, whereas overhead is real time.
    """
    return wait_ns > np.maximum(OVERHEAD_NS / scale, OVERHEAD_SHARE * transit_ns)


def step_timeline(tracks: Sequence[Track], step: int) -> Timeline:
    """Return the timeline of one step over all ranks.

    A transfer lasts from its SEND until its receiver has the tensor. A message that arrives during a computation of its
    receiver ends when the receiver takes it.
    """
    header = tracks[0].header
    scale = header.scale
    blocks = [track.step_spans([step])[0] for track in tracks]
    spans = np.concatenate(blocks)
    rank = np.repeat(np.arange(len(blocks), dtype=np.int32), [len(block) for block in blocks])
    fused = np.concatenate([track.fused for track in tracks])
    other = np.concatenate([track.other for track in tracks])
    taken = {message: spans[row] for row, message in _find_messages(spans, other, RECEIVES).items()}
    shown = ~np.isin(spans["op"], RECEIVES)
    spans, rank, fused, other = spans[shown], rank[shown], fused[shown], other[shown]
    sends = _find_messages(spans, other, SENDS)
    end, awaited = spans["end_ns"].copy(), dict[int, MessageKey]()
    for row, message in sends.items():
        if message in taken:
            posted, end[row], wait = (int(taken[message][column]) for column in ("start_ns", "end_ns", "wait_ns"))
            start = end[row] if header.arrivals else max(posted, int(spans["start_ns"][row]))
            if has_waited(wait, end[row] - start, scale):
                awaited[row] = message
    zero = spans["start_ns"].min()
    return Timeline(
        source=header.source,
        digest=header.digest,
        meshes=header.meshes,
        rank=rank,
        peer=spans["peer"].astype(np.int32),
        op=spans["op"].astype(np.int8),
        stage=spans["stage"].astype(np.int32),
        microbatch=spans["microbatch"].astype(np.int32),
        fused=fused,
        start=(spans["start_ns"] - zero) / 1e9,
        end=(end - zero) / 1e9,
        cause=_find_causes(spans, rank, end, fused, sends, awaited, scale),
        other=other,
    )


def _find_messages(spans: Spans, other: NDArray[np.int32], ops: Sequence[Op]) -> dict[int, MessageKey]:
    """Return the messages of the given kinds of actions, by row."""
    columns = (spans["op"], spans["stage"], spans["microbatch"], other)
    rows = np.flatnonzero(np.isin(spans["op"], ops))
    found = zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)
    return {row: message_key(Action(Op(op), stage, mb, 0, end)) for row, op, stage, mb, end in found}


def _find_causes(
    spans: Spans,
    rank: NDArray[np.int32],
    end: Int64s,
    fused: NDArray[np.bool_],
    sends: Mapping[int, MessageKey],
    awaited: Mapping[int, MessageKey],
    scale: float,
) -> Int64s:
    """Return the cause of each span, ``[spans]``: the transfer or collective it waited for, or the previous span."""
    sent, held_up = _last_transfers(sends, end), _last_transfers(awaited, end)
    cause = np.full(len(spans), -1, np.int64)
    before, previous, reduction, at, gathers = -1, -1, -1, -1, dict[int, int]()
    for row, op in enumerate(spans["op"].tolist()):
        if rank[row] != at:
            before, previous, reduction, at, gathers = -1, -1, -1, rank[row], {}
        if fused[row]:
            previous = before  # it started together with the previous row
        needed, stage = -1, int(spans["stage"][row])
        if op < Op.W:
            message = op == Op.F, stage, int(spans["microbatch"][row])
            needed = held_up.get(message, sent.get(message, -1) if previous < 0 else -1)
        elif op == Op.STEP and (previous < 0 or has_waited(spans["wait_ns"][row], scale=scale)):
            needed = reduction
        gather = gathers.pop(stage, -1) if op <= Op.W else -1
        if gather >= 0 and has_waited(spans["wait_ns"][gather], end[gather] - spans["start_ns"][gather], scale):
            needed = gather if needed < 0 or end[gather] > end[needed] else needed
        cause[row] = needed if needed >= 0 else previous
        if op == Op.REDUCE_GRAD:  # it overlaps with later spans
            reduction = row if reduction < 0 or end[row] > end[reduction] else reduction
        elif op == Op.UNSHARD:  # it overlaps with later spans too
            gathers[stage] = row
        elif row not in sends and op != Op.RESHARD:
            before, previous = previous, row
    return cause


def _last_transfers(sends: Mapping[int, MessageKey], end: Int64s) -> dict[tuple[bool, int, int], int]:
    """Return the last transfer to each computation, by (is forward, stage, microbatch)."""
    last: dict[tuple[bool, int, int], int] = {}
    for row, (forward, _, taker, mb) in sends.items():
        best = last.get((forward, taker, mb), -1)
        if best < 0 or end[row] > end[best]:
            last[forward, taker, mb] = row
    return last
