"""One timeline and the questions to it; what several of them need is worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.predict.link_flows import Limit, LinkFlows
from meshwave.engine.predict.questions.action_query import Query, parse_query
from meshwave.engine.predict.questions.critical_path import CriticalPath, find_critical_path, seconds_by_port
from meshwave.engine.predict.questions.idle_time import Idle, explain_gap
from meshwave.engine.predict.questions.rank_activity import Lanes
from meshwave.engine.predict.questions.text import Unit
from meshwave.engine.predict.questions.time_breakdown import Area, measure_area
from meshwave.engine.program.timeline import Floats, Timeline


@dataclass(frozen=True, eq=False)
class Inspector:
    """Asks a timeline, predicted or measured; times are seconds, or the units of a unit cost."""

    timeline: Timeline
    carried: Floats | None = None  # [spans] bytes of a transfer, where they are known
    unit: Unit = "s"
    find_flows: Callable[[], LinkFlows | None] = lambda: None  # what passes the links of a prediction

    @cached_property
    def lanes(self) -> Lanes:
        return Lanes(self.timeline)

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path."""
        return find_critical_path(self.lanes)

    @cached_property
    def flows(self) -> LinkFlows | None:
        """Flows on the links; None where they are not known."""
        return self.find_flows()

    def limit(self, span: int, start: float, end: float) -> Limit | None:
        """The port that held a transfer, a reduction or an exchange up most in some time."""
        return self.flows.limit(span, start, end) if self.flows is not None and end > start else None

    def area(self, start: float, end: float, ranks: Sequence[int] | None = None) -> Area:
        """Where the time between ``start`` and ``end`` goes on some ranks; on all by default."""
        every = range(self.timeline.ranks)
        chosen = every if ranks is None else [rank for rank in ranks if rank in every]
        return measure_area(self.lanes, self.path, start, end, chosen, self.carried)

    def idle(self, rank: int, at: float) -> Idle | None:
        """What a rank waits for at a time; None where it does not."""
        gap = self.lanes.gap(rank, at)
        return explain_gap(self.lanes, gap, self.unit, self.limit) if gap else None

    def limits(self) -> dict[str, float]:
        """Seconds of the transfers and reductions on the critical path by the port that held each up most."""
        return seconds_by_port(self.path, self.limit)

    def query(self, text: str) -> Query:
        """Read what a person searches for.

        Raises:
            InputError: it names nothing that is there.
        """
        compute = self.timeline.stage >= 0
        stages = int(self.timeline.stage[compute].max(initial=-1)) + 1
        return parse_query(text, self.timeline.meshes, stages, int(self.timeline.microbatch.max(initial=-1)) + 1)

    def find(self, text: str) -> NDArray[np.int64]:
        """The spans that a person searches for, by their start.

        Raises:
            InputError: the words name nothing that is there.
        """
        found = np.flatnonzero(self.query(text).matches(self.timeline))
        return found[np.lexsort((found, self.timeline.start[found]))]
