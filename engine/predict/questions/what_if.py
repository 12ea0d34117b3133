"""What-if analysis: simulations of a program with changed costs.

The critical path alone gives only an upper bound: an action that gets faster may leave the path, and another path then
determines the makespan. (Coz, arXiv:1608.03676, answers the question for running programs by slowing down everything
else.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.predict.questions.critical_path import SHOWN_NAMES, CriticalPath
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program

Changed = Literal["stage", "mesh", "transfers", "reductions", "gathers", "update"]

CHANGES_TRIED = 8
"""Maximum number of changes that are simulated for one program."""


@dataclass(frozen=True)
class Change:
    """Group of actions that could be faster: of a stage or mesh (number), or all of one kind."""

    what: Changed
    number: int = -1

    def rows(self, program: Program) -> NDArray[np.bool_]:
        """Return a mask of the rows whose duration changes, ``[rows]``."""
        changes: NDArray[np.bool_]
        if self.what == "stage":
            changes = program.is_compute & (program.stage == self.number)
        elif self.what == "mesh":
            changes = (program.is_compute | (program.op == Op.STEP)) & (program.rank == self.number)
        elif self.what == "transfers":
            changes = program.is_send
        else:
            changes = program.op == {"reductions": Op.REDUCE_GRAD, "gathers": Op.UNSHARD, "update": Op.STEP}[self.what]
        return changes

    def name(self, meshes: tuple[str, ...]) -> str:
        """Return the name of the group, such as ``stage 2``, ``mesh C`` or ``transfers``."""
        if self.what == "mesh":
            return f"mesh {meshes[self.number]}"
        if self.what == "stage":
            return f"stage {self.number}"
        return SHOWN_NAMES.get(self.what, self.what)


@dataclass(frozen=True)
class WhatIf:
    """Effect of a change on the makespan."""

    change: Change
    name: str
    faster: float  # fraction by which the actions get faster, such as 0.1
    on_path_s: float  # seconds of the actions on the critical path before the change
    makespan_s: float
    saved_s: float
    saved_share: float

    def as_data(self) -> dict[str, Any]:
        """Return the effect as JSON data."""
        return asdict(self)


def changed_makespan(program: Program, costs: Costs, change: Change, faster: float = 0.1) -> float:
    """Return the makespan in seconds if the actions of ``change`` take the fraction ``faster`` less time."""
    factors = np.where(change.rows(program), 1 - faster, 1.0)
    return costs.scale_latencies(program, factors).simulate(program, costs.seconds * factors).makespan


def rank_changes(
    program: Program, costs: Costs, path: CriticalPath, faster: float = 0.1, most: int = CHANGES_TRIED
) -> list[WhatIf]:
    """Simulate the ``most`` changes with the largest share of the critical path; return them sorted by saved time.

    If links are not shared, a change saves at most ``faster`` times its seconds on the path.
    """
    candidates = sorted(_candidate_changes(path), key=lambda candidate: -candidate[1])[:most]
    meshes = path.lanes.timeline.meshes
    before = path.makespan_s
    found = []
    for change, on_path in candidates:
        after = changed_makespan(program, costs, change, faster)
        saved = before - after
        share = saved / before if before else 0.0
        found.append(WhatIf(change, change.name(meshes), faster, on_path, after, saved, share))
    return sorted(found, key=lambda answer: -answer.saved_s)


def _candidate_changes(path: CriticalPath) -> Iterator[tuple[Change, float]]:
    for stage, seconds in path.seconds_by_stage.items():
        yield Change("stage", stage), seconds
    if len(path.seconds_by_rank) < path.lanes.timeline.ranks or _has_shared_mesh(path):
        for rank, seconds in path.seconds_by_rank.items():
            yield Change("mesh", rank), seconds
    names: tuple[tuple[Changed, str], ...] = (
        ("transfers", "transfer"),
        ("reductions", "reduction"),
        ("gathers", "gather"),
        ("update", "update"),
    )
    for what, category in names:
        if path.seconds_by_category[category] > 0:
            yield Change(what), path.seconds_by_category[category]


def _has_shared_mesh(path: CriticalPath) -> bool:
    """Return True if a mesh holds several stages of the path, so that changing it differs from changing one stage."""
    return len(path.seconds_by_stage) > len(path.seconds_by_rank)
