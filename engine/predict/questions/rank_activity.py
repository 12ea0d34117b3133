"""Work of each rank in order of time, and the gaps between; the basis of other analyses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.program.action import Op
from meshwave.engine.program.timeline import Floats, Timeline

Spans = NDArray[np.int64]


@dataclass(frozen=True)
class Gap:
    """Period in which a rank is idle."""

    rank: int
    start: float
    end: float
    span: int  # next span of the rank; -1 if the rank is done

    @property
    def seconds(self) -> float:
        """Length of the gap in seconds."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class Lanes:
    """Work (computations and optimizer steps) of each rank of a timeline, ordered by start.

    Entries ``rank_offsets[r]:rank_offsets[r + 1]`` of each array are the work of rank ``r``.
    """

    timeline: Timeline

    @cached_property
    def work_spans(self) -> Spans:
        """Span indices of all work by rank and start, ``[work]``; the two actions of a slot are adjacent."""
        timeline = self.timeline
        work = np.flatnonzero(timeline.is_work)
        rank, start = timeline.rank[work], timeline.start[work]
        step = np.diff(rank)
        if ((step > 0) | ((step == 0) & (np.diff(start) >= 0))).all():
            return work  # simulated timelines are already sorted
        return work[np.lexsort((work, start, rank))]

    @cached_property
    def rank_offsets(self) -> NDArray[np.int64]:
        """Index of the first work of each rank, ``[ranks + 1]``."""
        return np.searchsorted(self.timeline.rank[self.work_spans], np.arange(self.timeline.ranks + 1))

    @cached_property
    def starts_s(self) -> Floats:
        """Start of each work in seconds, ``[work]``."""
        return self.timeline.start[self.work_spans]

    @cached_property
    def ends_s(self) -> Floats:
        """End of each work in seconds, ``[work]``."""
        return self.timeline.end[self.work_spans]

    @cached_property
    def start_s(self) -> float:
        """Start of the step in seconds."""
        return float(self.timeline.start.min()) if len(self.timeline) else 0.0

    @cached_property
    def end_s(self) -> float:
        """End of the step in seconds."""
        return float(self.timeline.end.max()) if len(self.timeline) else 0.0

    @cached_property
    def free_s(self) -> Floats:
        """Time in seconds at which the rank becomes free before each span of work, ``[work]``.

        It is the end of the previous span of work, or the start of the step.
        """
        free = np.concatenate(([self.start_s], self.ends_s[:-1])) if len(self.work_spans) else np.zeros(0)
        free[self.rank_offsets[:-1][np.diff(self.rank_offsets) > 0]] = self.start_s
        return np.minimum(free, self.starts_s)  # the second action of a slot starts with the first

    @cached_property
    def finish_s(self) -> Floats:
        """Time at which each rank has finished its work, in seconds, ``[ranks]``."""
        has = np.diff(self.rank_offsets) > 0
        done = np.full(self.timeline.ranks, self.start_s)
        done[has] = np.maximum.reduceat(self.ends_s, self.rank_offsets[:-1][has]) if has.any() else self.start_s
        return done

    @cached_property
    def exposed_communication(self) -> Floats:
        """Seconds of the gap before each work in which the awaited transfer or reduction is in progress, ``[work]``."""
        cause = self.timeline.cause[self.work_spans]
        by_wire = (cause >= 0) & ~self.timeline.is_work[cause]
        waited = self.starts_s - np.maximum(self.free_s, self.timeline.start[cause])
        return np.where(by_wire, np.maximum(waited, 0.0), 0.0)

    def gap(self, rank: int, at: float) -> Gap | None:
        """Return the gap of a rank at the time ``at``; None if the rank works or the step has ended."""
        low, high = int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1])
        after = low + int(np.searchsorted(self.starts_s[low:high], at, "right"))
        if after < high and self.free_s[after] <= at < self.starts_s[after]:
            return Gap(rank, float(self.free_s[after]), float(self.starts_s[after]), int(self.work_spans[after]))
        if self.finish_s[rank] <= at < self.end_s:
            return Gap(rank, float(self.finish_s[rank]), self.end_s, -1)
        return None

    def producer_span(self, transfer: int) -> int:
        """Return the span that computes the tensor of a transfer; -1 if there is none."""
        timeline = self.timeline
        made = (Op.F,) if timeline.op[transfer] == Op.SEND_F else (Op.B, Op.I)
        same = (timeline.microbatch == timeline.microbatch[transfer]) & (timeline.stage == timeline.stage[transfer])
        found = np.flatnonzero(same & np.isin(timeline.op, made))
        return int(found[0]) if found.size else -1

    def mesh(self, span: int) -> str:
        """Return the mesh name of a span."""
        return self.timeline.meshes[int(self.timeline.rank[span])]

    def name(self, span: int) -> str:
        """Return the action of a span as text, such as ``2B0``."""
        return str(self.timeline.action(span))


def overlap_seconds(starts: Floats, ends: Floats, start: float, end: float) -> Floats:
    """Return the overlap in seconds of each interval ``starts`` to ``ends`` with the period ``start`` to ``end``."""
    inside: Floats = np.maximum(np.minimum(ends, end) - np.maximum(starts, start), 0.0)
    return inside
