"""Custom: orders drawn by hand, in the notation of torch.distributed.pipelining."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.program.program import Program, parse_program
from engine.schedules._base import Pipe, Schedule, schedules


@schedules.register("custom")
class Custom(Schedule):
    """Your own order of actions for every mesh; which mesh holds which stage is read off it."""

    title: ClassVar = "Custom"

    @cached_property
    def _program(self) -> Program:
        return parse_program(getattr(self, "actions", None) or ())

    def stage_count(self, ranks: int) -> int:
        return self._program.stages

    def routes(self, pipe: Pipe) -> Sequence[Sequence[int]]:
        return self._program.placement.tolist()

    def replica_of(self, pipe: Pipe) -> Sequence[int]:
        return self._program.replica.tolist()

    def orders(self, pipe: Pipe) -> list[NDArray[np.int32]]:
        program = self._program
        rows = np.stack([program.op, program.stage, program.microbatch], axis=1).astype(np.int32)
        return np.split(rows, program.offsets[1:-1])
