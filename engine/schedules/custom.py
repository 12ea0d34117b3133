"""Custom: orders written by the user, in the notation of torch.distributed.pipelining."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Action, parse_cells
from meshwave.engine.program.program import Program, build_program
from meshwave.engine.schedules._base import Pipe, Schedule, schedules

MAX_TABLE_SIZE = 4_000_000
"""Maximum of stages x microbatches; otherwise a cell such as 999999F999999 would allocate terabytes."""


@schedules.register("custom")
class Custom(Schedule):
    """Your own order of actions for every mesh, which also defines the mesh of each stage."""

    title: ClassVar = "Custom"

    @cached_property
    def _actions(self) -> list[tuple[Action, ...]]:
        """Orders of all meshes, parsed cell by cell.

        Raises:
            InputError: a cell is not an action, or its microbatch does not exist.
        """
        section: Any = self  # keys of every pipeline section, in addition to the options
        orders = [parse_cells(tuple(order)) for order in getattr(section, "actions", None) or ()]
        for action in (action for order in orders for action in order):
            if action.microbatch >= section.microbatches:
                raise Refusal(
                    "action_beyond_microbatches",
                    {"action": str(action), "microbatch": action.microbatch, "microbatches": section.microbatches},
                )
        return orders

    @cached_property
    def _program(self) -> Program:
        stages, microbatches = self._counts
        if stages * microbatches > MAX_TABLE_SIZE:
            sizes = {"stages": stages, "microbatches": microbatches, "maximum": MAX_TABLE_SIZE}
            raise Refusal("order_table_size", sizes)
        return build_program(self._actions)

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """Number of stages and number of microbatches that the cells name."""
        stages = max((action.stage for order in self._actions for action in order), default=-1)
        microbatches = max((action.microbatch for order in self._actions for action in order), default=-1)
        return 1 + stages, 1 + microbatches

    def stage_count(self, ranks: int) -> int:
        return self._counts[0]

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        routes: list[list[int]] = self._program.placement.tolist()
        return routes

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        replicas: list[int] = self._program.replica.tolist()
        return replicas

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        program = self._program
        rows = np.stack([program.op, program.stage, program.microbatch, program.fused], axis=1).astype(np.int32)
        return np.split(rows, program.offsets[1:-1])
