"""Critical path of a timeline, and its composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.link_flows import Limit
from meshwave.engine.predict.link_load import port_name
from meshwave.engine.predict.questions.rank_activity import Lanes, Spans
from meshwave.engine.program.action import WORDS, Op
from meshwave.engine.program.timeline import Floats
from meshwave.engine.units import percent

FindLimit = Callable[[int, float, float], Limit | None]
"""Function that returns the port that delayed a span most between two times in seconds."""
LIMIT_LOOKUPS = 1_000
"""Maximum number of transfers of a path whose port is looked up."""
CATEGORIES = ("compute", "transfer", "reduction", "gather", "update", "waiting")
SHOWN_NAMES = {"update": WORDS["STEP"]}
"""Names that messages and the page show for categories whose key in the JSON data is another word."""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Spans that determine the makespan, from the first to the last.

    Each span adds the time since the end of the previous span on the path; if it starts later, its mesh waits in
    between. The sum is the makespan.
    """

    lanes: Lanes
    spans: Spans  # [path] index of the span
    begins: Floats  # [path] time from which a span counts, in seconds
    ends: Floats  # [path] end of the span, in seconds
    waits: Floats  # [path] waiting time before each span, in seconds

    @property
    def seconds(self) -> Floats:
        """Seconds that each span adds to the path, ``[path]``."""
        return self.ends - self.begins

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end of the timeline."""
        return self.lanes.end_s - self.lanes.start_s

    @cached_property
    def op(self) -> NDArray[np.int8]:
        """:class:`~meshwave.engine.program.action.Op` of each span, ``[path]``."""
        return self.lanes.timeline.op[self.spans]

    @cached_property
    def seconds_by_category(self) -> dict[str, float]:
        """Seconds of each category in :data:`CATEGORIES`, including zeros."""
        op, seconds = self.op, self.seconds
        parts = (
            seconds[op <= Op.W],
            seconds[(op == Op.SEND_F) | (op == Op.SEND_B)],
            seconds[op == Op.REDUCE_GRAD],
            seconds[op == Op.UNSHARD],
            seconds[op == Op.STEP],
            self.waits,
        )
        return {name: float(part.sum()) for name, part in zip(CATEGORIES, parts, strict=True)}

    @cached_property
    def seconds_by_kind(self) -> dict[str, float]:
        """Seconds of each kind of action on the path."""
        return {Op(op).name: float(self.seconds[self.op == op].sum()) for op in np.unique(self.op).tolist()}

    @cached_property
    def seconds_by_stage(self) -> dict[int, float]:
        """Seconds of computation of each stage on the path."""
        computes = self.op <= Op.W
        return _seconds_by_key(self.lanes.timeline.stage[self.spans][computes], self.seconds[computes])

    @cached_property
    def seconds_by_rank(self) -> dict[int, float]:
        """Seconds of computation and optimizer step of each rank on the path."""
        works = (self.op <= Op.W) | (self.op == Op.STEP)
        return _seconds_by_key(self.lanes.timeline.rank[self.spans][works], self.seconds[works])

    @property
    def summary(self) -> str:
        """Composition such as ``62.1% compute, 20.7% transfer, 17.2% waiting``; parts below 0.5% are left out."""
        total = self.makespan_s
        if not total:
            return "the step takes no time"
        parts = sorted(self.seconds_by_category.items(), key=lambda part: -part[1])
        return ", ".join(
            f"{percent(seconds / total)} {SHOWN_NAMES.get(name, name)}"
            for name, seconds in parts
            if seconds >= 0.005 * total
        )

    def seconds_within(self, start: float, end: float, ranks: NDArray[np.bool_]) -> float:
        """Return the seconds between ``start`` and ``end`` during which the path is on the given ranks.

        Args:
            start: start of the period in seconds.
            end: end of the period in seconds.
            ranks: ``[ranks]`` True for each given rank; a transfer counts if either of its ranks is given.
        """
        timeline = self.lanes.timeline
        peer = timeline.peer[self.spans]
        through = ranks[timeline.rank[self.spans]] | ((peer >= 0) & ranks[peer])
        inside = np.minimum(self.ends, end) - np.maximum(self.begins, start)
        return float(np.maximum(inside, 0.0)[through].sum())

    def as_data(self) -> dict[str, Any]:
        """Return the composition as JSON data."""
        timeline = self.lanes.timeline
        return {
            "makespan_s": self.makespan_s,
            "words": self.summary,
            "actions": len(self.spans),
            "by_category_s": self.seconds_by_category,
            "by_kind_s": self.seconds_by_kind,
            "by_stage_s": {str(stage): seconds for stage, seconds in self.seconds_by_stage.items()},
            "by_mesh_s": {timeline.meshes[rank]: seconds for rank, seconds in self.seconds_by_rank.items()},
        }


def _seconds_by_key(key: NDArray[Any], seconds: Floats) -> dict[int, float]:
    sums: Mapping[int, float] = dict(enumerate(np.bincount(key, seconds).tolist())) if len(key) else {}
    return {number: sums[number] for number in np.unique(key).tolist()}


def seconds_by_port(path: CriticalPath, find_limit: FindLimit) -> dict[str, float]:
    """Return the seconds of transfers and collectives on a path, by name of the port that limits them, largest first.

    Only the :data:`LIMIT_LOOKUPS` longest are counted.
    """
    by_wire = np.flatnonzero(~path.lanes.timeline.is_work[path.spans] & (path.seconds > 0))
    by_wire = by_wire[np.argsort(-path.seconds[by_wire], kind="stable")][:LIMIT_LOOKUPS]
    found: dict[str, float] = {}
    for at in by_wire.tolist():
        limit = find_limit(int(path.spans[at]), float(path.begins[at]), float(path.ends[at]))
        if limit is not None:
            name = port_name(limit.port)
            found[name] = found.get(name, 0.0) + float(path.seconds[at])
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def find_critical_path(lanes: Lanes) -> CriticalPath:
    """Return the critical path, by following causes from the span that ends last back to the start of the step."""
    timeline = lanes.timeline
    spans = timeline.critical_path
    start, end = timeline.start[spans], timeline.end[spans]
    reached = np.maximum.accumulate(np.concatenate(([lanes.start_s], end)))[:-1]
    begins = np.minimum(np.maximum(start, reached), np.maximum(end, reached))
    return CriticalPath(lanes, spans, begins, np.maximum(end, begins), begins - reached)
