"""Breakdown of the time of an area, which is a period of time on some of the meshes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwave.engine.predict.questions.rank_activity import Lanes, overlap_seconds
from meshwave.engine.program.action import COLLECTIVES, Op
from meshwave.engine.program.timeline import Floats

if TYPE_CHECKING:
    from meshwave.engine.predict.questions.critical_path import CriticalPath


@dataclass(frozen=True)
class MeshTime:
    """Time of one mesh within an area."""

    mesh: str
    busy_s: float
    idle_s: float
    link_s: float  # idle time during which the awaited transfer or collective is in progress
    by_kind_s: Mapping[str, float]


@dataclass(frozen=True)
class Area:
    """Busy and idle time of an area of the timeline, summed over its meshes.

    Busy and idle time add up to ``available_s``, which is the length of the area times its number of meshes.
    """

    start_s: float
    end_s: float
    meshes: tuple[str, ...]
    available_s: float
    busy_s: float
    by_kind_s: Mapping[str, float]  # F, B, I, W and STEP, with the sum busy_s; each action of a slot counts half
    blocks: Mapping[str, int]  # number of actions of each kind that overlap the area
    idle_s: float
    link_s: float  # idle time during which the awaited transfer or collective is in progress
    fill_s: float  # idle time before the first work of a mesh, without link_s
    drain_s: float  # idle time after the last work of a mesh
    by_mesh: tuple[MeshTime, ...]
    transfers: int  # number of transfers that overlap the area, from or to one of its meshes
    transfers_s: float  # sum over all transfers, including concurrent ones
    transfers_bytes: float | None  # None if the bytes are unknown
    reductions_s: float
    gathers_s: float
    critical_s: float  # time during which the critical path is on the meshes of the area
    critical_share: float

    @property
    def seconds(self) -> float:
        """Length of the area in seconds."""
        return self.end_s - self.start_s

    @property
    def waits_s(self) -> float:
        """Idle seconds before another mesh has computed the awaited tensor."""
        return max(self.idle_s - self.link_s - self.fill_s - self.drain_s, 0.0)

    @property
    def idle_share(self) -> float:
        """Idle time divided by available time."""
        return self.idle_s / self.available_s if self.available_s else 0.0

    def as_data(self) -> dict[str, Any]:
        """Return the sums as JSON data."""
        return {**asdict(self), "seconds": self.seconds, "waits_s": self.waits_s, "idle_share": self.idle_share}


def summarize_area(
    lanes: Lanes, path: CriticalPath, start: float, end: float, ranks: Sequence[int], carried: Floats | None
) -> Area:
    """Break down the time between ``start`` and ``end`` on the given ranks.

    Args:
        lanes: the work of the ranks of the timeline.
        path: the critical path of the timeline.
        start: start of the period in seconds.
        end: end of the period in seconds.
        ranks: the ranks of the area.
        carried: ``[spans]`` bytes of each span; None if they are unknown.
    """
    timeline = lanes.timeline
    start, end = sorted((start, end))
    start, end = max(start, lanes.start_s), min(end, lanes.end_s)
    length = max(end - start, 0.0)
    chosen = np.zeros(timeline.ranks, np.bool_)
    chosen[list(ranks)] = True
    names = tuple(np.array(timeline.meshes, object)[chosen].tolist())

    inside = overlap_seconds(lanes.starts_s, lanes.ends_s, start, end)
    slots = _slot_weight(lanes)
    rank, op = timeline.rank[lanes.work_spans], timeline.op[lanes.work_spans]
    busy = np.bincount(rank * len(Op) + op, inside * slots, timeline.ranks * len(Op)).reshape(timeline.ranks, len(Op))
    touching = chosen[rank] & (inside > 0)
    blocks = np.bincount(op[touching], minlength=len(Op))
    idle = np.maximum(length - busy.sum(axis=1), 0.0)
    link = _gap_seconds(lanes, start, end, lanes.exposed_communication)
    fill, drain = _fill_and_drain(lanes, start, end)

    moves = timeline.is_transfer & (chosen[timeline.rank] | chosen[timeline.peer])
    inside_area = overlap_seconds(timeline.start, timeline.end, start, end)
    under_way = np.where(moves, inside_area, 0.0)
    touched = moves & (timeline.end > start) & (timeline.start < end)
    reducing, gathering = (
        np.where(chosen[timeline.rank] & (timeline.op == kind), inside_area, 0.0).sum() for kind in COLLECTIVES
    )
    critical = path.seconds_within(start, end, chosen)
    return Area(
        start_s=start,
        end_s=max(end, start),
        meshes=names,
        available_s=length * len(names),
        busy_s=float(busy[chosen].sum()),
        by_kind_s=_seconds_by_op(busy[chosen].sum(axis=0)),
        blocks={Op(kind).name: int(number) for kind, number in enumerate(blocks) if number},
        idle_s=float(idle[chosen].sum()),
        link_s=float(link[chosen].sum()),
        fill_s=float(fill[chosen].sum()),
        drain_s=float(drain[chosen].sum()),
        by_mesh=tuple(
            MeshTime(timeline.meshes[r], float(busy[r].sum()), float(idle[r]), float(link[r]), _seconds_by_op(busy[r]))
            for r in np.flatnonzero(chosen).tolist()
        ),
        transfers=int(touched.sum()),
        transfers_s=float(under_way.sum()),
        transfers_bytes=float(carried[touched].sum()) if carried is not None else None,
        reductions_s=float(reducing),
        gathers_s=float(gathering),
        critical_s=critical,
        critical_share=critical / length if length else 0.0,
    )


def _slot_weight(lanes: Lanes) -> Floats:
    """Return the weight of each work, ``[work]``: 0.5 if it shares a slot, otherwise 1."""
    fused = lanes.timeline.fused[lanes.work_spans]
    weight = np.ones(len(fused))
    second = np.flatnonzero(fused)
    weight[second] = weight[second - 1] = 0.5
    return weight


def _gap_seconds(lanes: Lanes, start: float, end: float, seconds: Floats) -> Floats:
    """Return the parts of the last ``seconds`` before each work that lie between ``start`` and ``end``, by rank.

    The result is ``[ranks]`` seconds.
    """
    inside = overlap_seconds(lanes.starts_s - seconds, lanes.starts_s, start, end)
    return np.asarray(np.bincount(lanes.timeline.rank[lanes.work_spans], inside, lanes.timeline.ranks), float)


def _fill_and_drain(lanes: Lanes, start: float, end: float) -> tuple[Floats, Floats]:
    """Return the seconds before the first and after the last work of each rank, ``[ranks]`` each.

    Only the time between ``start`` and ``end`` counts.
    """
    begins = np.full(lanes.timeline.ranks, lanes.end_s)
    has = np.flatnonzero(np.diff(lanes.rank_offsets))
    firsts = lanes.rank_offsets[has]
    begins[has] = lanes.starts_s[firsts] - lanes.exposed_communication[firsts]
    fill = overlap_seconds(np.full_like(begins, lanes.start_s), begins, start, end)
    return fill, np.where(
        np.diff(lanes.rank_offsets) > 0,
        overlap_seconds(lanes.finish_s, np.full_like(begins, lanes.end_s), start, end),
        0,
    )


def _seconds_by_op(by_op: Floats) -> dict[str, float]:
    """Return the seconds by name of the op; sums that are rounding errors are left out."""
    return {Op(op).name: float(seconds) for op, seconds in enumerate(by_op) if seconds > 1e-9 * by_op.sum()}
