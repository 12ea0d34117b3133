"""Explanation of idle time: a sentence on the activity that a mesh waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from meshwave.engine.predict.link_load import port_name
from meshwave.engine.predict.questions.critical_path import FindLimit
from meshwave.engine.predict.questions.rank_activity import Gap, Lanes, Spans, overlap_seconds
from meshwave.engine.predict.questions.text import Unit, format_amount, join_in_order
from meshwave.engine.program.action import COLLECTIVES, SENDS, Op
from meshwave.engine.units import format_count

Activity = Literal["busy", "waits", "computing", "queue", "link", "reducing", "gathering", "late"]
_CARRIED: dict[int, Activity] = {Op.REDUCE_GRAD: "reducing", Op.UNSHARD: "gathering"}
"""Activity of the links during a collective."""


@dataclass(frozen=True)
class IdlePart:
    """Part of an idle gap, and the activity that the mesh waits for in that time."""

    what: Activity
    seconds: float
    words: str
    port: str = ""  # port that delayed the mesh most, such as "NIC of node 0, outgoing"
    flows: int = 0  # largest number of flows that share the port


@dataclass(frozen=True)
class Idle:
    """Idle gap of a mesh, and the sentence that explains it."""

    mesh: str
    start_s: float
    end_s: float
    then: str  # next action of the mesh, such as "2B0"; empty if the mesh is done
    cause: str  # awaited action, such as "1B0"; empty if the mesh is done or the cause is unknown
    cause_mesh: str
    parts: tuple[IdlePart, ...]  # in order of time
    words: str

    @property
    def seconds(self) -> float:
        """Length of the gap in seconds."""
        return self.end_s - self.start_s

    def as_data(self) -> dict[str, Any]:
        """Return the explanation as JSON data."""
        return {**asdict(self), "seconds": self.seconds}


def explain_gap(lanes: Lanes, gap: Gap, unit: Unit, find_limit: FindLimit = lambda span, start, end: None) -> Idle:
    """Explain an idle gap of a mesh: the awaited activity, and the port that delays it (from ``find_limit``)."""
    mesh = lanes.timeline.meshes[gap.rank]
    waits = f"mesh {mesh} waits {format_amount(gap.seconds, unit)}"
    if gap.span < 0:
        last = int(np.argmax(lanes.timeline.end))
        words = f"mesh {mesh} is done; it waits {format_amount(gap.seconds, unit)} for {_action_on_mesh(lanes, last)}, which ends the step"
        return Idle(mesh, gap.start, gap.end, "", lanes.name(last), lanes.mesh(last), (), words)
    cause = int(lanes.timeline.cause[gap.span])
    then = lanes.name(gap.span)
    source, parts = _find_parts(lanes, gap, cause, unit)
    parts = _add_port(parts, gap, cause, find_limit)
    if source < 0:
        words = f"mesh {mesh} is idle for {format_amount(gap.seconds, unit)} before {then}; the cause is not known"
        return Idle(mesh, gap.start, gap.end, then, "", "", (), words)
    story = join_in_order([part.words for part in parts]) if parts else ""
    words = f"{waits} for {_action_on_mesh(lanes, source)}" + (f": {story}" if story else "")
    return Idle(mesh, gap.start, gap.end, then, lanes.name(source), lanes.mesh(source), tuple(parts), words)


def _add_port(parts: list[IdlePart], gap: Gap, cause: int, find_limit: FindLimit) -> list[IdlePart]:
    """Add the limiting port to the longest part that is spent on links."""
    wire = [part for part in parts if part.what in ("queue", "link", "reducing", "gathering")]
    if not wire:
        return parts
    longest = max(wire, key=lambda part: part.seconds)
    place = parts.index(longest)
    start = gap.end - sum(part.seconds for part in parts[place:])
    limit = find_limit(cause, start, start + longest.seconds)
    if limit is None:
        return parts
    words = f"{longest.words} ({limit.description})"
    with_port = replace(longest, words=words, port=port_name(limit.port), flows=limit.flows)
    return [*parts[:place], with_port, *parts[place + 1 :]]


def _action_on_mesh(lanes: Lanes, span: int) -> str:
    return f"{lanes.name(span)} of mesh {lanes.mesh(span)}"


def _find_parts(lanes: Lanes, gap: Gap, cause: int, unit: Unit) -> tuple[int, list[IdlePart]]:
    """Return the span that a gap waits for (-1 if unknown), and the parts of the gap."""
    timeline = lanes.timeline
    if cause < 0:
        return -1, []
    op = int(timeline.op[cause])
    if op in SENDS:
        if timeline.rank[cause] == gap.rank:  # a blocking send
            return cause, [_idle_part("link", gap.start, gap.end, "sending it, which blocks the sender", unit)]
        maker = lanes.producer_span(cause)
        return (maker, _long_parts(lanes, gap, maker, cause, unit)) if maker >= 0 else (-1, [])
    if op in COLLECTIVES:
        maker = int(timeline.cause[cause])
        return cause, _long_parts(lanes, gap, maker, cause, unit)
    if timeline.rank[cause] == gap.rank:
        return -1, []  # delay within the rank itself: a measured pause that no message explains
    return cause, _long_parts(lanes, gap, cause, -1, unit)


def _long_parts(lanes: Lanes, gap: Gap, maker: int, carrier: int, unit: Unit) -> list[IdlePart]:
    """Return the parts of a gap, except those below 0.5% of the gap."""
    return [part for part in _all_parts(lanes, gap, maker, carrier, unit) if part.seconds > 0.005 * gap.seconds]


def _all_parts(lanes: Lanes, gap: Gap, maker: int, carrier: int, unit: Unit) -> Iterator[IdlePart]:
    """Yield the parts of a gap: before the awaited span starts, while it runs, while its message waits and is sent."""
    timeline = lanes.timeline
    at = gap.start
    if maker >= 0:
        starts, ends = float(timeline.start[maker]), float(timeline.end[maker])
        begun = min(max(at, starts), gap.end)
        yield from _earlier_parts(lanes, maker, at, begun, unit)
        at = min(max(begun, ends), gap.end)
        name = f" {_action_on_mesh(lanes, maker)}" if carrier >= 0 and not timeline.is_transfer[carrier] else ""
        yield _idle_part("computing", begun, at, f"computing{name}", unit)
    if carrier >= 0:
        starts, ends = (min(max(at, float(column[carrier])), gap.end) for column in (timeline.start, timeline.end))
        yield _idle_part("queue", at, starts, "until the link is free", unit)
        what = _CARRIED.get(int(timeline.op[carrier]), "link")
        words = "on the link" if what == "link" else "on the links"
        yield _idle_part(what, starts, ends, words, unit)
        at = ends
    yield _idle_part("late", at, gap.end, "until it resumes", unit)


def _earlier_parts(lanes: Lanes, maker: int, start: float, end: float, unit: Unit) -> Iterator[IdlePart]:
    """Yield the reasons why the awaited span did not start at once: its mesh was busy, or was waiting itself."""
    rank = int(lanes.timeline.rank[maker])
    work = slice(int(lanes.rank_offsets[rank]), int(lanes.rank_offsets[rank + 1]))
    spans = lanes.work_spans[work]
    busy = overlap_seconds(lanes.starts_s[work], lanes.ends_s[work], start, end)
    waits = overlap_seconds(lanes.free_s[work], lanes.starts_s[work], start, end)
    blocks, pauses = np.flatnonzero(busy > 0), np.flatnonzero(waits > 0)
    parts = []
    if blocks.size:
        seconds = float(busy[~lanes.timeline.fused[spans]].sum())
        parts.append((blocks[0], _busy_part(lanes, rank, spans[blocks], seconds, unit)))
    if pauses.size:
        parts.append((pauses[0] - 0.5, _waiting_part(lanes, rank, int(spans[pauses[0]]), float(waits.sum()), unit)))
    yield from (part for _, part in sorted(parts, key=lambda entry: entry[0]))


def _busy_part(lanes: Lanes, rank: int, blocks: Spans, seconds: float, unit: Unit) -> IdlePart:
    first = lanes.name(int(blocks[0]))
    what = (
        f"{first} before it" if len(blocks) == 1 else f"{format_count(len(blocks), 'block')} before it, from {first} on"
    )
    return IdlePart(
        "busy", seconds, f"{format_amount(seconds, unit)} while mesh {lanes.timeline.meshes[rank]} computes {what}"
    )


def _waiting_part(lanes: Lanes, rank: int, span: int, seconds: float, unit: Unit) -> IdlePart:
    """Return the part for which the other mesh waits; ``span`` is the next action of that mesh."""
    what = _awaited_action(lanes, int(lanes.timeline.cause[span]), rank)
    return IdlePart(
        "waits", seconds, f"{format_amount(seconds, unit)} while mesh {lanes.timeline.meshes[rank]} itself waits{what}"
    )


def _awaited_action(lanes: Lanes, cause: int, rank: int) -> str:
    if cause >= 0 and lanes.timeline.is_transfer[cause]:
        cause = lanes.producer_span(cause)
    return f" for {_action_on_mesh(lanes, cause)}" if cause >= 0 and lanes.timeline.rank[cause] != rank else ""


def _idle_part(what: Activity, start: float, end: float, words: str, unit: Unit) -> IdlePart:
    seconds = max(end - start, 0.0)
    return IdlePart(what, seconds, f"{format_amount(seconds, unit)} {words}")
