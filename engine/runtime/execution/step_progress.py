"""Times, progress and errors of the actions of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from meshwave.engine.errors import RunError
from meshwave.engine.program.action import Action


class ExecutionError(RunError):
    """Error of a failed action, such as "rank 3, action 17 of 64, 3F2: RuntimeError('...')"."""

    def __init__(self, message: str, rank: int, action: Action) -> None:
        super().__init__(message)
        self.rank = rank
        self.action = action


@dataclass(frozen=True)
class StepTimes:
    """Measured times of one step of one rank, one row per action, in nanoseconds of the host's clock."""

    start: NDArray[np.int64]  # time at which its inputs (of both actions of a slot) were ready; for a RECV, when posted
    end: NDArray[np.int64]  # end of the action; for a RECV or a collective, arrival of its tensor
    wait: NDArray[np.int64]  # time for which the rank waited for its inputs; for a RECV, for which its consumer waited
    losses: list[Tensor]  # losses of the microbatches whose last stage is on this rank


class Progress:
    """Position of a process in its program, for threads that observe it."""

    def __init__(self) -> None:
        self.step = 0
        self.evaluation_batch = 0
        """Number of the batch of the evaluation after the step, from 1; 0 during the step."""
        self.row = 0
        """Index of the running action; after the last action, the number of actions."""
        self.awaited_row: int | None = None
        """Index of the receive for whose tensor the action waits; None if it does not wait."""
        self.activity: str | None = None
        """Long activity between two steps, such as "checkpoint"; None during a step."""

    def begin(self, step: int, evaluation_batch: int = 0) -> None:
        """Move to the first action of a step, or of a batch of the evaluation after it."""
        self.step, self.evaluation_batch, self.row = step, evaluation_batch, 0
