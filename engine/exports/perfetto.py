"""Perfetto export: a timeline as a Chrome trace with one process per mesh and one arrow per message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshwave.engine.exports._base import Export, exports
from meshwave.engine.program.action import WORDS, Op
from meshwave.engine.program.timeline import Floats, Timeline

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction

COMPUTE, REDUCTIONS, GATHERS, FIRST_LINK = range(4)
"""Threads of a mesh: computations, reductions, gathers, and one link per other mesh."""
COLLECTIVE_THREADS: dict[int, int] = {Op.REDUCE_GRAD: REDUCTIONS, Op.UNSHARD: GATHERS, Op.RESHARD: GATHERS}


@exports.register("perfetto")
class Perfetto(Export):
    """Trace with every action and every message."""

    title = "Perfetto trace"
    note = "opens at ui.perfetto.dev"
    suffix = ".trace.json"
    mime = "application/json"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        return json.dumps(
            trace_events(prediction.timeline, bytes_of=prediction.costs.bytes[prediction.program.spans])
        ).encode()


def trace_events(timeline: Timeline, *, bytes_of: Floats | None = None) -> dict[str, Any]:
    """Return a timeline as trace events with times in microseconds, as one JSON object; unit costs count as seconds.

    Args:
        timeline: the timeline.
        bytes_of: ``[spans]`` bytes of each transfer or reduction; None if unknown.
    """
    events = [*_name_events(timeline), *_slice_events(timeline, bytes_of), *_arrow_events(timeline)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made by": "Meshwave", "source": timeline.source, "program": timeline.digest},
    }


def _name_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for rank, mesh in enumerate(timeline.meshes):
        yield _metadata_event("process_name", rank, 0, name=f"mesh {mesh}")
        yield _metadata_event("process_sort_index", rank, 0, sort_index=rank)
        yield _metadata_event("thread_name", rank, COMPUTE, name="compute")
    for op, name in ((Op.REDUCE_GRAD, "gradient reductions"), (Op.UNSHARD, "weight gathers")):
        for rank in sorted(set(timeline.rank[timeline.op == op].tolist())):
            yield _metadata_event("thread_name", rank, COLLECTIVE_THREADS[op], name=name)
    moves = timeline.is_transfer
    for rank, peer in sorted(set(zip(timeline.rank[moves].tolist(), timeline.peer[moves].tolist(), strict=True))):
        yield _metadata_event("thread_name", rank, FIRST_LINK + peer, name=f"to mesh {timeline.meshes[peer]}")


def _metadata_event(event: str, rank: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": rank, "tid": thread, "args": args}


def _slice_events(timeline: Timeline, bytes_of: Floats | None) -> Iterator[dict[str, Any]]:
    columns = (timeline.rank, timeline.peer, timeline.op, timeline.stage, timeline.microbatch)
    times = (timeline.start * 1e6, (timeline.end - timeline.start) * 1e6)
    rows = zip(*(column.tolist() for column in (*columns, *times)), strict=True)
    for span, (rank, peer, op, stage, microbatch, start, duration) in enumerate(rows):
        args: dict[str, Any] = {}
        if stage >= 0:
            args["stage"] = stage
        if microbatch >= 0:
            args["bucket" if op == Op.REDUCE_GRAD else "microbatch"] = microbatch
        if peer >= 0:
            args["to"] = timeline.meshes[peer]
        if bytes_of is not None and bytes_of[span] > 0:
            args["bytes"] = float(bytes_of[span])
        yield {
            "ph": "X",
            "name": str(timeline.action(span)),
            "cat": WORDS[Op(op).name],
            "pid": rank,
            "tid": _thread_number(op, peer),
            "ts": start,
            "dur": duration,
            "args": args,
        }


def _thread_number(op: int, peer: int) -> int:
    if peer >= 0:
        return FIRST_LINK + peer
    return COLLECTIVE_THREADS.get(op, COMPUTE)


def _arrow_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield the arrow (flow events) of each transfer, from the computation that produces the tensor to its consumer."""
    places = _tensor_producers(timeline)
    for span in timeline.is_transfer.nonzero()[0].tolist():
        forward = bool(timeline.op[span] == Op.SEND_F)
        stage, microbatch = int(timeline.stage[span]), int(timeline.microbatch[span])
        made = places.get((forward, stage, microbatch))
        other = int(timeline.other[span])
        end = other if other >= 0 else stage + (1 if forward else -1)
        taken = places.get((forward, end, microbatch))
        if made is not None and taken is not None:
            flow = {"cat": "message", "name": str(timeline.action(span)), "id": span, "tid": COMPUTE}
            yield {"ph": "s", "ts": _time_inside(timeline, made, 0.999), "pid": int(timeline.rank[made]), **flow}
            yield {
                "ph": "f",
                "bp": "e",
                "ts": _time_inside(timeline, taken, 0.001),
                "pid": int(timeline.rank[taken]),
                **flow,
            }


def _tensor_producers(timeline: Timeline) -> dict[tuple[bool, int, int], int]:
    """Return the span of each forward and of each backward that produces an input gradient.

    Keys are (True for a forward, stage, microbatch).
    """
    spans = ((timeline.op == Op.F) | (timeline.op == Op.B) | (timeline.op == Op.I)).nonzero()[0]
    forward, stage, microbatch = (timeline.op == Op.F)[spans], timeline.stage[spans], timeline.microbatch[spans]
    keys = zip(forward.tolist(), stage.tolist(), microbatch.tolist(), strict=True)
    return dict(zip(keys, spans.tolist(), strict=True))


def _time_inside(timeline: Timeline, span: int, part: float) -> float:
    """Return a time in microseconds at fraction ``part`` of a slice, because an arrow binds to the slice at its time."""
    start, duration = float(timeline.start[span]), float(timeline.end[span] - timeline.start[span])
    return (start + part * duration) * 1e6
