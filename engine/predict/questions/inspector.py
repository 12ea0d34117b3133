"""Inspector: cached analysis of one timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwave.engine.predict.link_flows import Limit, LinkFlows
from meshwave.engine.predict.questions.action_query import Query, parse_query
from meshwave.engine.predict.questions.critical_path import CriticalPath, find_critical_path, seconds_by_port
from meshwave.engine.predict.questions.idle_time import Idle, explain_gap
from meshwave.engine.predict.questions.rank_activity import Lanes
from meshwave.engine.predict.questions.text import Unit
from meshwave.engine.predict.questions.time_breakdown import Area, summarize_area
from meshwave.engine.program.timeline import Floats, Timeline


@dataclass(frozen=True, eq=False)
class Inspector:
    """Analysis of a predicted or measured timeline; times are in seconds, or in units of cost.

    Intermediate results are cached.
    """

    timeline: Timeline
    carried: Floats | None = None  # [spans] bytes of each transfer, if they are known
    unit: Unit = "s"
    find_flows: Callable[[], LinkFlows | None] = lambda: None  # flows of a prediction

    @cached_property
    def lanes(self) -> Lanes:
        """Work of each rank in order of time."""
        return Lanes(self.timeline)

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path."""
        return find_critical_path(self.lanes)

    @cached_property
    def flows(self) -> LinkFlows | None:
        """Flows on the links; None if they are unknown."""
        return self.find_flows()

    def find_limit(self, span: int, start: float, end: float) -> Limit | None:
        """Return the port that delayed a transfer, reduction or exchange most between two times, or None."""
        return self.flows.find_limit(span, start, end) if self.flows is not None and end > start else None

    def summarize_area(self, start: float, end: float, ranks: Sequence[int] | None = None) -> Area:
        """Break down the time between ``start`` and ``end`` on the given ranks, by default on all."""
        every = range(self.timeline.ranks)
        chosen = every if ranks is None else [rank for rank in ranks if rank in every]
        return summarize_area(self.lanes, self.path, start, end, chosen, self.carried)

    def explain_idle(self, rank: int, at: float) -> Idle | None:
        """Explain the activity that a rank waits for at the time ``at``; None if the rank is not idle."""
        gap = self.lanes.gap(rank, at)
        return explain_gap(self.lanes, gap, self.unit, self.find_limit) if gap else None

    def seconds_by_port(self) -> dict[str, float]:
        """Return the seconds of transfers and reductions on the critical path, by the port that limits each of them."""
        return seconds_by_port(self.path, self.find_limit)

    def parse_query(self, text: str) -> Query:
        """Parse a search query.

        Raises:
            InputError: the text names nothing in the timeline.
        """
        compute = self.timeline.stage >= 0
        stages = int(self.timeline.stage[compute].max(initial=-1)) + 1
        return parse_query(text, self.timeline.meshes, stages, self.timeline.microbatches)
